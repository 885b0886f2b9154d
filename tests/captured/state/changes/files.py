"""Changes to variables of files and closures and to functions; changes that nothing reads."""

from __future__ import annotations

import collections
import contextvars
import copy
import functools
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.captured.state.changes.attributes import freeze
from tests.captured.state.changes.model import (
    FOLLOWED,
    Case,
    Mode,
    Options,
    setter,
)

NUMBER = 2.0
ROWS = [2.0, 3.0]
NESTED = {"a": {"b": [2.0]}}
ARRAY = np.array([2.0, 3.0])
QUEUE = collections.deque([2.0])
TENSOR = torch.full((4,), 2.0)
SETTINGS = Options()
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("CONTEXT", default=2.0)
HELD: contextvars.ContextVar[Options] = contextvars.ContextVar("HELD")
HELD.set(Options())
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


def set_global(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: globals().__setitem__(name, value)


def by_import(self: Any, x: Tensor) -> Tensor:
    from settings_of_the_test import scale

    return x * scale


def by_globals(self: Any, x: Tensor) -> Tensor:
    return x * globals()["NUMBER"]


def by_inner(self: Any, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return y * self.number * NUMBER

    return inner(x)


def change_attribute(model: Any) -> None:
    """Puts a function of the same code in the place of another."""
    other = types.FunctionType(by_attribute.__code__, globals())
    other.scale = 5.0  # type: ignore[attr-defined]
    globals()["by_attribute"] = other


def replace_default(model: Any) -> None:
    by_default.__defaults__ = (5.0, [2.0])


def change_code(model: Any) -> None:
    helper.__code__ = (lambda x: x * 7).__code__


CASES: dict[str, Case] = {
    # files, closures, functions
    "import in forward": Case(by_import, lambda m: setattr(MODULE_NAMES, "scale", 5.0)),
    "globals()": Case(by_globals, set_global("NUMBER", 5.0)),
    "function in forward": Case(by_inner, set_global("NUMBER", 5.0)),
    "attribute in a function in forward": Case(by_inner, setter("number", 5.0)),
    "global": Case(lambda self, x: x * NUMBER, set_global("NUMBER", 5.0)),
    "array of a file": Case(
        lambda self, x: x * float(ARRAY[0]), lambda m: ARRAY.__setitem__(0, 5.0)
    ),
    "tensor of a file": Case(lambda self, x: x * TENSOR, set_global("TENSOR", torch.ones(4))),
    "tensor of a file, in place": Case(
        lambda self, x: x * TENSOR, lambda m: TENSOR.fill_(5), FOLLOWED
    ),
    "nested table of a file": Case(
        lambda self, x: x * NESTED["a"]["b"][0], lambda m: NESTED["a"]["b"].__setitem__(0, 5.0)
    ),
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
    "function of the same code": Case(lambda self, x: by_attribute(x), change_attribute),
    "default": Case(lambda self, x: by_default(x), replace_default),
    "mutable default": Case(
        lambda self, x: by_default(x),
        lambda m: by_default.__defaults__[1].insert(0, 5.0),  # type: ignore[index]
    ),
    "mutable default by keyword": Case(
        lambda self, x: by_keyword(x),
        lambda m: by_keyword.__kwdefaults__["rows"].insert(0, 5.0),
    ),
    "object in a closure": Case(IN_CLOSURE, lambda m: setattr(CLOSED_OPTIONS, "scale", 5.0)),
    "number in a closure": Case(IN_CLOSURE, lambda m: CLOSED_CHANGE(5.0)),
    "context variable": Case(lambda self, x: x * CONTEXT.get(), lambda m: CONTEXT.set(5.0)),
    "object in a context variable": Case(
        lambda self, x: x * HELD.get().scale, lambda m: setattr(HELD.get(), "scale", 5.0)
    ),
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
    "an equal global": set_global("NUMBER", float("2")),
    "a field that nothing reads": lambda m: setattr(m.options, "rate", 1.0),
    "weights": lambda m: m.linear.weight.data.zero_(),
    "a key that nothing reads": lambda m: m.forwarding._values.update(rate=1.0, other=2),
    "frozen weights": freeze,
    "another global": set_global("ROWS", [7.0]),
    "modes": lambda m: m.train().eval(),
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
