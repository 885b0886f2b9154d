"""Means and variances, merged batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.statistics.base import Reduction


@dataclass
class Variance(Reduction):
    """Mean and unbiased variance, as `torch.var`; the variance of one number is NaN.

    Computed in float64 in two passes over each batch, and merged exactly; both of MASE's names
    are the same.

    Source of the merging: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise
    algorithm for computing sample variances", eq. 2.1.
    """

    name: ClassVar[str] = "variance_online"
    aliases: ClassVar[tuple[str, ...]] = ("variance_precise",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mean = self.squares = torch.zeros((), dtype=torch.float64)

    def observe(self, values: Tensor) -> None:
        """Merges the batch's mean and sum of squared deviations."""
        n, total = values.shape[1], self.count + values.shape[1]
        mean = values.mean(1)
        delta = mean - self.mean.to(mean.device)
        between = delta.square() * (self.count * n / total)
        squares = (values - mean[:, None]).square().sum(1)
        self.squares = self.squares.to(mean.device) + squares + between
        self.mean = self.mean.to(mean.device) + delta * (n / total)

    def compute(self) -> dict[str, Any]:
        """`mean` and `variance` in the shape that is kept, and `count` per cell."""
        divisor = self.count - 1 if self.count > 1 else float("nan")
        variance = self.kept(self.squares) / divisor
        return {"mean": self.kept(self.mean), "variance": variance, "count": self.count}


@dataclass
class NSigmaRange(Reduction):
    """mean - n sigma to mean + n sigma.

    Attributes:
        abs: measures magnitudes.
        num_sigma: n.
        var_mode: accepted for MASE's sake; both are the same here.
    """

    name: ClassVar[str] = "range_n_sigma"

    abs: bool = False
    num_sigma: float = 3
    var_mode: Literal["online", "precise"] = "online"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._variance = Variance()

    def observe(self, values: Tensor) -> None:
        """Takes in the batch's moments."""
        self._variance.dims = (1,)
        self._variance.update(values.abs() if self.abs else values)

    def compute(self) -> dict[str, Any]:
        """`min`, `max`, `range` in the shape that is kept, and `count` per cell."""
        found = {name: x for name, x in self._variance.compute().items() if name != "count"}
        reach = self.kept(found["variance"].sqrt() * self.num_sigma)
        mean = self.kept(found["mean"])
        return {"min": mean - reach, "max": mean + reach, "range": 2 * reach, "count": self.count}


@dataclass
class AbsoluteMean(Reduction):
    """Mean of the magnitudes."""

    name: ClassVar[str] = "abs_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.total = torch.zeros((), dtype=torch.float64)

    def observe(self, values: Tensor) -> None:
        """Adds the batch's magnitudes."""
        self.total = self.total.to(values.device) + values.abs().sum(1)

    def compute(self) -> dict[str, Any]:
        """`abs_mean` in the shape that is kept, and `count` per cell."""
        return {"abs_mean": self.kept(self.total) / self.count, "count": self.count}
