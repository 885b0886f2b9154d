"""Base class and registry of statistics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.config import parse
from chop.errors import ConfigError, did_you_mean, first_line

STATISTICS: dict[str, type[Statistic]] = {}
"""Statistics by their names in configs."""


@dataclass
class Statistic(ABC):
    """Statistic of a stream of tensors. Subclasses register under `name` and `aliases`.

    Attributes:
        device: device of the computation. Default: that of the tensors.
    """

    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()

    device: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in (cls.name, *cls.aliases) if cls.name else ():
            if STATISTICS.get(name, cls).__qualname__ != cls.__qualname__:
                raise ConfigError(f"two statistics are called '{name}'.")
            STATISTICS[name] = cls

    @abstractmethod
    def update(self, x: Tensor, hidden: Tensor | None = None) -> None:
        """Adds the next tensor of the stream.

        Args:
            x: any shape and real dtype.
            hidden: boolean of the same shape, true for elements that do not count. Default: none.
        """

    @abstractmethod
    def compute(self) -> dict[str, Any]:
        """The statistic of all tensors so far.

        Raises:
            ConfigError: if there were none.
        """


@dataclass
class Reduction(Statistic):
    """A statistic of numbers, computed separately along the axes that are not reduced.

    Attributes:
        dims: reduced axes: `"all"`, a list of axes, or None for none. `[0, 2, 3]` gives one
            statistic for each channel of (N, C, H, W).
    """

    dims: Literal["all"] | tuple[int, ...] | None = "all"

    def __post_init__(self) -> None:
        self.reduced_shape: tuple[int, ...] | None = None
        self.count = 0

    def update(self, x: Tensor, hidden: Tensor | None = None) -> None:
        """Adds the next tensor. The sizes of the axes that are not reduced must not change.

        Args:
            x: any shape and real dtype.
            hidden: boolean of the same shape, true for elements that do not count. Default: none.
                A number that is hidden in one cell is ignored in all.

        Raises:
            ConfigError: if these sizes changed, or an axis does not exist.
        """
        x = x.detach().to(self.device or x.device, torch.float64)
        remaining = self._remaining_axes(x)
        shape = tuple(x.shape[axis] for axis in remaining)
        if self.reduced_shape not in (None, shape):
            raise ConfigError(
                f"{self.name}.dims: the sizes of the axes that are not reduced changed from "
                f"{self.reduced_shape} to {shape}; reduce the axes that vary."
            )
        self.reduced_shape = shape
        others = [axis for axis in range(x.dim()) if axis not in remaining]
        numbers = math.prod(x.shape[axis] for axis in others)
        cells, order = math.prod(shape), [*remaining, *others]
        values = x.permute(order).reshape(cells, numbers)
        if hidden is not None and cells:
            values = values[:, ~hidden.permute(order).reshape(cells, numbers).any(0)]
        if values.shape[1]:
            self.observe(values)
            self.count += values.shape[1]

    @abstractmethod
    def observe(self, values: Tensor) -> None:
        """Adds `values` (cells, numbers), float64. `count` does not include them yet."""

    def reduced(self, values: Tensor) -> Tensor:
        """Returns `values` (cells, ...) in the shape of the axes that are not reduced.

        Raises:
            ConfigError: if nothing was observed.
        """
        if self.reduced_shape is None or self.count == 0:
            raise ConfigError(f"{self.name}: nothing was observed.")
        return values.reshape([*self.reduced_shape, *values.shape[1:]])

    def _remaining_axes(self, x: Tensor) -> list[int]:
        if self.dims == "all":
            return []
        reduced = self.dims or ()
        for axis in reduced:
            if not -x.dim() <= axis < x.dim():
                raise ConfigError(
                    f"{self.name}.dims: got axis {axis}, the tensor has {x.dim()} axes."
                )
        return [axis for axis in range(x.dim()) if axis not in {a % x.dim() for a in reduced}]


def make_statistic(name: str, settings: Mapping[str, Any] | None, where: str) -> Statistic:
    """A fresh statistic from its name and settings.

    Raises:
        ConfigError: if there is none of that name, a setting is unknown or of the wrong type, or
            the device is not available.
    """
    if name not in STATISTICS:
        raise ConfigError(f"{where}: unknown statistic '{name}': {did_you_mean(name, STATISTICS)}")
    statistic = parse(STATISTICS[name], settings, f"{where}['{name}']")
    try:
        torch.zeros(1, device=statistic.device).item()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        raise ConfigError(
            f"{where}['{name}'].device: '{statistic.device}' is not available here "
            f"({first_line(error)}); omit it for the device of the tensors."
        ) from error
    return statistic
