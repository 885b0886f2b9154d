"""Choice of the products that are computed in bfloat16, by the loops or by oneDNN.

Rows are rounded to bfloat16 if they have this dtype already, or if torch's float32 matmul precision
allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from chop.formats import parse_format_string
from chop.kernels.codes import CodeTables, Packed
from chop.kernels.cpu.crossovers import FEWEST, Crossover, random_bytes, register
from chop.kernels.cpu.products import (
    by_codes,
    half_by_codes,
    in_float32,
    in_panels,
    rounded_by_codes,
)
from chop.kernels.cpu.reader import Reader, find_reader
from chop.kernels.matmul_precision import allows_bfloat16
from chop.private.torch_api import has_bfloat16_products, onednn_multiplies_bfloat16

WEIGHTS = "mxint:width=8"
"""Format of the weights that are measured."""
SHAPES = ((1024, 768), (512, 4096))
"""Weights that are measured. Both products decode a weight in parts, so their times are in
proportion to its outputs, and a few outputs are enough.
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
    return (HALVES if dtype == torch.bfloat16 else FLOATS).is_used(shape, rows)


def stays_half(dtype: torch.dtype) -> bool:
    """Returns True if many rows are multiplied in their own dtype, as fast as in a float layer."""
    return dtype == torch.bfloat16 and multiplies_bfloat16()


def by_loops(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor | None:
    """Multiplies rows (rows, columns) without panels, or returns None if torch is as fast.

    torch multiplies many rows by the decoded weight, in half precision.
    """
    rounds, is_float = loops_round(reader, x.dtype, len(x)), x.dtype == torch.float32
    if len(x) > reader.few_rows:
        return None if stays_half(x.dtype) else in_float32(reader, x, packed, bias)
    if not is_float:
        return half_by_codes(reader, x, packed, bias, rounds)
    return (rounded_by_codes if rounds else by_codes)(reader, x.contiguous(), packed, bias)


def _calls(
    dtype: torch.dtype, shape: tuple[int, int], rows: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns products of random codes by the loops and by oneDNN."""
    number_format = parse_format_string(WEIGHTS)
    codes, group = random_bytes(math.prod(shape)), 32
    scales = torch.full((codes.numel() // group,), 120, dtype=torch.uint8, device="cpu")
    packed = Packed(codes, scales, None, shape, number_format.key)
    reader = find_reader(packed)
    assert reader is not None and reader.takes(packed)
    numbers = random_bytes(rows * shape[1]).view(rows, shape[1])
    arguments = reader, numbers.to(dtype).sub_(128).div_(64), packed, None
    return partial(by_loops, *arguments), partial(in_panels, *arguments)


def _register(name: str, dtype: torch.dtype) -> Crossover:
    why_unsupported = "oneDNN has no bfloat16 products on this processor"
    return register(Crossover(name, partial(_calls, dtype), SHAPES, _is_supported, why_unsupported))


HALVES = _register("bfloat16 products", torch.bfloat16)
FLOATS = _register("float32 products at medium precision", torch.float32)
