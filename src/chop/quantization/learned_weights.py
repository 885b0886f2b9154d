"""Learned weights: the codes and scales of one weight, which follow signs of gradients.

A weight w becomes s f (k - z), k = round(w / (s f) + z + v): v is the rounding offset of each
weight, within half a step, f a factor of each scale, within a half and three halves. Gradients pass
the rounding as if it were not there.

Source: Cheng et al. 2023 (SignRound), arXiv:2309.05516, equations 3 to 5; there f is at most 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.layout import Layout

OFFSET = 0.5
"""Steps that a rounding offset has at most."""
FACTORS = (0.5, 1.5)
"""What scales are multiplied by at least and at most."""
LAST_BITS = 4
"""Units in the last place that rounding a number on the grid may change it by."""
INSIDE = 0.49
"""Steps between an element and the point from which learning starts where it is not the nearest."""


def why_not_learnable(number_format: NumberFormat) -> str | None:
    """Why weights in a format cannot be learned; None where they can."""
    layout = number_format.layout() if number_format.is_fitted else None
    if layout is None:
        return "its format has a rounding of its own, or waits for data"
    element = layout.element
    is_stepped = element.step(torch.zeros(1, dtype=torch.float64)) is not None
    if not is_stepped or element.threshold is not None or layout.levels is not None:
        return "the numbers of its format do not lie in steps"
    if element.rounding != "nearest_even":
        return f"its format rounds by '{element.rounding}', not to the nearest number"
    return None


class LearnedWeight:
    """Offsets and factors of one weight, from those with which it is what it is now.

    Args:
        number_format: the weight's, with `why_not_learnable` None.
        weight: the float one, any shape and dtype.
        start: the rounded one, of the same shape, on the grid of the float one.
        fixed: boolean, weights that keep their codes; None: those that the format asks for.
    """

    def __init__(
        self, number_format: NumberFormat, weight: Tensor, start: Tensor, fixed: Tensor | None
    ) -> None:
        layout = number_format.layout()
        assert layout is not None
        self._format, self._layout = number_format, layout
        self._shape, self._dtype = start.shape, start.dtype
        self._set_grid(layout, weight.detach().double(), start.detach().double())
        if fixed is not None:
            self._held |= layout.groups.split(fixed.double()) > 0
        self._is_held = bool(self._held.any())
        self._offset = torch.zeros_like(self._distance)
        self._factor = torch.ones_like(self._scale) if self._is_scaled else None
        self._low, self._high = (
            float(layout.element.round(torch.tensor([end], dtype=torch.float64)))
            for end in (-torch.inf, torch.inf)
        )

    def _set_grid(self, layout: Layout, weight: Tensor, start: Tensor) -> None:
        """Scales and zero points of groups; where weights lie between the steps of elements."""
        groups, element, scaling = layout.split(weight), layout.element, layout.scaling
        ones = torch.ones_like(groups[..., :1])
        found = None if scaling is None else scaling.measure(groups)
        scale = ones if found is None else found.values.masked_fill(found.values == 0, 1)
        zero = None if found is None else found.zero_points
        zero = torch.zeros_like(ones) if zero is None else zero
        point = (groups / scale + zero).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        step = element.step(point)
        assert step is not None
        known = (layout.split(start) / scale + zero).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        code = element.round(known.clone())
        # Where the start is not the nearest element, the point of its cell next to the weight.
        near = torch.clamp(point, code - INSIDE * step, code + INSIDE * step)
        is_near = element.round(point.clone()) == code
        point = torch.where(is_near, point, near)
        point = torch.where(element.round(point.clone()) == code, point, code)
        step = element.step(point)
        assert step is not None
        self._scale, self._zero, self._step = scale, zero.float(), step.float()
        self._distance = ((point - zero) / step).float()
        self._has_zeros, self._is_unit = bool(zero.any()), bool((step == 1).all())
        self._is_scaled = scaling is not None and scaling.representable(scale) is not None
        counts = layout.groups.split(torch.ones_like(weight)) > 0
        self._held = ~counts
        if scaling is not None and not scaling.finds_any:
            self._held |= scaling.anchors(groups)
        self._code = code.float()

    def _wanted(self) -> Tensor:
        """Distances from the zero points with offsets, in steps."""
        if self._factor is None:
            return self._distance + self._offset
        return torch.addcmul(self._offset, self._distance, 1 / self._factor.float())

    def _codes(self, wanted: Tensor) -> Tensor:
        """The distances of elements from the zero points."""
        if self._has_zeros:
            wanted = wanted + self._zero / self._step
        codes = wanted.round()
        if not self._is_unit:
            codes *= self._step
        codes.clamp_(self._low, self._high)
        if self._is_held:
            codes = torch.where(self._held, self._code, codes)
        return codes.sub_(self._zero) if self._has_zeros else codes

    def _scales(self) -> Tensor:
        """float64, of each group."""
        if self._factor is None:
            return self._scale
        assert self._layout.scaling is not None
        scales = self._layout.scaling.representable(self._scale * self._factor)
        assert scales is not None
        return scales

    def values(self) -> Tensor:
        """The rounded weight as it is now, of the dtype of the start."""
        values = self._codes(self._wanted()) * self._scales().float()
        return self._layout.groups.join(values, self._shape).to(self._dtype)

    def learn(self, gradient: Tensor, rate: float) -> None:
        """One step against the signs of a gradient of the loss with respect to `values`.

        Args:
            gradient: shape of the weight; what is NaN does not count.
            rate: what offsets and factors change by.
        """
        pull = self._layout.groups.split(gradient.float()).nan_to_num(nan=0.0)
        pull *= self._scale.sign().float()
        wanted = self._wanted()
        codes = self._codes(wanted)
        in_steps = codes if self._is_unit else codes / self._step
        moves = (wanted - in_steps).abs_() <= OFFSET  # neither saturated nor held far away
        if self._is_held:
            moves &= ~self._held
        if self._factor is not None:
            # d(f k)/df = k + f dk/df, and dk/df = -(w/s) / f^2 where k moves.
            slope = torch.addcmul(codes, wanted.sub_(self._offset), moves, value=-1)
            self._factor -= rate * (pull * slope).sum(-1, keepdim=True).sign().double()
            self._factor.clamp_(*FACTORS)
        self._offset.sub_(pull.sign_().mul_(moves), alpha=rate).clamp_(-OFFSET, OFFSET)

    def rounded(self, kept: Tensor) -> Tensor:
        """The weight as it is now, which rounds to itself but for the last bits of its dtype.

        Args:
            kept: what rounds to the start; its groups stand where a scale would not be found again.
        """
        values = self._codes(self._wanted()).double() * self._scales()
        weight = self._layout.groups.join(values, kept.shape).to(kept.dtype)
        changed = self._changed(weight).expand_as(values).double()
        weight = torch.where(self._layout.groups.join(changed, kept.shape) > 0, kept, weight)
        # Where a scale follows the whole tensor, groups that are kept may have moved it.
        is_whole = bool((self._changed(weight) > changed[..., :1]).any())
        return kept.clone() if is_whole else weight

    def _changed(self, weight: Tensor) -> Tensor:
        """(..., groups, 1), True for groups that rounding changes by more than the last bits."""
        last_bits = LAST_BITS * torch.finfo(weight.dtype).eps
        split = self._layout.groups.split
        again, groups = (split(x.double()) for x in (self._format.round(weight), weight))
        return ((again - groups).abs() > last_bits * groups.abs()).any(-1, keepdim=True)
