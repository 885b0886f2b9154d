"""Statistics of the finite values of a group or tensor, for scales and thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from chop.config import with_checked_arguments


@with_checked_arguments
def even_sample(x: Tensor, count: int) -> Tensor:
    """Returns at most `count` elements of `x`, flattened, sampled with a fixed seed.

    Random sampling is used because a regular stride would see only some columns of a matrix.

    Args:
        x: any shape.
        count: largest number of elements.
    """
    flat = x.reshape(-1)
    if flat.numel() <= count:
        return flat
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(flat.numel(), (count,), generator=generator)
    return flat[index.to(flat.device)]


def mean_magnitude(groups: Tensor) -> Tensor:
    """Returns the mean of the finite magnitudes of each group, (..., groups, 1)."""
    finite = groups.isfinite()
    total = groups.abs().masked_fill(~finite, 0).sum(-1, keepdim=True)
    return total / finite.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Statistic:
    """Statistic of finite magnitudes; 0 if there are none.

    Attributes:
        kind: largest magnitude or mean.
        quantile: share of the magnitudes, in (0, 1], from the smallest up, whose largest is taken.
            Non-finite values count as 0.
        is_signed: False to count negative values as 0.
    """

    kind: Literal["largest", "mean"] = "largest"
    quantile: float = 1.0
    is_signed: bool = True

    def of(self, groups: Tensor) -> Tensor:
        """Returns the statistic of groups, (..., groups, group size), as (..., groups, 1)."""
        if self.kind == "mean":
            return mean_magnitude(groups)
        values = groups.abs() if self.is_signed else groups.clamp(min=0)
        values = values.nan_to_num(nan=0.0, posinf=0.0)
        rank = math.ceil(self.quantile * values.size(-1))
        if rank == values.size(-1):
            return values.amax(-1, keepdim=True)
        return values.kthvalue(rank, -1, keepdim=True).values  # ranks count from 1


LARGEST, MEAN = Statistic("largest"), Statistic("mean")


@dataclass(frozen=True)
class Threshold:
    """Magnitude threshold that depends on a tensor.

    Attributes:
        factor: factor of the statistic.
        kind: statistic of the tensor's finite magnitudes; the lower median for even counts.
    """

    factor: float
    kind: Literal["mean", "median", "largest"]

    def of(self, x: Tensor) -> float:
        """Returns the threshold of a tensor, computed in float64; 0 without finite values."""
        finite = x[x.isfinite()].double().abs()
        if finite.numel() == 0:
            return 0.0
        if self.kind == "mean":
            return self.factor * finite.mean().item()
        statistic = finite.median() if self.kind == "median" else finite.amax()
        return self.factor * statistic.item()
