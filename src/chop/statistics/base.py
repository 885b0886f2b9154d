"""Statistics: their base class and registry."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.config import parse
from chop.errors import ConfigError, did_you_mean

STATISTICS: dict[str, type[Statistic]] = {}
"""Every statistic by its name in configs."""


@dataclass
class Statistic(ABC):
    """Statistic of a stream of tensors. Subclasses register under `name` and `aliases`.

    Attributes:
        device: where to compute; None stays where the tensors are.
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
        """Takes in the next tensor of the stream.

        Args:
            x: any shape and real dtype.
            hidden: boolean of that shape, True where an element does not count; None: all count.
        """

    @abstractmethod
    def compute(self) -> dict[str, Any]:
        """The statistic of all tensors so far.

        Raises:
            ConfigError: there were none.
        """


@dataclass
class Reduction(Statistic):
    """A statistic of numbers, kept apart along the axes that are not reduced.

    Attributes:
        dims: the axes that are reduced: `"all"`, a list of axes, or None for none. Channels of
            (N, C, H, W) are kept apart by `[0, 2, 3]`. All tensors of the stream add to the same
            numbers.
    """

    dims: Literal["all"] | tuple[int, ...] | None = "all"

    def __post_init__(self) -> None:
        self.kept_shape: tuple[int, ...] | None = None
        self.count = 0

    def update(self, x: Tensor, hidden: Tensor | None = None) -> None:
        """Takes in the next tensor; the sizes of the axes that are kept must not change.

        Args:
            x: any shape and real dtype.
            hidden: boolean of that shape, True where an element does not count; None: all count.
                Where it is not the same for all cells that are kept, numbers of which some cells
                are hidden are left out of all.

        Raises:
            ConfigError: they do, or an axis is missing.
        """
        x = x.detach().to(self.device or x.device, torch.float64)
        kept = self._kept_axes(x)
        shape = tuple(x.shape[axis] for axis in kept)
        if self.kept_shape not in (None, shape):
            raise ConfigError(
                f"{self.name}.dims: the axes that are kept had the sizes {self.kept_shape} and "
                f"then {shape}; reduce those that vary."
            )
        self.kept_shape = shape
        others = [axis for axis in range(x.dim()) if axis not in kept]
        numbers = math.prod(x.shape[axis] for axis in others)
        cells, order = math.prod(shape), [*kept, *others]
        values = x.permute(order).reshape(cells, numbers)
        if hidden is not None and cells:
            values = values[:, ~hidden.permute(order).reshape(cells, numbers).any(0)]
        if values.shape[1]:
            self.observe(values)
            self.count += values.shape[1]

    @abstractmethod
    def observe(self, values: Tensor) -> None:
        """Takes in `values` (cells, numbers), float64; `count` is still that before them."""

    def kept(self, values: Tensor) -> Tensor:
        """`values` (cells, ...) in the shape of the axes that are kept.

        Raises:
            ConfigError: nothing was observed.
        """
        if self.kept_shape is None or self.count == 0:
            raise ConfigError(f"{self.name}: nothing was observed.")
        return values.reshape([*self.kept_shape, *values.shape[1:]])

    def _kept_axes(self, x: Tensor) -> list[int]:
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
        ConfigError: there is none of that name, or a setting is unknown or of the wrong type.
    """
    if name not in STATISTICS:
        raise ConfigError(f"{where}: unknown statistic '{name}': {did_you_mean(name, STATISTICS)}")
    return parse(STATISTICS[name], settings, f"{where}['{name}']")
