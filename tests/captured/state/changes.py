"""Changes to what a model's Python reads, made after its capture, by name."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import copy
import enum
import functools
import operator
import os
import sys
import threading
import types
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


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 5


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
ROWS = [2.0, 3.0]
NESTED = {"a": {"b": [2.0]}}
ARRAY = np.array([2.0, 3.0])
SET = {2.0}
QUEUE = collections.deque([2.0])
TENSOR = torch.full((4,), 2.0)
SETTINGS = Options()
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("CONTEXT", default=2.0)
LOCAL = threading.local()
LOCAL.scale = 2.0
MODULE_NAMES = types.ModuleType("settings_of_the_test")
MODULE_NAMES.__dict__.update(scale=2.0, __file__=__file__)
sys.modules[MODULE_NAMES.__name__] = MODULE_NAMES


def helper(x: Tensor) -> Tensor:
    return inner_helper(x)


def inner_helper(x: Tensor) -> Tensor:
    return x * NUMBER


def by_default(x: Tensor, scale: float = 2.0, rows: list[float] = [2.0]) -> Tensor:  # noqa: B006
    return x * scale * rows[0]


def by_keyword(x: Tensor, *, rows: list[float] = [2.0]) -> Tensor:  # noqa: B006
    return x * rows[0]


def by_attribute(x: Tensor) -> Tensor:
    return x * by_attribute.scale  # type: ignore[attr-defined, no-any-return]


by_attribute.scale = 2.0  # type: ignore[attr-defined]


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return x * NUMBER


@functools.cache
def cached() -> float:
    return NUMBER


def doubled(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(f)
    def wrapper(*args: Any) -> Tensor:
        return f(*args) * NUMBER

    return wrapper


@doubled
def wrapped(x: Tensor) -> Tensor:
    return x


def closure() -> tuple[Callable[[Any, Tensor], Tensor], Any]:
    rows, options, scale = [2.0, 3.0], Options(), 2.0

    def forward(self: Any, x: Tensor) -> Tensor:
        return x * rows[0] * options.scale * scale

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    return forward, (rows, options, change)


IN_CLOSURE, (CLOSED_ROWS, CLOSED_OPTIONS, CLOSED_CHANGE) = closure()


class Amount:
    """An object that multiplies."""

    def __init__(self) -> None:
        self.scale = 2.0

    def __rmul__(self, x: Tensor) -> Tensor:
        return x * self.scale


class Described:
    """A descriptor."""

    def __init__(self) -> None:
        self.scale = 2.0

    def __get__(self, owner: Any, cls: type | None = None) -> float:
        return self.scale


class Base(nn.Module):
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
        self.slots = Slots()
        self.frozen = Frozen()
        self.forwarding = Forwarding(scale=2.0, rate=0.1, inner=Forwarding(scale=2.0))
        self.attributes = Attributes(scale=2.0, inner=Attributes(scale=2.0))
        self.fields = Fields()
        self.namespace = argparse.Namespace(scale=2.0)
        self.computed = Computed()
        self.called = Scaling()
        self.partial = functools.partial(torch.mul, other=torch.tensor(2.0))
        self.part = functools.partial(F.leaky_relu, negative_slope=0.5)
        self.layers = nn.ModuleList([nn.Tanh(), nn.Sigmoid()])
        self.chain = nn.Sequential(nn.Tanh())
        self.by_name = nn.ModuleDict({"a": nn.Tanh()})
        self.weight = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("mask", torch.full((4,), 2.0))
        self.text = "tanh"
        self.dtype = torch.float32
        self.order = ["tanh", "sigmoid"]
        self.method: Any = self.twice
        self.local_lambda = lambda x: x * self.number
        self.proxied = {"scale": 2.0}
        self.proxy = types.MappingProxyType(self.proxied)
        self.chain_map = collections.ChainMap({}, {"scale": 2.0})
        self.user_dict = collections.UserDict(scale=2.0)
        self.user_list = collections.UserList([2.0])
        self.counter = collections.Counter(a=2)
        self.bytes = bytearray([2])
        self.numbers = array.array("d", [2.0])
        self.by_kind = {"a": torch.tanh}
        self.ops = [lambda x: x * NUMBER]
        self.weights = nn.ParameterList([nn.Parameter(torch.full((4,), 2.0))])
        self.amount = Amount()
        self.exact = Fraction(2)
        self.shared_pair = (self.options, 2.0)
        self.calls = 0
        self.lr = 0.1

    def twice(self, x: Tensor) -> Tensor:
        return x * 2

    @property
    def scale_of(self) -> float:
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


def with_default(self: Any, x: Tensor) -> Tensor:
    return x * getattr(self, "later", 1.0)


def with_hasattr(self: Any, x: Tensor) -> Tensor:
    return x * 3 if hasattr(self, "later") else x


def with_except(self: Any, x: Tensor) -> Tensor:
    try:
        return x * self.later
    except AttributeError:
        return x


def with_dict(self: Any, x: Tensor) -> Tensor:
    return x * self.__dict__["number"]


def with_getter(self: Any, x: Tensor) -> Tensor:
    return x * operator.attrgetter("number")(self)


def by_match(self: Any, x: Tensor) -> Tensor:
    match self.mode:
        case Mode.DOUBLE:
            return x * 2
        case _:
            return x * 3


def by_grad(self: Any, x: Tensor) -> Tensor:
    return x * 2 if self.linear.weight.requires_grad else x * 3


def by_super(self: Any, x: Tensor) -> Tensor:
    return Base.twice(self, x) * self.number


def freeze(model: Any) -> None:
    model.linear.weight.requires_grad_(False)


def by_import(self: Any, x: Tensor) -> Tensor:
    from settings_of_the_test import scale

    return x * scale


def by_globals(self: Any, x: Tensor) -> Tensor:
    return x * globals()["NUMBER"]


def by_comprehension(self: Any, x: Tensor) -> Tensor:
    return x * sum(row for row in self.rows)


def by_inner(self: Any, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return y * self.number * NUMBER

    return inner(x)


def in_loop(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(x)
    return x


def by_order(self: Any, x: Tensor) -> Tensor:
    for name in self.order:
        x = getattr(torch, name)(x)
    return x


def replace_default(model: Any) -> None:
    by_default.__defaults__ = (5.0, [2.0])


def change_code(model: Any) -> None:
    helper.__code__ = (lambda x: x * 7).__code__


CASES: dict[str, Case] = {
    # attributes
    "number": Case(lambda self, x: x * self.number, setter("number", 5.0)),
    "number of another type": Case(
        lambda self, x: x * 2 if isinstance(self.number, float) else x, setter("number", 2)
    ),
    "minus zero": Case(
        lambda self, x: x * 2 if str(self.calls)[0] != "-" else x, setter("calls", -0.0)
    ),
    "flag": Case(lambda self, x: x * 2 if self.flag else x, setter("flag", False)),
    "flag by a number": Case(lambda self, x: x if self.flag is True else x * 2, setter("flag", 1)),
    "text": Case(lambda self, x: getattr(torch, self.text)(x), setter("text", "sigmoid")),
    "dtype": Case(lambda self, x: x.to(self.dtype), setter("dtype", torch.float64)),
    "deleted": Case(
        lambda self, x: x * getattr(self, "number", 1.0), lambda m: delattr(m, "number")
    ),
    "attribute to None": Case(
        lambda self, x: x if self.options is None else x * 2, setter("options", None)
    ),
    "by a property": Case(lambda self, x: x * self.scale_of, setter("number", 5.0)),
    "by a method": Case(lambda self, x: self.twice(x), setter("twice", lambda x: x * 3)),
    "a method that is an attribute": Case(
        lambda self, x: self.method(x), setter("method", lambda x: x * 3)
    ),
    "by a lambda": Case(lambda self, x: self.local_lambda(x), setter("number", 5.0)),
    "by super": Case(by_super, setter("number", 5.0)),
    "by __dict__": Case(with_dict, setter("number", 5.0)),
    "by attrgetter": Case(with_getter, setter("number", 5.0)),
    # attributes that appear
    "later, with a default": Case(with_default, setter("later", 3.0)),
    "later, with hasattr": Case(with_hasattr, setter("later", 3.0)),
    "later, with except": Case(with_except, setter("later", 3.0)),
    "later, of the class": Case(with_default, lambda m: setattr(type(m), "later", 3.0)),
    "later, a buffer": Case(with_default, lambda m: m.register_buffer("later", torch.tensor(3.0))),
    "later, a child": Case(with_hasattr, setter("later", nn.Tanh())),
    "later, of an object": Case(
        lambda self, x: x * getattr(self.options, "later", 1.0),
        lambda m: setattr(m.options, "later", 3.0),
    ),
    "over a value of the class": Case(lambda self, x: x * self.factor, setter("factor", 5.0)),
    # containers
    "item of a list": Case(lambda self, x: x * self.rows[0], lambda m: m.rows.__setitem__(0, 5.0)),
    "longer list": Case(lambda self, x: x * len(self.rows), lambda m: m.rows.append(1.0)),
    "another list": Case(lambda self, x: x * self.rows[0], setter("rows", [5.0])),
    "deep in a table": Case(
        lambda self, x: x * self.table["a"]["b"][0], lambda m: m.table["a"]["b"].insert(0, 5.0)
    ),
    "key of a table": Case(
        lambda self, x: x * 3 if "c" in self.table else x, lambda m: m.table.update(c=1)
    ),
    "list in a tuple": Case(
        lambda self, x: x * self.pair[1][0], lambda m: m.pair[1].__setitem__(0, 5.0)
    ),
    "set": Case(lambda self, x: x * 2 if "c" in self.words else x, lambda m: m.words.add("c")),
    "deque": Case(lambda self, x: x * self.queue[0], lambda m: m.queue.appendleft(5.0)),
    "named tuple": Case(lambda self, x: x * self.fields.scale, setter("fields", Fields(5.0))),
    "order of names": Case(by_order, lambda m: m.order.reverse()),
    "mapping behind a proxy": Case(
        lambda self, x: x * self.proxy["scale"], lambda m: m.proxied.update(scale=5.0)
    ),
    "chain of mappings": Case(
        lambda self, x: x * self.chain_map["scale"], lambda m: m.chain_map.update(scale=5.0)
    ),
    "dictionary of a user": Case(
        lambda self, x: x * self.user_dict["scale"], lambda m: m.user_dict.update(scale=5.0)
    ),
    "list of a user": Case(
        lambda self, x: x * self.user_list[0], lambda m: m.user_list.insert(0, 5.0)
    ),
    "counter": Case(lambda self, x: x * self.counter["a"], lambda m: m.counter.update("a")),
    "bytes": Case(lambda self, x: x * self.bytes[0], lambda m: m.bytes.__setitem__(0, 5)),
    "array of Python": Case(
        lambda self, x: x * self.numbers[0], lambda m: m.numbers.__setitem__(0, 5.0)
    ),
    "key with a default": Case(
        lambda self, x: x * self.counter.get("b", 1), lambda m: m.counter.update("bb")
    ),
    "comprehension": Case(by_comprehension, lambda m: m.rows.append(5.0)),
    "function by name": Case(
        lambda self, x: self.by_kind["a"](x), lambda m: m.by_kind.update(a=torch.sigmoid)
    ),
    "global of a lambda in a list": Case(lambda self, x: self.ops[0](x), set_global("NUMBER", 5.0)),
    "object in a tuple": Case(
        lambda self, x: x * self.shared_pair[0].scale, lambda m: setattr(m.options, "scale", 5.0)
    ),
    "fraction": Case(lambda self, x: x * float(self.exact), setter("exact", Fraction(5))),
    # numpy
    "element of an array": Case(
        lambda self, x: x * float(self.array[0]), lambda m: m.array.__setitem__(0, 5.0)
    ),
    "another array": Case(lambda self, x: x * float(self.array[0]), setter("array", np.ones(2))),
    "number of numpy": Case(
        lambda self, x: x * float(self.np_number), setter("np_number", np.float32(5.0))
    ),
    "array of a file": Case(
        lambda self, x: x * float(ARRAY[0]), lambda m: ARRAY.__setitem__(0, 5.0)
    ),
    # tensors
    "another tensor": Case(lambda self, x: x * self.tensor, setter("tensor", torch.ones(4))),
    "tensor in place": Case(lambda self, x: x * self.tensor, lambda m: m.tensor.fill_(5), FOLLOWED),
    "tensor in a list": Case(
        lambda self, x: x * self.tensors[0], lambda m: m.tensors.__setitem__(0, torch.ones(4))
    ),
    "tensor in a list, in place": Case(
        lambda self, x: x * self.tensors[0], lambda m: m.tensors[0].fill_(5), FOLLOWED
    ),
    "tensor of a file": Case(lambda self, x: x * TENSOR, set_global("TENSOR", torch.ones(4))),
    "tensor of a file, in place": Case(
        lambda self, x: x * TENSOR, lambda m: TENSOR.fill_(5), FOLLOWED
    ),
    "buffer in place": Case(lambda self, x: x * self.mask, lambda m: m.mask.fill_(5), FOLLOWED),
    "another buffer": Case(lambda self, x: x * self.mask, setter("mask", torch.ones(4))),
    "parameter in place": Case(
        lambda self, x: x * self.weight, lambda m: m.weight.data.fill_(5), FOLLOWED
    ),
    "another parameter": Case(
        lambda self, x: x * self.weight, setter("weight", nn.Parameter(torch.ones(4)))
    ),
    "parameter of a layer": Case(
        lambda self, x: x,
        lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 4))),
        FOLLOWED,
    ),
    "value of a buffer": Case(
        lambda self, x: x * 2 if self.mask.sum() > 1 else x, lambda m: m.mask.fill_(0), REFUSED
    ),
    "value of a tensor": Case(
        lambda self, x: x * 2 if self.tensor.sum() > 1 else x, lambda m: m.tensor.fill_(0), REFUSED
    ),
    "requires_grad": Case(by_grad, freeze),
    "parameter in a list": Case(
        lambda self, x: x * self.weights[0],
        lambda m: m.weights.__setitem__(0, nn.Parameter(torch.ones(4))),
        FOLLOWED,
    ),
    # functions and modules
    "another function": Case(lambda self, x: self.act(x), setter("act", torch.sigmoid)),
    "a module for a function": Case(lambda self, x: self.act(x), setter("act", nn.Sigmoid())),
    "another module": Case(lambda self, x: self.module_act(x), setter("module_act", nn.Sigmoid())),
    "another partial": Case(
        lambda self, x: self.part(-x),
        setter("part", functools.partial(F.leaky_relu, negative_slope=0.1)),
    ),
    "keywords of a partial": Case(
        lambda self, x: self.part(-x), lambda m: m.part.keywords.update(negative_slope=0.1)
    ),
    "module in a list": Case(in_loop, lambda m: m.layers.__setitem__(0, nn.Sigmoid())),
    "one module more": Case(in_loop, lambda m: m.layers.append(nn.Sigmoid())),
    "module in a chain": Case(
        lambda self, x: self.chain(x), lambda m: m.chain.__setitem__(0, nn.Sigmoid())
    ),
    "module by name": Case(
        lambda self, x: self.by_name["a"](x), lambda m: m.by_name.update({"a": nn.Sigmoid()})
    ),
    "setting of a layer": Case(
        lambda self, x: F.softshrink(x, self.drop.p), lambda m: setattr(m.drop, "p", 0.5)
    ),
    "setting of a called layer": Case(
        lambda self, x: self.drop(x), setter("drop", nn.Dropout(0.5))
    ),
    # objects
    "enum": Case(by_match, setter("mode", Mode.TRIPLE)),
    "enum's value": Case(lambda self, x: x * self.mode.value, setter("mode", Mode.TRIPLE)),
    "enum of integers": Case(lambda self, x: x * self.level, setter("level", Level.HIGH)),
    "a number for an enum": Case(
        lambda self, x: x if isinstance(self.level, Level) else x * 3, setter("level", 2)
    ),
    "dataclass": Case(
        lambda self, x: x * self.options.scale, lambda m: setattr(m.options, "scale", 5.0)
    ),
    "list of a dataclass": Case(
        lambda self, x: x * self.options.rows[0], lambda m: m.options.rows.insert(0, 5.0)
    ),
    "object in an object": Case(
        lambda self, x: x * 2 if self.options.inner is None else x,
        lambda m: setattr(m.options, "inner", Options()),
    ),
    "another dataclass": Case(
        lambda self, x: x * self.options.scale, setter("options", Options(scale=5.0))
    ),
    "frozen dataclass": Case(lambda self, x: x * self.frozen.scale, setter("frozen", Frozen(5.0))),
    "slots": Case(lambda self, x: x * self.slots.scale, lambda m: setattr(m.slots, "scale", 5.0)),
    "slot that is empty": Case(
        lambda self, x: x * getattr(self.slots, "scale", 1.0), lambda m: delattr(m.slots, "scale")
    ),
    "__getattr__": Case(
        lambda self, x: x * self.forwarding.scale,
        lambda m: m.forwarding._values.update(scale=5.0),
    ),
    "__getattr__, twice": Case(
        lambda self, x: x * self.forwarding.inner.scale,
        lambda m: m.forwarding.inner._values.update(scale=5.0),
    ),
    "__getattr__, later": Case(
        lambda self, x: x * getattr(self.forwarding, "later", 1.0),
        lambda m: m.forwarding._values.update(later=5.0),
    ),
    "keys as attributes": Case(
        lambda self, x: x * self.attributes.inner.scale,
        lambda m: m.attributes.inner.update(scale=5.0),
    ),
    "keys as attributes, by key": Case(
        lambda self, x: x * self.attributes["scale"], lambda m: m.attributes.update(scale=5.0)
    ),
    "namespace": Case(
        lambda self, x: x * self.namespace.scale, lambda m: setattr(m.namespace, "scale", 5.0)
    ),
    "property of an object": Case(
        lambda self, x: x * self.computed.scale, lambda m: setattr(m.computed, "_scale", 5.0)
    ),
    "object that is called": Case(
        lambda self, x: self.called(x), lambda m: setattr(m.called, "scale", 5.0)
    ),
    "operator of an object": Case(
        lambda self, x: self.amount.__rmul__(x), lambda m: setattr(m.amount, "scale", 5.0)
    ),
    "descriptor": Case(
        lambda self, x: x * self.described, lambda m: setattr(vars(Base)["described"], "scale", 5.0)
    ),
    "partial method": Case(
        lambda self, x: self.thrice(x), lambda m: setattr(Base, "thrice", lambda self, x: x * 5)
    ),
    # classes
    "class of the model": Case(
        lambda self, x: x * self.factor, lambda m: setattr(type(m), "factor", 5.0)
    ),
    "method of the class": Case(
        lambda self, x: self.twice(x), lambda m: setattr(type(m), "twice", lambda self, x: x * 3)
    ),
    "method of a base class": Case(
        lambda self, x: self.twice(x), lambda m: setattr(Base, "twice", lambda self, x: x * 3)
    ),
    "static method by another": Case(
        lambda self, x: Shared.apply(x),
        lambda m: setattr(Shared, "apply", staticmethod(lambda x: x * 5)),
    ),
    "class method by another": Case(
        lambda self, x: x * Shared.factor(),
        lambda m: setattr(Shared, "factor", classmethod(lambda cls: 5.0)),
    ),
    "forward of the class": Case(
        lambda self, x: self.twice(x), lambda m: setattr(type(m), "forward", lambda self, x: x * 3)
    ),
    "forward of the model": Case(lambda self, x: self.twice(x), setter("forward", lambda x: x * 3)),
    "class method": Case(
        lambda self, x: x * Shared.factor(), lambda m: setattr(Shared, "scale", 5.0)
    ),
    "static method": Case(lambda self, x: Shared.apply(x), lambda m: setattr(Shared, "scale", 5.0)),
    "table of a class": Case(
        lambda self, x: x * Shared.table["a"], lambda m: Shared.table.update(a=5.0)
    ),
    # files, closures, functions
    "import in forward": Case(by_import, lambda m: setattr(MODULE_NAMES, "scale", 5.0)),
    "globals()": Case(by_globals, set_global("NUMBER", 5.0)),
    "function in forward": Case(by_inner, set_global("NUMBER", 5.0)),
    "attribute in a function in forward": Case(by_inner, setter("number", 5.0)),
    "global": Case(lambda self, x: x * NUMBER, set_global("NUMBER", 5.0)),
    "list of a file": Case(lambda self, x: x * ROWS[1], lambda m: ROWS.__setitem__(1, 5.0)),
    "nested table of a file": Case(
        lambda self, x: x * NESTED["a"]["b"][0], lambda m: NESTED["a"]["b"].__setitem__(0, 5.0)
    ),
    "set of a file": Case(lambda self, x: x * 2 if 5.0 in SET else x, lambda m: SET.add(5.0)),
    "queue of a file": Case(lambda self, x: x * QUEUE[0], lambda m: QUEUE.appendleft(5.0)),
    "object of a file": Case(
        lambda self, x: x * SETTINGS.scale, lambda m: setattr(SETTINGS, "scale", 5.0)
    ),
    "another file": Case(
        lambda self, x: x * MODULE_NAMES.scale, lambda m: setattr(MODULE_NAMES, "scale", 5.0)
    ),
    "function of a library": Case(
        lambda self, x: F.softsign(x), lambda m: setattr(F, "softsign", torch.tanh)
    ),
    "through two functions": Case(lambda self, x: helper(x), set_global("NUMBER", 5.0)),
    "an inner function": Case(lambda self, x: helper(x), set_global("inner_helper", torch.tanh)),
    "code of a function": Case(lambda self, x: helper(x), change_code),
    "decorated by torch": Case(lambda self, x: decorated(x), set_global("NUMBER", 5.0)),
    "decorated by the user": Case(lambda self, x: wrapped(x), set_global("NUMBER", 5.0)),
    "attribute of a function": Case(
        lambda self, x: by_attribute(x), lambda m: setattr(by_attribute, "scale", 5.0)
    ),
    "default": Case(lambda self, x: by_default(x), replace_default),
    "mutable default": Case(
        lambda self, x: by_default(x),
        lambda m: by_default.__defaults__[1].insert(0, 5.0),  # type: ignore[index]
    ),
    "mutable default by keyword": Case(
        lambda self, x: by_keyword(x),
        lambda m: by_keyword.__kwdefaults__["rows"].insert(0, 5.0),
    ),
    "list in a closure": Case(IN_CLOSURE, lambda m: CLOSED_ROWS.__setitem__(0, 5.0)),
    "object in a closure": Case(IN_CLOSURE, lambda m: setattr(CLOSED_OPTIONS, "scale", 5.0)),
    "number in a closure": Case(IN_CLOSURE, lambda m: CLOSED_CHANGE(5.0)),
    "context variable": Case(lambda self, x: x * CONTEXT.get(), lambda m: CONTEXT.set(5.0)),
    "thread": Case(lambda self, x: x * LOCAL.scale, lambda m: setattr(LOCAL, "scale", 5.0)),
    "environment": Case(
        lambda self, x: x * float(os.environ.get("CHOP_TEST_SCALE", "2")),
        lambda m: os.environ.update(CHOP_TEST_SCALE="5"),
    ),
    "environment, by getenv": Case(
        lambda self, x: x * 2 if os.getenv("CHOP_TEST_SCALE") else x,
        lambda m: os.environ.update(CHOP_TEST_SCALE="5"),
    ),
}
"""All change what the model returns."""

UNREAD: dict[str, Callable[[Any], Any]] = {
    "a number that nothing reads": setter("lr", 1.0),
    "a new attribute": setter("epoch", 3),
    "equal values": lambda m: m.__dict__.update(
        number=float("2"), rows=[2.0, 3.0], options=Options(), array=m.array.copy()
    ),
    "copies": lambda m: m.__dict__.update(
        {
            n: copy.deepcopy(getattr(m, n))
            for n in ("options", "forwarding", "slots", "table", "mode")
        }
    ),
    "a field that nothing reads": lambda m: setattr(m.options, "rate", 1.0),
    "a key that nothing reads": lambda m: m.forwarding._values.update(rate=1.0, other=2),
    "weights": lambda m: m.linear.weight.data.zero_(),
    "frozen weights": freeze,
    "modes": lambda m: m.train().eval(),
    "another global": set_global("ROWS", [7.0]),
    "a call": lambda m: m(torch.ones(2, 4)),
    "a call with another size": lambda m: m(torch.ones(7, 4)),
    "another variable of the environment": lambda m: os.environ.update(CHOP_TEST_OTHER="5"),
}
"""Changes after which the model of `reads_much` returns the same for the same input and weights."""


def reads_much(self: Any, x: Tensor) -> Tensor:
    x = self.chain(self.module_act(self.act(x))) * self.number * self.rows[0] * self.kept
    x = x * self.options.scale * self.forwarding.scale * self.slots.scale * self.table["a"]["b"][0]
    x = x * getattr(self, "later", 1.0) * float(self.array[0]) * NUMBER * self.factor
    if os.environ.get("CHOP_TEST_SCALE") or self.mode is Mode.TRIPLE:
        return x
    return helper(x) * self.mask * self.tensor
