"""Statistics for scales and thresholds: of the finite values of a group or a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


def mean_magnitude(groups: Tensor) -> Tensor:
    """Mean of the finite magnitudes of each group, (..., groups, 1)."""
    finite = groups.isfinite()
    total = groups.abs().masked_fill(~finite, 0).sum(-1, keepdim=True)
    return total / finite.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Statistic:
    """A statistic of finite magnitudes; 0 where there are none.

    Attributes:
        kind: the largest one, or the mean.
        quantile: the share of the magnitudes, in (0, 1], that the largest one is taken of, the
            smallest first. What is not finite counts as 0.
        is_signed: False where values below zero count as 0.
    """

    kind: Literal["largest", "mean"] = "largest"
    quantile: float = 1.0
    is_signed: bool = True

    def of(self, groups: Tensor) -> Tensor:
        """(..., groups, 1), of (..., groups, group size); the same dtype."""
        if self.kind == "mean":
            return mean_magnitude(groups)
        values = groups.abs() if self.is_signed else groups.clamp(min=0)
        values = values.nan_to_num(nan=0.0, posinf=0.0)
        kept = math.ceil(self.quantile * values.size(-1))
        if kept == values.size(-1):
            return values.amax(-1, keepdim=True)
        return values.kthvalue(kept, -1, keepdim=True).values


LARGEST, MEAN = Statistic("largest"), Statistic("mean")


@dataclass(frozen=True)
class Threshold:
    """A magnitude that follows a tensor.

    Attributes:
        factor: what the statistic is multiplied by.
        kind: the statistic of the tensor's finite magnitudes; of an even number of them, the
            lower median.
    """

    factor: float
    kind: Literal["mean", "median", "largest"]

    def of(self, x: Tensor) -> float:
        """For a tensor of any shape and dtype, computed in float64; 0 without finite values."""
        finite = x[x.isfinite()].double().abs()
        if finite.numel() == 0:
            return 0.0
        if self.kind == "mean":
            return self.factor * finite.mean().item()
        found = finite.median() if self.kind == "median" else finite.amax()
        return self.factor * found.item()
