"""Learned weights: codes and scales of one weight, updated by signs of gradients.

A weight w becomes s f (k - z) with k = round(w / (s f) + z + v). The rounding offset v of each
weight is within half a step, the factor f of each scale between 0.5 and 1.5. Gradients pass the
rounding unchanged. Scales that are powers of two have no factor; their exponents with the least
error stay.

Source: Cheng et al. 2023 (SignRound), arXiv:2309.05516, equations 3 to 5; there f is at most 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.ordered_sum import sum_in_halves
from chop.formats.scaling import SharedExponent
from chop.kernels.offsets import Offsets
from chop.quantization.rounding.learned_grid import LearnedGrid, as_rows, row_slices, searched

OFFSET = 0.5
"""Maximum rounding offset, in steps."""
FACTORS = (0.5, 1.5)
"""Minimum and maximum factor of a scale."""
LAST_BITS = 4
"""Maximum change in units in the last place when a grid value is rounded again."""
INSIDE = 0.49
"""Maximum distance in steps between an element and its starting point, if it is not the nearest."""


def why_not_learnable(number_format: NumberFormat) -> str | None:
    """Returns the reason that weights in a format cannot be learned, or None."""
    layout = number_format.layout() if number_format.is_fitted else None
    if layout is None:
        return "its format has its own rounding, or needs calibration"
    element = layout.element
    is_stepped = element.step(torch.zeros(1, dtype=torch.float64)) is not None
    if not is_stepped or element.threshold is not None or layout.levels is not None:
        return "the numbers of its format are not equally spaced"
    if element.rounding != "nearest_even":
        return f"its format rounds by '{element.rounding}', not to the nearest number"
    return None


class LearnedWeight:
    """Offsets and factors of one weight, initialized to reproduce its current value.

    Args:
        number_format: format of the weight; `why_not_learnable` must be None.
        weight: float weight of any shape and dtype.
        start: rounded weight on the grid of the float one; None starts from rounding to nearest
            with the scales of least error.
        fixed: boolean, weights that keep their codes; None for those that the format requires.
        energies: input energies that weigh errors in the search for scales, in a shape that
            broadcasts to the weight's; None for equal weights.
    """

    def __init__(
        self,
        number_format: NumberFormat,
        weight: Tensor,
        start: Tensor | None,
        fixed: Tensor | None,
        energies: Tensor | None = None,
    ) -> None:
        layout, weight = number_format.layout(), weight.detach()
        assert layout is not None
        self._format, self._groups = number_format, layout.groups
        self._shape, self._dtype = weight.shape, weight.dtype
        grid = LearnedGrid.measured(layout, weight, start, fixed)
        if start is None:
            ones = torch.ones((), device=weight.device)
            grid = searched(grid, weight, ones if energies is None else energies)
        step = layout.element.step(torch.zeros(1, dtype=torch.float64))
        assert step is not None
        self._unit = float(step) if step.dim() == 0 else None
        self._grid, self._scale = grid, grid.scale
        self._set_points(layout.split(weight), None if start is None else layout.split(start))
        has_factor = not isinstance(layout.scaling, SharedExponent)
        has_factor = has_factor and grid.scales_near(grid.scale) is not None
        self._offset = torch.zeros_like(self._point)
        self._factor = torch.ones_like(self._scale) if has_factor else None
        unit = self._unit or 1.0
        self._low, self._high = (
            float(layout.element.round(torch.tensor([end], dtype=torch.float64))) / unit
            for end in (-torch.inf, torch.inf)
        )
        self._zero = None if grid.zero is None else (grid.zero / unit).float()
        self._current: tuple[Tensor, Tensor] | None = None
        self._kernel = None if self._unit is None else self._offsets(self._unit)

    def _offsets(self, unit: float) -> Offsets:
        """Returns what kernels need for elements with one step."""
        grid = self._grid
        least = None if grid.least is None else grid.least.float() / unit
        held = None if grid.held is None else grid.held.contiguous()
        places = self._zero, grid.anchor, least, held, self._code
        return Offsets(self._point, self._offset, *places, self._low, self._high)

    def _set_points(self, weight: Tensor, start: Tensor | None) -> None:
        """Sets the positions of weights and the elements of held weights, minus the zero points."""
        grid, groups = self._grid, as_rows(weight)
        known = None if start is None else as_rows(start)
        shape, unit = groups.shape, self._unit or 1.0
        self._lead = weight.shape
        self._point = torch.empty(shape, device=groups.device)
        self._code = None if grid.held is None else torch.empty_like(self._point)
        for part in row_slices(groups):
            points = grid.points(groups[part].double(), part, grid.scale[part])
            if known is None:
                codes = grid.elements(points, part)
            else:
                codes = grid.points(known[part].double(), part, grid.scale[part])
                codes = grid.layout.element.round(codes)
                points = self._beside(points, codes)
            zero = 0.0 if grid.zero is None else grid.zero[part]
            self._point[part] = (points - zero) / unit
            if self._code is not None:
                self._code[part] = (codes - zero) / unit

    def _beside(self, points: Tensor, codes: Tensor) -> Tensor:
        """Returns the points, moved if necessary so that they round to the given elements."""
        element = self._grid.layout.element
        step = element.step(points)
        assert step is not None
        near = torch.clamp(points, codes - INSIDE * step, codes + INSIDE * step)
        points = torch.where(element.round(points.clone()) == codes, points, near)
        return torch.where(element.round(points.clone()) == codes, points, codes)

    def _scales(self) -> tuple[Tensor, Tensor]:
        """Returns the scale of each group, float64, and its ratio to the initial one, float32."""
        if self._current is None:
            scales: Tensor | None = self._scale
            if self._factor is not None:
                scales = self._grid.scales_near(self._scale * self._factor)
            assert scales is not None
            self._current = scales, (scales / self._scale).float()
        return self._current

    def _wanted(self, part: slice, ratio: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns distances from the zero points with offsets, float32, and steps, None for 1.

        Args:
            part: slice of groups.
            ratio: ratio of the scales to the initial ones, float32.
        """
        point, offset = self._point[part], self._offset[part]
        if self._unit is not None:
            if self._factor is None:
                return point + offset, None
            return torch.addcdiv(offset, point, ratio[part]), None
        point = point if self._factor is None else point / ratio[part]
        step = self._grid.layout.element.step(point.double())
        assert step is not None
        return torch.addcmul(point, offset, step.float()), step.float()

    def _codes(self, part: slice, wanted: Tensor, step: Tensor | None) -> Tensor:
        """Returns the distances of elements from the zero points."""
        unit, grid = self._unit or 1.0, self._grid
        zero = None if self._zero is None else self._zero[part]
        codes = wanted if zero is None else wanted + zero
        codes = codes.round() if step is None else (codes / step).round_().mul_(step)
        codes = grid.with_anchors(codes.clamp_(self._low, self._high), part, unit)
        codes = codes if zero is None else codes.sub_(zero)
        if self._code is not None and grid.held is not None:
            codes = torch.where(grid.held[part], self._code[part], codes)
        return codes

    def values(self) -> Tensor:
        """Returns the current rounded weight, in the dtype of the start."""
        return self._joined(self._dtype, torch.float32)

    def _joined(self, dtype: torch.dtype, computed: torch.dtype) -> Tensor:
        scales, ratio = self._scales()
        factors = (scales * (self._unit or 1.0)).to(computed)
        known = None
        if self._kernel is not None and computed == torch.float32:
            known = self._kernel.values(None if self._factor is None else ratio, factors)
        values = torch.empty_like(self._point, dtype=dtype) if known is None else known.to(dtype)
        if known is None:
            for part in row_slices(values):
                codes = self._codes(part, *self._wanted(part, ratio))
                values[part] = codes.to(computed) * factors[part]
        return self._groups.join(values.view(self._lead), self._shape)

    def learn(self, gradient: Tensor, rate: float) -> None:
        """Takes one step against the signs of a gradient of the loss with respect to `values`.

        Args:
            gradient: gradient in the shape of the weight; NaN is ignored.
            rate: step size of offsets and factors.
        """
        pulls = as_rows(self._groups.split(gradient))
        ratio, signs = self._scales()[1], self._scale.sign().float()
        turns = None
        if self._kernel is not None:
            given = None if self._factor is None else ratio
            turns = self._kernel.learn(given, pulls, signs, rate)
        if turns is None:
            parts = [self._learn(part, pulls, ratio, signs, rate) for part in row_slices(pulls)]
            turns = torch.cat(parts) if parts else signs
        if self._factor is not None:
            self._factor.sub_(rate * turns).clamp_(*FACTORS)
            self._current = None

    def _learn(
        self, part: slice, pulls: Tensor, ratio: Tensor, signs: Tensor, rate: float
    ) -> Tensor:
        """Takes a step of the offsets of a part. Returns signs of gradients of the factors."""
        pull = (pulls[part].float() * signs[part]).nan_to_num_(nan=0.0)
        wanted, step = self._wanted(part, ratio)
        codes = self._codes(part, wanted, step)
        reach = OFFSET if step is None else OFFSET * step
        # 1 where values are neither saturated nor held far away, else 0. A product with
        # booleans takes several times longer.
        moves = wanted.sub_(codes).abs_().le_(reach)
        if self._grid.held is not None:
            moves.masked_fill_(self._grid.held[part], 0.0)
        turns = torch.zeros_like(signs[part])
        if self._factor is not None:
            # d(f k)/df = k + f dk/df, and dk/df = -(w/s) / f^2 where k moves.
            exact = self._point[part] / ratio[part]
            slope = torch.addcmul(codes, exact, moves, value=-1)
            turns = sum_in_halves(slope.mul_(pull).t()).t().sign_()
        self._offset[part].sub_(pull.sign_().mul_(moves), alpha=rate).clamp_(-OFFSET, OFFSET)
        return turns

    def rounded(self, original: Tensor) -> Tensor:
        """Returns the current weight, which rounds to itself up to the last bits of its dtype.

        Args:
            original: weight that rounds to the start; replaces groups whose scale would not be
                recoverable.
        """
        weight = self._joined(original.dtype, torch.float64)
        changed = self._changed(weight)
        if not changed.any():
            return weight
        stays = self._groups.join(changed.expand(self._lead).float(), original.shape) > 0
        weight = torch.where(stays, original, weight)
        # Where a scale follows the whole tensor, groups that are kept may have moved it.
        is_whole = bool((self._changed(weight) > changed).any())
        return original.clone() if is_whole else weight

    def _changed(self, weight: Tensor) -> Tensor:
        """Returns a boolean (..., groups, 1), True for groups that rounding changes beyond the last
        bits.
        """
        last_bits = LAST_BITS * torch.finfo(weight.dtype).eps
        again, groups = (
            as_rows(self._groups.split(x)) for x in (self._format.round(weight), weight)
        )
        changed_groups = torch.zeros(len(groups), 1, dtype=torch.bool, device=groups.device)
        for part in row_slices(groups):
            errors = (again[part].double() - groups[part].double()).abs()
            is_far = errors > last_bits * groups[part].double().abs()
            changed_groups[part] = is_far.any(-1, keepdim=True)
        return changed_groups.view(*self._lead[:-1], 1)
