"""Choice of the products by numbers: by the loops, by oneDNN in bfloat16, or decoded to float32.

Rows are rounded to bfloat16 if they have this dtype already, or if torch's float32 matmul precision
allows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Tensor

from chop.formats import parse_format_string
from chop.kernels.codes import CodeTables, Packed
from chop.kernels.cpu.crossovers import COUNTS, FEWEST, Call, Crossover, random_bytes, register
from chop.kernels.cpu.products import (
    by_codes,
    half_by_codes,
    in_float32,
    in_panels,
    rounded_by_codes,
)
from chop.kernels.cpu.reader import Reader, find_reader, fixed_reader
from chop.kernels.matmul_precision import allows_bfloat16, allows_tf32
from chop.private.torch_api import has_bfloat16_products, onednn_multiplies_bfloat16

WEIGHTS = "mxint:width=8"
"""Format of the weights that are measured."""
SHAPES = ((1024, 768), (512, 4096))
"""Weights that are measured. Both products decode a weight in parts, so their times are in
proportion to its outputs, and a few outputs are enough.
"""
WHOLE_SHAPES = ((1024, 768), (2048, 4096))
"""Weights that are measured where a product decodes the whole weight: one that fits the cache, and
one of 32 MiB, which the C library allocates anew for each call.
"""


@cache
def multiplies_bfloat16() -> bool:
    """Returns True if the CPU has instructions for bfloat16 products."""
    return has_bfloat16_products()


@cache
def _is_supported() -> bool:
    return onednn_multiplies_bfloat16()


def may_round(tables: CodeTables, dtype: torch.dtype) -> bool:
    """Returns True if rows of a dtype and such codes may be multiplied in bfloat16.

    `bfloat16_roundings` gives the error. Other codes are decoded and multiplied by torch, which may
    round both operands to bfloat16 under the same setting.
    """
    is_allowed = dtype == torch.bfloat16 or (dtype == torch.float32 and allows_bfloat16())
    return is_allowed and tables.suits_bfloat16


def loops_round(reader: Reader, dtype: torch.dtype, rows: int) -> bool:
    """Returns True if the loops round rows and weights to bfloat16 where they may."""
    is_faster = reader.has_bfloat16 and rows >= reader.decoded_rows and multiplies_bfloat16()
    return is_faster and may_round(reader.tables, dtype)


def is_by_onednn(reader: Reader, dtype: torch.dtype, shape: Sequence[int], rows: int) -> bool:
    """Returns True if oneDNN multiplies many rows by a weight (outputs, columns) in bfloat16."""
    if rows < FEWEST or not may_round(reader.tables, dtype):
        return False
    return (HALVES if dtype == torch.bfloat16 else ROUNDED).is_used(shape, rows)


def is_in_float32(reader: Reader, dtype: torch.dtype, shape: Sequence[int], rows: int) -> bool:
    """Returns True if PyTorch multiplies rows by the whole weight, decoded to float32.

    This is for rows that `is_by_onednn` excludes.
    """
    if rows > reader.few_rows:
        return not stays_half(dtype)
    # PyTorch would round float32 to tf32 where that is allowed, and the loops do not.
    if rows < FEWEST or allows_tf32() or loops_round(reader, dtype, rows):
        return False
    return FLOATS.is_used(shape, rows)


def stays_half(dtype: torch.dtype) -> bool:
    """Returns True if many rows are multiplied in their own dtype, as fast as in a float layer."""
    return dtype == torch.bfloat16 and multiplies_bfloat16()


def without_panels(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor | None:
    """Multiplies rows (rows, columns) without panels, or returns None if torch is as fast.

    torch multiplies many rows by the decoded weight, in half precision.
    """
    if is_in_float32(reader, x.dtype, packed.shape, len(x)):
        return in_float32(reader, x, packed, bias)
    if len(x) > reader.few_rows:
        return None
    rounds = loops_round(reader, x.dtype, len(x))
    if x.dtype != torch.float32:
        return half_by_codes(reader, x, packed, bias, rounds)
    return (rounded_by_codes if rounds else by_codes)(reader, x.contiguous(), packed, bias)


def _arguments(
    dtype: torch.dtype, shape: tuple[int, int], rows: int
) -> tuple[Reader, Tensor, Packed, None]:
    """Returns random rows and a random weight for a measurement."""
    key = parse_format_string(WEIGHTS).key
    codes, group = random_bytes(math.prod(shape)), 32
    scales = torch.full((codes.numel() // group,), 120, dtype=torch.uint8, device="cpu")
    packed = Packed(codes, scales, None, shape, key)
    reader = find_reader(packed)
    assert reader is not None and reader.takes(packed)
    numbers = random_bytes(rows * shape[1]).view(rows, shape[1])
    return reader, numbers.to(dtype).sub_(128).div_(64), packed, None


def _panel_calls(dtype: torch.dtype, shape: tuple[int, int], rows: int) -> tuple[Call, Call]:
    """Returns products without panels, and by oneDNN in panels."""
    arguments = _arguments(dtype, shape, rows)
    return partial(without_panels, *arguments), partial(in_panels, *arguments)


def _float_calls(shape: tuple[int, int], rows: int) -> tuple[Call, Call]:
    """Returns float32 products by the loops, and by the decoded weight."""
    arguments = _arguments(torch.float32, shape, rows)
    return partial(by_codes, *arguments), partial(in_float32, *arguments)


@cache
def _decodes_in_parts() -> bool:
    """Returns True if the loops multiply many rows, for which they need vector instructions."""
    reader = fixed_reader(parse_format_string(WEIGHTS).key, WHOLE_SHAPES[0])
    return reader is not None and reader.few_rows >= COUNTS[-1]


FLOATS = register(
    Crossover(
        "float32 products",
        _float_calls,
        WHOLE_SHAPES,
        _decodes_in_parts,
        "PyTorch for many rows, because there are no vector instructions",
        "decoding to float32",
    )
)
NO_BFLOAT16 = "oneDNN has no bfloat16 products on this processor"
HALVES = register(
    Crossover(
        "bfloat16 products",
        partial(_panel_calls, torch.bfloat16),
        SHAPES,
        _is_supported,
        NO_BFLOAT16,
    )
)
ROUNDED = register(
    Crossover(
        "float32 at medium precision",
        partial(_panel_calls, torch.float32),
        SHAPES,
        _is_supported,
        NO_BFLOAT16,
        precision="medium",
    )
)
