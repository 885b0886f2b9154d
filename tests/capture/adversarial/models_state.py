"""Models that remember: counters, caches, buffers, statistics, globals, attributes set."""

from __future__ import annotations

import copy
import functools
import itertools
import warnings

import torch
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@functools.lru_cache
def table(width: int) -> Tensor:
    return torch.arange(width, dtype=torch.float32)


@case()
class CallCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


@case("equal", reset=table.cache_clear, reason="a size that keys a cache fixes all sizes")
class CachedTable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + table(x.shape[1])


@case(reset=table.cache_clear)
class CachedTableByBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + table(x.shape[0])[:, None]


@case()
class CacheDictByShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[object, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        key = tuple(x.shape)
        if key not in self.cache:
            self.cache[key] = torch.ones(key) * len(self.cache)
        return x + self.cache[key]


@case()
class KeepsPrevious(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.previous: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean()
        y = x if self.previous is None else x + self.previous
        self.previous = mean
        return y


class SetsAuxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        self.loss = y.pow(2).mean()
        return y


@case()
class AuxiliaryLossOfChild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = SetsAuxiliary()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x) + self.child.loss


@case(reason="an iterator that the capture has advanced cannot be put back")
class AttributeSchedule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        return x / next(self.temperature)


@case()
class WarnsOnce(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("slow path", stacklevel=2)
        return x + 1


@case()
class DeepcopiesInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return copy.deepcopy(self.fc)(x) + self.fc(x)


@case()
class NewModuleInForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.LayerNorm(WIDTH)(x) + nn.ReLU()(x)


@case()
class RandomModuleInForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear(WIDTH, WIDTH)(x)


@case("refused")
class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@case()
class SwapsLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.a, self.b = self.b, self.a
        return self.a(x)


class Helper:
    """A plain object that holds state."""

    def __init__(self) -> None:
        self.total = torch.zeros(WIDTH)
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.total = self.total + x.detach().sum(0)
        return x + self.total / self.calls


@case()
class StatefulHelper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x)
