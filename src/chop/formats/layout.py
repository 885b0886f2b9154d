"""Layout: the composition of a number format, as data that every backend reads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.elements import Element, Rounding
from chop.formats.groups import WHOLE_TENSOR, Groups
from chop.formats.scaling import ConstantScale, LearnedScale, Scaling
from chop.formats.statistic import LARGEST, Threshold


@dataclass(frozen=True)
class Layout:
    """Elements times the scales of groups: each value becomes the element for value/scale.

    Where groups have zero points too, the element for value/scale + zero point is taken, and its
    distance from the zero point is scaled.

    Equal layouts round, encode and decode alike. `chop.formats.reference` does so readably;
    kernels and exporters have one function per element and one per scaling.

    Attributes:
        element: the set of numbers before any scale: its width, code, rounding and range.
        groups: which values share a scale.
        scaling: how scales follow the data and are stored; None for no scales.
        levels: so many roundings are added, each of what the ones before left, each with a scale
            of its own for the whole tensor; None for one rounding.
        overflow: what becomes of a finite result that the tensor's dtype cannot hold: its largest
            number, or infinity. Values beyond the largest element saturate in any case.
    """

    element: Element
    groups: Groups = WHOLE_TENSOR
    scaling: Scaling | None = None
    levels: int | None = None
    overflow: Literal["saturate", "infinity"] = "saturate"

    @property
    def rounding(self) -> Rounding:
        """Which element stands for a value between two."""
        return self.element.rounding

    @property
    def has_zero_points(self) -> bool:
        """Whether a value becomes s (k - z), with a zero point z for each group, and not s k."""
        return self.scaling is not None and self.scaling.zero_width > 0

    @property
    def has_nan(self) -> bool:
        """Returns whether an infinity makes its group NaN."""
        return self.scaling is not None and self.scaling.has_nan

    @property
    def ignores_zeros(self) -> bool:
        """Returns whether zeros stay zeros and no scale follows them."""
        if self.levels is not None or self.element.threshold is not None or self.has_zero_points:
            return False
        statistic = None if self.scaling is None else self.scaling.statistic
        return self.element.has_zero and statistic in (None, LARGEST)

    def __post_init__(self) -> None:
        if self.has_zero_points and not self._can_have_zero_points():
            raise ConfigError(
                "layout: zero points are of elements without a threshold, one for each scale, and "
                f"stored as codes; got {self.element}, {self.scaling}, levels {self.levels}."
            )
        if self.levels is not None:
            in_order = self.groups == WHOLE_TENSOR and self.element.threshold is None
            if not (in_order and self.scaling is not None and self.scaling.stores_floats):
                raise ConfigError(
                    "layout: levels are of elements without a threshold, times a float scale of "
                    f"the tensor; got {self.element}, {self.groups}, {self.scaling}."
                )
            given = self.scaling.given if isinstance(self.scaling, ConstantScale) else None
            if given is not None and len(given) != self.levels:
                raise ConfigError(f"layout: expected {self.levels} scales, got {len(given)}.")

    def _can_have_zero_points(self) -> bool:
        is_coded = self.scaling is not None and not self.scaling.stores_floats
        return is_coded and self.element.threshold is None and self.levels is None

    def split(self, x: Tensor) -> Tensor:
        """The groups of `x`; where they have zero points, what a short one lacks is NaN.

        Elsewhere it is zero, which no scale follows.
        """
        groups = self.groups.split(x)
        if not self.has_zero_points or groups.numel() == x.numel():
            return groups
        return groups.masked_fill(self.groups.split(torch.ones_like(x)) == 0, torch.nan)

    def fitted(self, x: Tensor) -> Layout:
        """With the threshold of a tensor as a number, where the elements have one."""
        threshold = self.element.threshold
        return self.with_threshold(threshold.of(x)) if isinstance(threshold, Threshold) else self

    def with_threshold(self, threshold: float) -> Layout:
        """With another threshold of its elements, which have one."""
        element: Any = dataclasses.replace(self.element, threshold=threshold)  # type: ignore[type-var]
        return dataclasses.replace(self, element=element)

    def counted(self, groups: Tensor) -> Tensor | None:
        """`groups` with NaN for the values that scales do not follow; None: they follow all."""
        threshold = self.element.threshold
        if threshold is None:
            return None
        assert isinstance(threshold, float)
        return groups.masked_fill(groups.abs() <= threshold, torch.nan)

    def with_scales(self, scales: Tensor | None) -> Layout:
        """With scales, float32 (n,), that training is changing; None leaves them as they are."""
        return self if scales is None else dataclasses.replace(self, scaling=LearnedScale(scales))
