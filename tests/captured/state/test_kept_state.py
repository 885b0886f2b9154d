"""State that forward keeps in all sorts of places: put back after a capture, kept by a leaf."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.captured.state.preserve_state import preserve_state
from chop.errors import CaptureError

COUNT = 0.0
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("CONTEXT", default=0.0)
SETTINGS = types.ModuleType("settings_with_a_count")
SETTINGS.__dict__.update(count=0.0, __file__=__file__)


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0.0


class Meta(type):
    count = 0.0


class Counter(metaclass=Meta):
    """An object whose method counts in its file."""

    def step(self) -> float:
        global COUNT
        COUNT += 1
        return COUNT


class Table(dict[str, float]):
    """A dictionary of the user's."""


class Row(list[float]):
    """A list of the user's."""


class Counts(nn.Module):
    """A layer, and objects that count calls."""

    def __init__(self, step: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear, self.step = nn.Linear(4, 4), step
        self.slots, self.pair, self.counter = Slots(), (Slots(), 1), Counter()
        self.array, self.bytes, self.numbers = np.zeros(1), bytearray([0]), array.array("d", [0.0])
        self.options = argparse.Namespace(count=0.0)
        self.table, self.row = Table(count=0.0), Row([0.0])
        self.user = collections.UserDict(count=0.0)
        self.part = functools.partial(_add, [0.0])
        self.hidden = [nn.Tanh()]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (1 + self.step(self))


def _add(row: list[float]) -> float:
    row[0] += 1
    return row[0]


def adds_to(get: Callable[[Any], Any], key: Any = "count") -> Callable[[Any], float]:
    """Returns a step that counts in an attribute, or under a key, of an object."""

    def step(model: Any) -> float:
        owner = get(model)
        if isinstance(key, int) or hasattr(owner, "__setitem__"):
            owner[key] += 1
            return float(owner[key])
        setattr(owner, key, getattr(owner, key, 0.0) + 1)
        return float(getattr(owner, key))

    return step


def in_context(model: Any) -> float:
    CONTEXT.set(CONTEXT.get() + 1)
    return CONTEXT.get()


def in_settings(model: Any) -> float:
    SETTINGS.count += 1
    return float(SETTINGS.count)


def in_globals(model: Any) -> float:
    globals()["COUNT"] = COUNT + 1
    return COUNT


def in_itself(model: Any) -> float:
    in_itself.count = getattr(in_itself, "count", 0.0) + 1  # type: ignore[attr-defined]
    return in_itself.count  # type: ignore[attr-defined, no-any-return]


def in_a_class(model: Any) -> float:
    Slots.calls = getattr(Slots, "calls", 0.0) + 1  # type: ignore[attr-defined]
    return Slots.calls  # type: ignore[attr-defined, no-any-return]


def in_a_metaclass(model: Any) -> float:
    Meta.count += 1
    return Counter.count


def in_a_default(model: Any, row: list[float] = [0.0]) -> float:  # noqa: B006
    row[0] += 1
    return row[0]


def in_a_keyword(model: Any, *, table: dict[str, float] = {}) -> float:  # noqa: B006
    table["count"] = table.get("count", 0.0) + 1
    return table["count"]


STEPS: dict[str, Callable[[Any], float]] = {
    "slots": adds_to(lambda model: model.slots),
    "object in a tuple": adds_to(lambda model: model.pair[0]),
    "method of an object": lambda model: model.counter.step(),  # type: ignore[no-any-return]
    "array of numpy": adds_to(lambda model: model.array, 0),
    "bytes": adds_to(lambda model: model.bytes, 0),
    "array of Python": adds_to(lambda model: model.numbers, 0),
    "namespace of argparse": adds_to(lambda model: model.options),
    "dictionary of a user": adds_to(lambda model: model.table),
    "list of a user": adds_to(lambda model: model.row, 0),
    "user's dictionary of Python": adds_to(lambda model: model.user),
    "list of a partial": lambda model: model.part(),  # type: ignore[no-any-return]
    "module in a plain list": adds_to(lambda model: model.hidden[0]),
    "context": in_context,
    "another file": in_settings,
    "globals": in_globals,
    "function": in_itself,
    "class": in_a_class,
    "metaclass": in_a_metaclass,
    "default": in_a_default,
    "default of a keyword": in_a_keyword,
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.sampled(3)
def test_state_is_put_back_and_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, SETTINGS.__name__, SETTINGS)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), Counts(STEPS[name])).eval(), torch.randn(3, 4)
    with preserve_state(model, thorough=True):
        expected = [model(x) for _ in range(3)]
    assert not expected[0].equal(expected[1])
    with pytest.warns(CaptureWarning, match="keeps state between calls"):
        captured = capture(model, {"input": x})
    with preserve_state(model, thorough=True):
        assert all(map(torch.equal, [captured(x) for _ in range(3)], expected))
    with preserve_state(captured, thorough=True):
        assert all(map(torch.equal, [captured(x) for _ in range(3)], expected))


class Late:
    """A class without attributes of its own."""


def add_deeply() -> None:
    Late.deep = getattr(Late, "deep", 0.0) + 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["own", "deep"])
def test_attributes_that_forward_adds_to_classes_are_taken_away(name: str) -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if name == "own":
                Late.own = getattr(Late, "own", 0.0) + 1  # type: ignore[attr-defined]
            else:
                add_deeply()
            return x * getattr(Late, name)  # type: ignore[no-any-return]

    with pytest.raises(CaptureError, match=f"keeps state between calls in Late.{name}"):
        capture(Adds(), {"x": torch.ones(2, 4)})
    assert name not in vars(Late)


def test_what_cannot_be_put_back_is_left_alone() -> None:
    unset: contextvars.ContextVar[float] = contextvars.ContextVar("unset")
    fixed = np.zeros(1)
    fixed.flags.writeable = False
    kept = {"unset": unset, "fixed": fixed, "large": Row([1.0] * 5000)}

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = kept

        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + float(self.kept["fixed"][0])) * len(self.kept["large"])

    x = torch.ones(2, 4)
    assert capture(Reads(), {"x": x})(x).equal(x * 5000)
    with pytest.raises(LookupError):
        unset.get()
