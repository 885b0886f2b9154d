"""Learned grids: scales of a weight's groups, and where its values lie between elements.

Learning starts from rounded values, or, with the energies of inputs, from the scales among a few
with which rounding to nearest has the least error at the outputs. Scales are those that rounded
values give back. Groups are rows here, and worked on in parts that stay in a processor's caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chop.formats.chunks import CHUNK
from chop.formats.layout import Layout
from chop.formats.scaling import SharedExponent

POWERS = (0.5, 2.0)
"""What scales are multiplied by in search of better ones, where they are powers of two."""
SHARES = tuple(i / 16 for i in (10, 11, 12, 13, 14, 15, 17))
"""The same where they are not."""


@dataclass(frozen=True, eq=False)
class LearnedGrid:
    """G groups of N values each; elements in their own unit.

    Attributes:
        layout: of the weight's format.
        scale: float64 (G, 1).
        zero: float64 (G, 1), zero points; None where there are none.
        tensor_scale: the factor of all scales, or None.
        pinned: boolean (G, 1), True for groups that keep their scale; None where none has to.
        held: boolean (G, N), True for values that keep their elements; None where all may change.
        anchor: int64 (G, 1), the place of the value whose element tells the scale; None where none
            does, or it is held.
        least: float64 (G, 1), of its sign, the least element at that place; 0 where any will do.
    """

    layout: Layout
    scale: Tensor
    zero: Tensor | None
    tensor_scale: Tensor | None
    pinned: Tensor | None
    held: Tensor | None
    anchor: Tensor | None
    least: Tensor | None

    @classmethod
    def measured(
        cls, layout: Layout, weight: Tensor, start: Tensor | None, fixed: Tensor | None
    ) -> LearnedGrid:
        """The grid that the format takes.

        Args:
            layout: of the weight's format.
            weight: any shape and dtype.
            start: on that grid, whose largest values tell the scales; None: those of `weight` do.
            fixed: boolean, weights that keep their elements; None: no others than those for which
                the format asks.
        """
        groups, scaling = as_rows(layout.split(weight.double())), layout.scaling
        held = as_rows(layout.groups.split(torch.ones_like(weight))) == 0
        if fixed is not None:
            held |= as_rows(layout.groups.split(fixed.float())) > 0
        if scaling is None:
            ones = torch.ones_like(groups[:, :1])
            return cls(layout, ones, None, None, None, _if_any(held), None, None)
        found = scaling.measure(groups)
        scale = found.values.masked_fill(found.values == 0, 1)
        pinned, anchor, least = found.values == 0, None, None
        if found.tensor_scale is not None and groups.numel():
            pinned |= groups.abs().amax(-1, keepdim=True) == groups.abs().amax()
        if isinstance(scaling, SharedExponent):
            told = groups if start is None else as_rows(layout.split(start.double()))
            anchor = told.nan_to_num(nan=0.0).abs().argmax(-1, keepdim=True)
            ends = told.gather(-1, anchor)
            is_told = layout.element.round(ends / scale).abs() >= scaling.least_largest
            least = torch.where(is_told, scaling.least_largest * ends.sign(), 0.0)
        elif not scaling.finds_any:
            held |= scaling.anchors(groups)
        zero = found.zero_points if layout.has_zero_points else None
        tensor_scale = found.tensor_scale
        grid = (scale, zero, tensor_scale, _if_any(pinned), _if_any(held), anchor, least)
        return cls(layout, *grid)

    def scales_near(self, wanted: Tensor) -> Tensor | None:
        """The nearest scales that may be stored, float64 (G, 1); None where the format decides."""
        if self.layout.scaling is None:
            return None
        found = self.layout.scaling.representable(wanted, self.tensor_scale)
        if found is None or self.pinned is None:
            return found
        return torch.where(self.pinned, self.scale, found)

    def points(self, groups: Tensor, part: slice, scale: Tensor) -> Tensor:
        """Values of a part in units of its scales, plus zero points, float64."""
        points = groups / scale
        points = points if self.zero is None else points + self.zero[part]
        return points.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def elements(self, points: Tensor, part: slice) -> Tensor:
        """The nearest elements with which the scale of each group is found again, float64."""
        return self.with_anchors(self.layout.element.round(points.clone()), part)

    def with_anchors(self, elements: Tensor, part: slice, unit: float = 1.0) -> Tensor:
        """Elements, changed in place, of which none is too small to tell its group's scale.

        Args:
            elements: (groups, N), in units of `unit`.
            part: which groups.
            unit: of the elements.
        """
        if self.anchor is None or self.least is None:
            return elements
        anchor, least = self.anchor[part], self.least[part].to(elements) / unit
        found = elements.gather(-1, anchor)
        above, below = torch.maximum(found, least), torch.minimum(found, least)
        ends = torch.where(least > 0, above, torch.where(least < 0, below, found))
        return elements.scatter_(-1, anchor, ends)


def row_slices(groups: Tensor) -> Iterator[slice]:
    """Slices of the rows of a matrix, of about `CHUNK` values each; all rows on other devices."""
    count, size = groups.shape
    rows = max(CHUNK // max(size, 1), 1) if groups.device.type == "cpu" else max(count, 1)
    for start in range(0, count, rows):
        yield slice(start, start + rows)


def as_rows(groups: Tensor) -> Tensor:
    """Groups of any leading shape as the rows of a matrix."""
    return groups.flatten(0, -2)


def _if_any(mask: Tensor) -> Tensor | None:
    return mask if bool(mask.any()) else None


def searched(grid: LearnedGrid, weight: Tensor, energies: Tensor) -> LearnedGrid:
    """A grid with the scales of least error, among those that are near its own.

    The error of a group is the sum of squared errors of its values after rounding to nearest, each
    times the energy of its input.

    Args:
        grid: measured.
        weight: the float one.
        energies: not negative, of a shape that expands to the weight's.
    """
    layout = grid.layout
    factors = POWERS if isinstance(layout.scaling, SharedExponent) else SHARES
    candidates = [
        x for x in map(grid.scales_near, (f * grid.scale for f in factors)) if x is not None
    ]
    if not candidates:
        return grid
    groups = as_rows(layout.groups.split(weight))
    weighed = as_rows(layout.groups.split(energies.expand(weight.shape)))
    best = grid.scale.clone()
    for part in row_slices(groups):
        values, energy = groups[part].double(), weighed[part].double()
        least = _errors(grid, part, values, energy, grid.scale[part])
        for scales in candidates:
            error = _errors(grid, part, values, energy, scales[part])
            best[part] = torch.where(error < least, scales[part], best[part])
            least = torch.minimum(least, error)
    if grid.held is not None:
        best = torch.where(grid.held.all(-1, keepdim=True), grid.scale, best)
    if grid.pinned is not None:
        best = torch.where(grid.pinned, grid.scale, best)
    return replace(grid, scale=best)


def _errors(
    grid: LearnedGrid, part: slice, values: Tensor, energy: Tensor, scale: Tensor
) -> Tensor:
    """float64 (groups, 1), of values that are rounded with these scales."""
    points = grid.points(values, part, scale)
    found = grid.elements(points, part)
    if grid.held is not None:
        first = grid.elements(grid.points(values, part, grid.scale[part]), part)
        found = torch.where(grid.held[part], first, found)
    errors = (found - points).mul_(scale).square_().mul_(energy)
    return errors.sum(-1, keepdim=True)
