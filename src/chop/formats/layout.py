"""Layout: the elements, groups and scales of a number format, read by every backend."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from chop.errors import ConfigError, describe
from chop.formats.elements import Element, Rounding
from chop.formats.groups import WHOLE_TENSOR, Groups
from chop.formats.scaling import ConstantScale, LearnedScale, Scaling
from chop.formats.statistic import LARGEST, Threshold

PARTS: dict[str, tuple[Any, str]] = {
    "element": (Element, "an Element"),
    "groups": (Groups, "Groups"),
    "scaling": (Scaling | None, "a Scaling or None"),
}
"""Class of each part of a layout, and its description."""


@dataclass(frozen=True)
class Layout:
    """Composition of a format: elements times the scale of each group.

    A value becomes the element nearest to value/scale. With zero points, it becomes the element
    nearest to value/scale + zero point, and the difference from the zero point is scaled.

    Equal layouts round, encode and decode identically. `chop.formats.reference` is the readable
    implementation. Kernels and exporters have one function per element and one per scaling.

    Attributes:
        element: set of numbers before scaling: its width, code, rounding and range.
        groups: values that share a scale.
        scaling: measurement and storage of scales; None for no scales.
        levels: number of roundings that are added, each of the residual of the previous ones and
            with one scale for the whole tensor; None for one rounding.
        overflow: result of a finite value beyond the range of the tensor's dtype: the dtype's
            largest number, or infinity. Values beyond the largest element always saturate.
    """

    element: Element
    groups: Groups = WHOLE_TENSOR
    scaling: Scaling | None = None
    levels: int | None = None
    overflow: Literal["saturate", "infinity"] = "saturate"

    @property
    def rounding(self) -> Rounding:
        """Rounding of values between two elements."""
        return self.element.rounding

    @property
    def has_zero_points(self) -> bool:
        """True if values become s (k - z), with a zero point z per group, instead of s k."""
        return self.scaling is not None and self.scaling.zero_width > 0

    @property
    def has_nan(self) -> bool:
        """True if an infinity makes its group NaN."""
        return self.scaling is not None and self.scaling.has_nan

    @property
    def ignores_zeros(self) -> bool:
        """True if zeros stay zeros and do not affect scales."""
        if self.levels is not None or self.element.threshold is not None or self.has_zero_points:
            return False
        statistic = None if self.scaling is None else self.scaling.statistic
        return self.element.has_zero and statistic in (None, LARGEST)

    def __post_init__(self) -> None:
        for name, (kind, text) in PARTS.items():
            if not isinstance(part := getattr(self, name), kind):
                raise ConfigError(f"layout: expected {text} as {name}, got {describe(part)}.")
        if not isinstance(getattr(self.element, "width", None), int):
            name = type(self.element).__name__
            raise ConfigError(f"layout: {name} has no width, the bits of a code.")
        if self.has_zero_points and not self._can_have_zero_points():
            raise ConfigError(
                "layout: zero points require elements without a threshold, no levels, and scales "
                f"stored as codes; got {self.element}, {self.scaling}, levels {self.levels}."
            )
        if self.levels is not None:
            in_order = self.groups == WHOLE_TENSOR and self.element.threshold is None
            if not (in_order and self.scaling is not None and self.scaling.stores_floats):
                raise ConfigError(
                    "layout: levels require elements without a threshold and a float scale per "
                    f"tensor; got {self.element}, {self.groups}, {self.scaling}."
                )
            given = self.scaling.given if isinstance(self.scaling, ConstantScale) else None
            if given is not None and len(given) != self.levels:
                raise ConfigError(f"layout: expected {self.levels} scales, got {len(given)}.")

    def _can_have_zero_points(self) -> bool:
        is_coded = self.scaling is not None and not self.scaling.stores_floats
        return is_coded and self.element.threshold is None and self.levels is None

    def split(self, x: Tensor) -> Tensor:
        """Returns the groups of `x`. Padding is NaN with zero points, otherwise zero.

        Neither affects the scales.
        """
        groups = self.groups.split(x)
        if not self.has_zero_points or groups.numel() == x.numel():
            return groups
        return groups.masked_fill(self.groups.split(torch.ones_like(x)) == 0, torch.nan)

    def fitted(self, x: Tensor) -> Layout:
        """Returns the layout with the threshold measured on a tensor, if it has one."""
        threshold = self.element.threshold
        return self.with_threshold(threshold.of(x)) if isinstance(threshold, Threshold) else self

    def with_threshold(self, threshold: float) -> Layout:
        """Returns the layout with another threshold. Its elements must have one."""
        element: Any = dataclasses.replace(self.element, threshold=threshold)  # type: ignore[type-var]
        return dataclasses.replace(self, element=element)

    def counted(self, groups: Tensor) -> Tensor | None:
        """Returns `groups` with NaN for values that do not affect scales; None if all do."""
        threshold = self.element.threshold
        if threshold is None:
            return None
        assert isinstance(threshold, float)
        return groups.masked_fill(groups.abs() <= threshold, torch.nan)

    def with_scales(self, scales: Tensor | None) -> Layout:
        """Returns the layout with learned scales, float32 (n,); None returns it unchanged."""
        return self if scales is None else dataclasses.replace(self, scaling=LearnedScale(scales))
