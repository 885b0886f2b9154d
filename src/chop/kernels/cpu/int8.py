"""Products of 8-bit integers, by oneDNN: exact, where float32 would round."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.groups import WHOLE_TENSOR, Whole
from chop.formats.scaling import EPSILON, TINY
from chop.kernels.codes import WHOLE, Packed
from chop.kernels.cpu.measure import pointer
from chop.kernels.cpu.reader import CHUNK_ROWS, Reader
from chop.kernels.integers import integers_of, one_scale
from chop.kernels.plan import layout_of
from chop.private.torch_api import has_int8_products, multiply_int8

LONGEST_SUM = (2**31 - 1) // 128**2
"""Products of such integers whose sum 32 bits hold, whatever they are."""


class WholeRule(NamedTuple):
    """How activations become integers.

    Attributes:
        low: the smallest integer.
        high: the largest integer.
        scale: of all of them; 0 to follow the largest magnitude.
        by_row: whether each row has a scale of its own.
    """

    low: int
    high: int
    scale: float
    by_row: bool


@cache
def is_exact() -> bool:
    """True where the CPU has instructions for these products, and oneDNN takes them.

    Without, it adds pairs of products in 16 bits, which are too few for large ones.
    """
    largest = torch.full((64, 64), 127, dtype=torch.int8, device="cpu")
    sums = multiply_int8(largest, largest)
    return has_int8_products() and bool((sums == 64 * 127**2).all())


def whole_rule(number_format: NumberFormat) -> WholeRule | None:
    """The rule of a format, or None if it is not one of signed integers of up to 8 bits."""
    layout = layout_of(number_format) if number_format.is_fitted else None
    integers = integers_of(layout)
    if layout is None or integers is None or integers.low >= 0:
        return None
    scale, by_row = one_scale(layout, integers), layout.groups == ROWS
    if scale is None or not (scale or by_row or layout.groups == WHOLE_TENSOR):
        return None
    return WholeRule(integers.low, integers.high, scale, by_row)


ROWS = Whole("row")


def linear(
    x: Tensor,
    x_format: NumberFormat,
    reader: Reader,
    packed: Packed,
    bias: Tensor | None,
) -> Tensor | None:
    """`F.linear` of rounded rows (rows, columns) and a packed weight.

    None unless both are 8-bit integers times a scale that whole rows share, and `x` has no NaN.
    """
    rule, tables = known_rule(x_format, reader, x.size(1)), reader.tables
    if rule is None:
        return None
    rounded = _rounded(reader.loops, x, rule)
    if rounded is None:
        return None
    whole, x_scales = rounded
    scales = packed.scales
    if scales is None or not scales.numel():
        scales = torch.tensor([tables.factor], device="cpu")
    weight = packed.codes.view(torch.int8).view(*packed.shape)
    y = x.new_empty(x.size(0), weight.size(0))
    for part, part_scales, target in zip(
        *(tensor.split(CHUNK_ROWS) for tensor in (whole, x_scales, y)), strict=True
    ):
        sums = multiply_int8(part, weight.t())
        _rescale(reader.loops, sums, part_scales, scales, bias, target)
    return y


def known_rule(x_format: NumberFormat, reader: Reader, columns: int) -> WholeRule | None:
    """How rows of so many columns become integers; None where `linear` does not multiply them."""
    rule, tables = whole_rule(x_format), reader.tables
    if tables.reading != WHOLE or tables.scale_values is not None:
        return None
    return rule if reader.lines.groups_per_row <= 1 and columns <= LONGEST_SUM else None


def workspace_bytes(rows: int, outputs: int, columns: int) -> int:
    """What `linear` needs beside its result: integers of all rows, and sums of two chunks."""
    return rows * (columns + 4) + 4 * min(rows, 2 * CHUNK_ROWS) * outputs


def _rounded(loops: ctypes.CDLL, x: Tensor, rule: WholeRule) -> tuple[Tensor, Tensor] | None:
    """int8 (rows, columns) and float32 (rows,); None if there is a NaN."""
    x = x.contiguous()
    whole = torch.empty(x.shape, dtype=torch.int8, device="cpu")
    own_rows = rule.by_row or rule.scale != 0
    lines = x.size(0) if own_rows else 1
    scales = torch.empty(lines, device="cpu")
    found_nan = loops.chop_int8_codes(
        pointer(x),
        pointer(whole),
        pointer(scales),
        ctypes.c_int64(lines),
        ctypes.c_int64(x.numel() // lines),
        ctypes.c_double(rule.low),
        ctypes.c_double(rule.high),
        *map(ctypes.c_float, (rule.scale, TINY, EPSILON)),
        torch.get_num_threads(),
    )
    return None if found_nan else (whole, scales.expand(x.size(0)).contiguous())


def _rescale(
    loops: ctypes.CDLL,
    sums: Tensor,
    x_scales: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    y: Tensor,
) -> None:
    loops.chop_int8_rescale(
        pointer(sums),
        pointer(x_scales),
        pointer(scales),
        ctypes.c_int64(int(scales.numel() > 1)),
        pointer(bias),
        pointer(y),
        *map(ctypes.c_int64, y.shape),
        torch.get_num_threads(),
    )
