"""The model whose values change after its capture, and how a change is described."""

from __future__ import annotations

import array
import collections
import enum
import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WARNED, FOLLOWED, REFUSED = "warned", "followed", "refused"


class Mode(enum.Enum):
    DOUBLE = 2.0
    TRIPLE = 3.0


class Rows(enum.Enum):
    SHORT = [2.0]  # noqa: RUF012


class Level(enum.IntEnum):
    LOW = 2


class Fields(NamedTuple):
    scale: float = 2.0


class Slots:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


class Forwarding:
    """A configuration that looks its attributes up in a dictionary."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None


class Attributes(dict[str, Any]):
    """A dictionary whose keys are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    __setattr__ = dict.__setitem__  # type: ignore[assignment]


@dataclass
class Options:
    scale: float = 2.0
    rate: float = 0.1
    inner: Any = None
    rows: list[float] = field(default_factory=lambda: [2.0])


@dataclass(frozen=True)
class Frozen:
    scale: float = 2.0


class Computed:
    """A property over a private attribute."""

    def __init__(self) -> None:
        self._scale = 2.0

    @property
    def scale(self) -> float:
        return self._scale


class Scaling:
    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.scale


class Shared:
    scale = 2.0
    table: ClassVar[dict[str, float]] = {"a": 2.0}

    @classmethod
    def factor(cls) -> float:
        return cls.scale

    @staticmethod
    def apply(x: Tensor) -> Tensor:
        return x * Shared.scale


NUMBER = 2.0


class Amount:
    """An object that multiplies."""

    def __init__(self) -> None:
        self.scale = 2.0

    def __rmul__(self, x: Tensor) -> Tensor:
        return x * self.scale


class Meta(type):
    margin = 2.0


class WithMeta(metaclass=Meta):
    """A class whose class has an attribute."""


class Described:
    """A descriptor."""

    def __init__(self) -> None:
        self.scale = 2.0

    def __get__(self, owner: Any, cls: type | None = None) -> float:
        return self.scale


class Root(nn.Module):
    """A class between torch's and the model's."""


class Base(Root):
    factor = 2.0
    described = Described()
    thrice = functools.partialmethod(lambda self, x, scale: x * scale, scale=NUMBER)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.0)
        self.act: Any = torch.tanh
        self.module_act = nn.Tanh()
        self.number = 2.0
        self.flag = True
        self.rows = [2.0, 3.0]
        self.table: dict[str, Any] = {"a": {"b": [2.0]}}
        self.pair = (2.0, [3.0])
        self.words = {"a", "b"}
        self.queue = collections.deque([2.0])
        self.tensor = torch.full((4,), 2.0)
        self.tensors = [torch.full((4,), 2.0)]
        self.array = np.array([2.0, 3.0])
        self.np_number = np.float32(2.0)
        self.mode: Any = Mode.DOUBLE
        self.level: Any = Level.LOW
        self.options: Any = Options()
        self.short = Rows.SHORT
        self.slots = Slots()
        self.frozen = Frozen()
        self.forwarding = Forwarding(scale=2.0, rate=0.1, inner=Forwarding(scale=2.0))
        self.attributes = Attributes(scale=2.0, inner=Attributes(scale=2.0))
        self.fields = Fields()
        self.computed = Computed()
        self.called = Scaling()
        self.partial = functools.partial(torch.mul, other=torch.tensor(2.0))
        self.part = functools.partial(F.leaky_relu, negative_slope=0.5)
        self.layers = nn.ModuleList([nn.Tanh(), nn.Sigmoid()])
        self.chain = nn.Sequential(nn.Tanh())
        self.by_name = nn.ModuleDict({"a": nn.Tanh()})
        self.weight = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("mask", torch.full((4,), 2.0))
        self.dtype = torch.float32
        self.order = ["tanh", "sigmoid"]
        self.method: Any = self.twice
        self.local_lambda = lambda x: x * self.number
        self.proxied = {"scale": 2.0}
        self.proxy = types.MappingProxyType(self.proxied)
        self.chain_map = collections.ChainMap({}, {"scale": 2.0})
        self.user_dict = collections.UserDict(scale=2.0)
        self.counter = collections.Counter(a=2)
        self.bytes = bytearray([2])
        self.numbers = array.array("d", [2.0])
        self.by_kind = {"a": torch.tanh}
        self.ops = [lambda x: x * NUMBER]
        self.weights = nn.ParameterList([nn.Parameter(torch.full((4,), 2.0))])
        self.amount = Amount()
        self.exact = Fraction(2)
        self.shared_pair = (self.options, 2.0)
        self.reference = weakref.ref(self.options)
        self.weakly = weakref.WeakKeyDictionary({self.computed: 2.0})
        self.view = memoryview(self.bytes)
        self.hidden = [nn.Linear(4, 4)]
        self.calls = 0
        self.lr = 0.1

    def twice(self, x: Tensor) -> Tensor:
        return x * 2

    @property
    def get_scale(self) -> float:
        return self.number

    @functools.cached_property
    def kept(self) -> float:
        return 2.0


@dataclass
class Case:
    """A forward, a change that is made after the capture, and the outcome of a call."""

    forward: Callable[[Any, Tensor], Any]
    change: Callable[[Any], Any]
    outcome: str = WARNED


def setter(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


def set_global(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: globals().__setitem__(name, value)
