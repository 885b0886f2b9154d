"""Means and variances, merged over batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.statistics.base import Reduction


@dataclass
class Variance(Reduction):
    """Mean and unbiased variance, as `torch.var`; the variance of a single number is NaN.

    Computed in float64 in two passes over each batch and merged exactly. Both names of MASE
    compute the same.

    Source of the merging: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise
    algorithm for computing sample variances", eq. 2.1.
    """

    name: ClassVar[str] = "variance_online"
    aliases: ClassVar[tuple[str, ...]] = ("variance_precise",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mean = self.squares = torch.zeros((), dtype=torch.float64)

    def observe(self, values: Tensor) -> None:
        """Merges the mean and the sum of squared deviations of the batch."""
        n, total = values.shape[1], self.count + values.shape[1]
        mean = values.mean(1)
        delta = mean - self.mean.to(mean.device)
        between = delta.square() * (self.count * n / total)
        squares = (values - mean[:, None]).square().sum(1)
        self.squares = self.squares.to(mean.device) + squares + between
        self.mean = self.mean.to(mean.device) + delta * (n / total)

    def compute(self) -> dict[str, Any]:
        """Returns `mean` and `variance` in the reduced shape, and `count` per cell."""
        divisor = self.count - 1 if self.count > 1 else float("nan")
        variance = self.reduced(self.squares) / divisor
        return {"mean": self.reduced(self.mean), "variance": variance, "count": self.count}


@dataclass
class NSigmaRange(Reduction):
    """Range from mean - n sigma to mean + n sigma.

    Attributes:
        abs: measures magnitudes.
        num_sigma: n.
        var_mode: accepted for compatibility with MASE; both modes compute the same.
    """

    name: ClassVar[str] = "range_n_sigma"

    abs: bool = False
    num_sigma: float = 3
    var_mode: Literal["online", "precise"] = "online"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._variance = Variance()

    def observe(self, values: Tensor) -> None:
        """Merges the moments of the batch."""
        self._variance.dims = (1,)
        self._variance.update(values.abs() if self.abs else values)

    def compute(self) -> dict[str, Any]:
        """Returns `min`, `max` and `range` in the reduced shape, and `count` per cell."""
        moments = {name: x for name, x in self._variance.compute().items() if name != "count"}
        reach = self.reduced(moments["variance"].sqrt() * self.num_sigma)
        mean = self.reduced(moments["mean"])
        return {"min": mean - reach, "max": mean + reach, "range": 2 * reach, "count": self.count}


@dataclass
class AbsoluteMean(Reduction):
    """Mean of the magnitudes."""

    name: ClassVar[str] = "abs_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.total = torch.zeros((), dtype=torch.float64)

    def observe(self, values: Tensor) -> None:
        """Adds the magnitudes of the batch."""
        self.total = self.total.to(values.device) + values.abs().sum(1)

    def compute(self) -> dict[str, Any]:
        """Returns `abs_mean` in the reduced shape, and `count` per cell."""
        return {"abs_mean": self.reduced(self.total) / self.count, "count": self.count}
