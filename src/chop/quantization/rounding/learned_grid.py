"""Learned grids: scales of a weight's groups, and positions of its values between grid points.

Learning starts from rounded values, or, with input energies, from the candidate scales with which
rounding to nearest has the least output error. Scales must be recoverable from the rounded values.
Groups are rows here, processed in parts that fit the caches of a processor.
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
"""Factors tried in the search for scales that are powers of two."""
SHARES = tuple(i / 16 for i in (10, 11, 12, 13, 14, 15, 17))
"""Factors tried in the search for other scales."""


@dataclass(frozen=True, eq=False)
class LearnedGrid:
    """Grid of G groups of N values each; elements are in their own unit.

    Attributes:
        layout: layout of the weight's format.
        scale: float64 (G, 1).
        zero: zero points, float64 (G, 1), or None.
        tensor_scale: factor of all scales, or None.
        pinned: boolean (G, 1), True for groups that keep their scale, or None.
        held: boolean (G, N), True for values that keep their elements, or None.
        anchor: int64 (G, 1), position of the value that determines the scale; None if there is none
            or it is held.
        least: float64 (G, 1), minimum element at the anchor, with its sign; 0 for no minimum.
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
        """Measures the grid of a weight for a format.

        Args:
            layout: layout of the weight's format.
            weight: any shape and dtype.
            start: values on the grid, whose largest ones determine the scales; None uses `weight`.
            fixed: boolean, weights that keep their elements; None for those that the format
                requires.
        """
        groups, scaling = as_rows(layout.split(weight.double())), layout.scaling
        held = as_rows(layout.groups.split(torch.ones_like(weight))) == 0
        if fixed is not None:
            held |= as_rows(layout.groups.split(fixed.float())) > 0
        if scaling is None:
            ones = torch.ones_like(groups[:, :1])
            return cls(layout, ones, None, None, None, _if_any(held), None, None)
        measured = scaling.measure(groups)
        scale = measured.values.masked_fill(measured.values == 0, 1)
        pinned, anchor, least = measured.values == 0, None, None
        if measured.tensor_scale is not None and groups.numel():
            pinned |= groups.abs().amax(-1, keepdim=True) == groups.abs().amax()
        if isinstance(scaling, SharedExponent):
            reference = groups if start is None else as_rows(layout.split(start.double()))
            anchor = reference.nan_to_num(nan=0.0).abs().argmax(-1, keepdim=True)
            ends = reference.gather(-1, anchor)
            is_large = layout.element.round(ends / scale).abs() >= scaling.least_largest
            least = torch.where(is_large, scaling.least_largest * ends.sign(), 0.0)
        elif not scaling.finds_any:
            held |= scaling.anchors(groups)
        zero = measured.zero_points if layout.has_zero_points else None
        tensor_scale = measured.tensor_scale
        grid = (scale, zero, tensor_scale, _if_any(pinned), _if_any(held), anchor, least)
        return cls(layout, *grid)

    def scales_near(self, wanted: Tensor) -> Tensor | None:
        """Returns the nearest storable scales, float64 (G, 1); None if the format fixes them."""
        if self.layout.scaling is None:
            return None
        scale = self.layout.scaling.representable(wanted, self.tensor_scale)
        if scale is None or self.pinned is None:
            return scale
        return torch.where(self.pinned, self.scale, scale)

    def points(self, groups: Tensor, part: slice, scale: Tensor) -> Tensor:
        """Returns values of a part in units of its scales, plus zero points, float64."""
        points = groups / scale
        points = points if self.zero is None else points + self.zero[part]
        return points.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def elements(self, points: Tensor, part: slice) -> Tensor:
        """Returns the nearest elements from which the group scales are recoverable, float64."""
        return self.with_anchors(self.layout.element.round(points.clone()), part)

    def with_anchors(self, elements: Tensor, part: slice, unit: float = 1.0) -> Tensor:
        """Enlarges elements in place that would be too small to determine the scale of their group.

        Args:
            elements: (groups, N), in units of `unit`.
            part: slice of groups.
            unit: unit of the elements.
        """
        if self.anchor is None or self.least is None:
            return elements
        anchor, least = self.anchor[part], self.least[part].to(elements) / unit
        values = elements.gather(-1, anchor)
        above, below = torch.maximum(values, least), torch.minimum(values, least)
        ends = torch.where(least > 0, above, torch.where(least < 0, below, values))
        return elements.scatter_(-1, anchor, ends)


def row_slices(groups: Tensor) -> Iterator[slice]:
    """Returns row slices of a matrix with about `CHUNK` values each; all rows on other devices."""
    count, size = groups.shape
    rows = max(CHUNK // max(size, 1), 1) if groups.device.type == "cpu" else max(count, 1)
    for start in range(0, count, rows):
        yield slice(start, start + rows)


def as_rows(groups: Tensor) -> Tensor:
    """Reshapes groups with any leading shape to rows of a matrix."""
    return groups.flatten(0, -2)


def _if_any(mask: Tensor) -> Tensor | None:
    return mask if bool(mask.any()) else None


def searched(grid: LearnedGrid, weight: Tensor, energies: Tensor) -> LearnedGrid:
    """Returns a grid with the scales of least error among candidates near its own.

    The error of a group is the sum of squared rounding errors of its values, weighted by input
    energy.

    Args:
        grid: measured grid.
        weight: float weight.
        energies: non-negative, in a shape that broadcasts to the weight's.
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
    """Returns the errors of values rounded with the given scales, float64 (groups, 1)."""
    points = grid.points(values, part, scale)
    elements = grid.elements(points, part)
    if grid.held is not None:
        first = grid.elements(grid.points(values, part, grid.scale[part]), part)
        elements = torch.where(grid.held[part], first, elements)
    errors = (elements - points).mul_(scale).square_().mul_(energy)
    return errors.sum(-1, keepdim=True)
