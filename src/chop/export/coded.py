"""Coded weights: codes and scales of packed layers as arrays, for the files of other engines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from chop.formats import Encoded, NumberFormat
from chop.formats.elements import Element, Fixed, Minifloat
from chop.formats.groups import ALL_COLUMNS
from chop.formats.layout import Layout
from chop.formats.scaling import Scaling, SharedExponent
from chop.nn.packed import PackedOperator

E8M0_LOWEST, E8M0_WIDTH, E8M0_NAN = -127, 8, 255
E2M1, E4M3 = Minifloat(2, 1, 1, "finite"), Minifloat(4, 3, 7, "fn")
"""OCP elements that several layouts use."""


@dataclass(frozen=True)
class CodedWeight:
    """Weight matrix as codes of elements, with scales of groups along its rows.

    A value is its element, minus the group's zero point if any, times the group's scale. Create one
    with `coded_weight`.

    Attributes:
        encoded: tensor encoded by the format.
        layout: layout of the format.
        rows: rows of the matrix.
        columns: columns of the matrix.
        group: columns that share a scale; `columns` for one scale per row or per matrix.
        groups: scales of a row; 0 for one scale per matrix or no scale.
        block_rows: rows that share scales; the last block may have fewer.
    """

    encoded: Encoded
    layout: Layout
    rows: int
    columns: int
    group: int
    groups: int
    block_rows: int = 1

    @property
    def element(self) -> Element:
        """Elements of the codes."""
        return self.layout.element

    @property
    def scaling(self) -> Scaling | None:
        """Storage of scales, or None without scales."""
        return self.layout.scaling

    @property
    def is_e8m0(self) -> bool:
        """True if scales are stored as E8M0 bytes: powers of two from 2^-127."""
        scaling = self.scaling
        bias = (E8M0_LOWEST, E8M0_WIDTH)
        return isinstance(scaling, SharedExponent) and (scaling.lowest, scaling.width) == bias

    @cached_property
    def codes(self) -> Tensor:
        """Returns the codes as uint8 (rows, columns), of which `element.width` bits are used."""
        count = self.rows * self.columns
        return self.element.unpack(self.encoded.codes, count).view(self.rows, self.columns)

    @property
    def integers(self) -> Tensor:
        """Returns k of `Fixed` elements k 2^-frac_width as int8 (rows, columns)."""
        assert isinstance(self.element, Fixed)
        numbers = torch.arange(2**self.element.width, device=self.codes.device)
        steps = self.element.values(numbers) * 2.0**self.element.frac_width
        return steps.to(torch.int8)[self.codes.long()]

    @property
    def exponents(self) -> Tensor:
        """Returns stored E8M0 exponents, uint8 (rows, groups), where `is_e8m0` is True."""
        assert self.encoded.scales is not None
        return self.encoded.scales.view(self.rows, self.groups)

    def slice_rows(self, start: int, stop: int) -> CodedWeight | str:
        """Returns a range of rows, or the reason why it shares codes or scales with other rows.

        Args:
            start: first row.
            stop: row after the last.
        """
        encoded, block, scales = self.encoded, self.block_rows, self.encoded.scales
        if start % block or (stop % block and stop != self.rows):
            return f"blocks of {block} rows span several experts"
        if not self.element.fills_bytes(self.columns):
            return "the codes of a row do not fill whole bytes"
        if self.scaling is not None and scales is not None and self.groups:
            if self.scaling.width * self.groups % 8:
                return "the scales of a row do not fill whole bytes"
            lines = scales.view(-(-self.rows // block), -1)
            scales = lines[start // block : -(-stop // block)].reshape(-1)
        codes = encoded.codes.view(self.rows, -1)[start:stop].reshape(-1)
        shape = torch.Size((stop - start, self.columns))
        part = replace(encoded, codes=codes, scales=scales, shape=shape)
        return replace(self, encoded=part, rows=stop - start)

    @cached_property
    def scales(self) -> Tensor:
        """Returns the factors of elements: float64 (rows, groups), or (1, 1) for one scale.

        Blocks that span several rows have one row of scales per block row.
        """
        shape = (-(-self.rows // self.block_rows), self.groups) if self.groups else (1, 1)
        if self.scaling is None or self.encoded.scales is None:
            return torch.ones(shape, dtype=torch.float64, device=self.codes.device)
        tensor_scale = self.encoded.tensor_scale
        scales = self.scaling.restore(self.encoded.scales, math.prod(shape), tensor_scale)
        return scales.view(shape)

    @cached_property
    def zero_points(self) -> Tensor | None:
        """Returns the zero points, float64 in the shape of `scales`, or None."""
        if self.scaling is None or self.encoded.scales is None:
            return None
        zero_points = self.scaling.restore_zero_points(self.encoded.scales, self.scales.numel())
        return None if zero_points is None else zero_points.view(self.scales.shape)

    @cached_property
    def steps(self) -> Tensor:
        """Returns the factors of `integers` or other elements: float64 in the shape of `scales`."""
        element = self.element
        return self.scales * 2.0**-element.frac_width if isinstance(element, Fixed) else self.scales


def coded_weight(
    layer: PackedOperator, zero_points: bool = False, blocks: bool = False
) -> CodedWeight | str:
    """Returns the weight of a packed layer, or the reason why it is not a matrix of codes.

    Args:
        layer: packed layer on any device.
        zero_points: accepts groups with zero points.
        blocks: accepts scales that several rows share.
    """
    encoded, number_format = layer.encoded("weight"), layer.spec.weight
    assert isinstance(number_format, NumberFormat)
    flat = number_format.flattened(encoded)
    if flat is not None:
        number_format, encoded, offsets = flat
        if offsets is not None:
            return f"{layer.spec.weight.label} has a float32 minimum per group"
    layout, shape = number_format.layout(), encoded.shape
    if layout is None:
        return f"{number_format.label} cannot be expressed as elements and scales"
    if len(shape) != 2 or not math.prod(shape):
        return f"its weight has the shape {tuple(shape)} instead of rows and columns"
    has_others = layout.has_zero_points and not zero_points
    if layout.levels is not None or has_others or layout.element.radix != 2:
        return f"{number_format.label} is not elements times one scale each"
    if layout.element.width > 8:
        return f"{number_format.label} has codes of {layout.element.width} bits"
    rows, columns = shape
    if layout.scaling is None:
        return CodedWeight(encoded, layout, rows, columns, columns, 0)
    lines, tiling = layout.groups.lines(shape), layout.groups.tiling(shape)
    if lines is None and blocks and tiling is not None and tiling.matrices == 1:
        groups = -(-columns // tiling.block_columns)
        span = tiling.block_columns
        return CodedWeight(encoded, layout, rows, columns, span, groups, tiling.block_rows)
    if lines is None or (lines.rows, lines.columns) != (rows, columns):
        return f"{number_format.label} has scales of groups that are not along rows"
    group = columns if lines.group == ALL_COLUMNS else lines.group
    return CodedWeight(encoded, layout, rows, columns, group, lines.groups_per_row)
