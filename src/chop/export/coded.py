"""Coded weights: codes and scales of packed layers as arrays, as files of other engines hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
"""Elements of OCP that several layouts have."""


@dataclass(frozen=True)
class CodedWeight:
    """A weight matrix as codes of elements, and scales of groups that lie along its rows.

    A value is the element that a code stands for, less the zero point of its group where there are
    zero points, times the scale of its group. Make one with `coded_weight`.

    Attributes:
        encoded: what the format stored.
        layout: of the format.
        rows: of the matrix.
        columns: of the matrix.
        group: columns that share a scale; `columns` where a row has one scale, or all rows have.
        groups: scales of a row; 0 where one is of the whole matrix, or there is none.
        block_rows: rows that share scales; the last ones may be fewer.
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
        """The numbers that codes stand for."""
        return self.layout.element

    @property
    def scaling(self) -> Scaling | None:
        """How scales are stored; None: there are none."""
        return self.layout.scaling

    @property
    def is_e8m0(self) -> bool:
        """Whether scales are bytes of E8M0, powers of two from 2^-127 on."""
        scaling = self.scaling
        bias = (E8M0_LOWEST, E8M0_WIDTH)
        return isinstance(scaling, SharedExponent) and (scaling.lowest, scaling.width) == bias

    @cached_property
    def codes(self) -> Tensor:
        """uint8 (rows, columns), the bits of each code; `element.width` of them count."""
        count = self.rows * self.columns
        return self.element.unpack(self.encoded.codes, count).view(self.rows, self.columns)

    @property
    def integers(self) -> Tensor:
        """int8 (rows, columns): k of an element `Fixed`, whose numbers are k 2^-frac_width."""
        assert isinstance(self.element, Fixed)
        numbers = torch.arange(2**self.element.width, device=self.codes.device)
        steps = self.element.values(numbers) * 2.0**self.element.frac_width
        return steps.to(torch.int8)[self.codes.long()]

    @property
    def exponents(self) -> Tensor:
        """uint8 (rows, groups): E8M0 as stored, `E8M0_NAN` for NaN; where `is_e8m0`."""
        assert self.encoded.scales is not None
        return self.encoded.scales.view(self.rows, self.groups)

    @cached_property
    def scales(self) -> Tensor:
        """float64 (rows, groups), or (1, 1) for one of all: what elements are multiplied by.

        Of blocks of several rows there is a row of scales for each.
        """
        shape = (-(-self.rows // self.block_rows), self.groups) if self.groups else (1, 1)
        if self.scaling is None or self.encoded.scales is None:
            return torch.ones(shape, dtype=torch.float64, device=self.codes.device)
        of_tensor = self.encoded.tensor_scale
        found = self.scaling.restore(self.encoded.scales, math.prod(shape), of_tensor)
        return found.view(shape)

    @cached_property
    def zero_points(self) -> Tensor | None:
        """float64, shape of `scales`: what is taken from elements; None: nothing is."""
        if self.scaling is None or self.encoded.scales is None:
            return None
        found = self.scaling.restore_zero_points(self.encoded.scales, self.scales.numel())
        return None if found is None else found.view(self.scales.shape)

    @cached_property
    def steps(self) -> Tensor:
        """float64, shape of `scales`: what `integers`, or other elements, are multiplied by."""
        element = self.element
        return self.scales * 2.0**-element.frac_width if isinstance(element, Fixed) else self.scales


def coded_weight(
    layer: PackedOperator, zero_points: bool = False, blocks: bool = False
) -> CodedWeight | str:
    """The weight of a packed layer, or why it is no matrix of codes with scales along its rows.

    Args:
        layer: packed, on any device.
        zero_points: whether groups may have some.
        blocks: whether a scale may be of several rows.
    """
    encoded, number_format = layer.encoded("weight"), layer.spec.weight
    assert isinstance(number_format, NumberFormat)
    layout, shape = number_format.layout(), encoded.shape
    if layout is None:
        return f"{number_format.label} has no layout of elements and scales"
    if len(shape) != 2 or not math.prod(shape):
        return f"its weight has shape {tuple(shape)}, and no rows and columns"
    has_others = layout.has_zero_points and not zero_points
    if layout.levels is not None or has_others or layout.element.radix != 2:
        return f"{number_format.label} is more than elements times one scale each"
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
        return f"{number_format.label} has scales of groups that do not lie along rows"
    group = columns if lines.group == ALL_COLUMNS else lines.group
    return CodedWeight(encoded, layout, rows, columns, group, lines.groups_per_row)
