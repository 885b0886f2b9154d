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
"""Rows of activations per chunk if results are converted to another dtype: chunks fit the cache."""
LARGE = 2**16
"""Elements of a weight from which compiling the loops, which takes seconds, is worthwhile, and from
which multiplying by codes is faster than by decoded numbers.
"""


@dataclass(frozen=True)
class Reader:
    """Parameters with which the loops read a packed tensor.

    Attributes:
        loops: compiled library.
        multiply: `chop_linear` of the library.
        tables: decode tables.
        lines: layout of the groups.
        few_rows: largest number of rows for which decoding on the fly is as fast as decoding first.
        decoded_rows: number of rows from which the loops decode the weight in parts.
        has_bfloat16: True if the loops can round such parts to bfloat16.
        codes: tables and layout in the form that the loops take.
        size_bytes: sizes of codes and scales, in bytes.
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
        """Returns True if codes and scales are on the CPU and as large as the loops expect."""
        code_bytes, scale_bytes = self.size_bytes
        return _holds(packed.codes, code_bytes) and (
            not scale_bytes or _holds(packed.scales, scale_bytes)
        )

    def unscaled(self) -> Reader:
        """Returns a reader of the same codes with scales of 1."""
        tables = self.tables.without_scales()
        return replace(self, tables=tables, codes=tables.structure(self.lines, None))


def _holds(part: Tensor | None, size_bytes: int) -> bool:
    return part is not None and part.is_cpu and part.is_contiguous() and part.nbytes == size_bytes


def find_reader(packed: Packed) -> Reader | None:
    """Returns the reader of a packed tensor, or None without a library or a decode table."""
    shape, key = tuple(packed.shape), packed.key
    if not (is_ready() or is_large(shape)):
        return None
    if packed.tensor_scale is not None:
        # The structure has the scale of this tensor, so it cannot be cached by key and shape.
        return _get_reader(fixed_tables(from_key(key)), shape, packed.tensor_scale)
    reader = _fixed_reader(key, shape)
    if reader is None and packed.scales is not None:
        # Multi-level formats store their factors in the scales, so each tensor has its own table.
        return _get_reader(tables_of_levels(from_key(key), packed.scales), shape, None)
    return reader


def fixed_reader(key: str, shape: Sequence[int]) -> Reader | None:
    """Returns the reader if codes decode identically in all tensors of a format, otherwise None."""
    shape = tuple(shape)
    return _fixed_reader(key, shape) if is_ready() or is_large(shape) else None


def is_large(shape: Sequence[int]) -> bool:
    """Returns True if a weight is large enough to compile for and to multiply by its codes."""
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
    limits = (ctypes.c_int32 * 3)()
    loops.chop_row_limits(ctypes.byref(structure), ctypes.c_int64(lines.columns), limits)
    few_rows, decoded_rows, has_bfloat16 = limits
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
