"""Readers of packed tensors for the C++ loops."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch
from torch import Tensor

from chop.formats import from_key
from chop.formats.groups import Lines
from chop.kernels.codes import Codes, CodeTables, Packed, fixed_tables, tables_of_levels
from chop.kernels.cpu.build import is_ready, library

CHUNK_ROWS = 256
"""Of activations at a time, where results pass through another dtype: they stay in the cache."""
LARGE = 2**16
"""Elements of a weight for which compiling the loops, a matter of seconds, is begun, and from which
multiplying by codes is faster than by numbers."""


@dataclass(frozen=True)
class Reader:
    """How the loops read a packed tensor.

    Attributes:
        loops: the compiled library.
        multiply: its `chop_linear`.
        tables: of its codes.
        lines: where its groups lie.
        few_rows: of activations, up to which they multiply as fast as by decoding first.
        decoded_rows: of activations, from which they decode a part of the weight at a time.
        has_bfloat16: whether they can round the numbers of such parts to bfloat16.
        codes: the two of them as the loops take them.
        size_bytes: of codes and of scales.
    """

    loops: ctypes.CDLL
    multiply: Callable[..., None]
    tables: CodeTables
    lines: Lines
    few_rows: int
    decoded_rows: int
    has_bfloat16: bool
    codes: Codes
    size_bytes: tuple[int, int]

    def takes(self, packed: Packed) -> bool:
        """Whether all that the loops read is there: they do not look."""
        code_bytes, scale_bytes = self.size_bytes
        return _holds(packed.codes, code_bytes) and (
            not scale_bytes or _holds(packed.scales, scale_bytes)
        )

    def unscaled(self) -> Reader:
        """The same codes, read as if their scales were 1."""
        tables = self.tables.without_scales()
        return replace(self, tables=tables, codes=tables.structure(self.lines, None))


def _holds(part: Tensor | None, size_bytes: int) -> bool:
    return part is not None and part.is_contiguous() and part.nbytes == size_bytes


def find_reader(packed: Packed) -> Reader | None:
    """How to read a packed tensor; None where there is no library, or no table for the codes."""
    shape, key = tuple(packed.shape), packed.key
    if not (is_ready() or is_large(shape)):
        return None
    if packed.tensor_scale is not None:
        return _get_reader(fixed_tables(from_key(key)), shape, packed.tensor_scale)
    reader = _fixed_reader(key, shape)
    if reader is None and packed.scales is not None:
        return _get_reader(tables_of_levels(from_key(key), packed.scales), shape, None)
    return reader


def fixed_reader(key: str, shape: Sequence[int]) -> Reader | None:
    """How to read tensors whose codes mean the same in all of them; None where that is not so."""
    shape = tuple(shape)
    return _fixed_reader(key, shape) if is_ready() or is_large(shape) else None


def is_large(shape: Sequence[int]) -> bool:
    """True for weights that are worth compiling for, and worth multiplying by codes."""
    return math.prod(shape) >= LARGE


@lru_cache(maxsize=4096)
def _fixed_reader(key: str, shape: tuple[int, ...]) -> Reader | None:
    return _get_reader(fixed_tables(from_key(key)), shape, None)


def _get_reader(
    tables: CodeTables | None, shape: tuple[int, ...], tensor_scale: Tensor | None
) -> Reader | None:
    loops = library().library
    if tables is None or loops is None or not torch.Size(shape).numel():
        return None
    lines = tables.lines(shape)
    if lines is None:
        return None
    structure = tables.structure(lines, tensor_scale)
    found = (ctypes.c_int32 * 3)()
    loops.chop_ways(ctypes.byref(structure), ctypes.c_int64(lines.columns), found)
    few_rows, decoded_rows, has_bfloat16 = found
    return Reader(
        loops,
        _multiply(loops),
        tables,
        lines,
        few_rows,
        decoded_rows,
        bool(has_bfloat16),
        structure,
        tables.size_bytes(lines),
    )


@cache
def _multiply(loops: ctypes.CDLL) -> Callable[..., None]:
    prototype = ctypes.CFUNCTYPE(
        None, *[ctypes.c_void_p] * 6, *[ctypes.c_int64] * 3, *[ctypes.c_int32] * 2
    )
    return prototype(("chop_linear", loops))
