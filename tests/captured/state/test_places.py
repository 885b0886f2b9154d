"""One comparison of all values: after changes, changes back and the end of what was read."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from chop.captured.state import places
from chop.captured.state.finder import CONTENT, FIELDS, FUNCTION, ITEMS, KEYS, Origin, Owners
from chop.captured.state.places import Places

CODE = (lambda: None).__code__


class Thing:
    """An object whose attributes are read."""

    scale: Any

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def of(owner: Any, part: str, *keys: Any) -> Places:
    owners: Owners = {
        (id(owner), part): (owner, {key: Origin("", f"it.{key}", CODE) for key in keys})
    }
    return Places(owners, {"inner", "scale"}, lambda: None)


Change = Callable[[Any], Any]
STEPS: dict[str, tuple[Any, str, tuple[Any, ...], list[tuple[Change, bool]]]] = {
    "there and back": (
        Thing(scale=2.0),
        FIELDS,
        ("scale",),
        [
            (lambda it: setattr(it, "scale", 5.0), True),
            (lambda it: setattr(it, "scale", float("2")), False),
            (lambda it: setattr(it, "scale", 2), True),
        ],
    ),
    "an attribute that comes and goes": (
        Thing(other=1),
        FIELDS,
        ("other", "scale"),
        [
            (lambda it: setattr(it, "unread", 1), False),
            (lambda it: setattr(it, "scale", None), True),
            (lambda it: delattr(it, "scale"), False),
            (lambda it: delattr(it, "other"), True),
        ],
    ),
    "an equal object, then its attribute": (
        Thing(inner=Thing(scale=2.0)),
        FIELDS,
        ("inner",),
        [
            (lambda it: setattr(it, "inner", copy.deepcopy(it.inner)), False),
            (lambda it: setattr(it.inner, "scale", 5.0), True),
        ],
    ),
    "None in the place of what has ended": (
        Thing(inner=torch.ones(2)),
        FIELDS,
        ("inner",),
        [(lambda it: setattr(it, "inner", None), True)],
    ),
    "items": (
        [1.0, None, 3.0],
        ITEMS,
        (...,),
        [
            (lambda it: it.__setitem__(0, float("1")), False),
            (lambda it: it.append(4.0), True),
            (lambda it: it.pop(), False),
            (lambda it: it.__setitem__(2, 3), True),
        ],
    ),
    "keys in another order": (
        {"a": 1, "b": 1},
        ITEMS,
        (...,),
        [(lambda it: it.update(a=it.pop("a")), True)],
    ),
    "a table of tensors that grows": (
        {"a": torch.ones(2)},
        ITEMS,
        (...,),
        [
            (lambda it: it.update(b=torch.ones(2)), False),
            (lambda it: it.update(a=torch.ones(2)), True),
        ],
    ),
    "an array": (
        np.array([2.0, 0.0]),
        CONTENT,
        (0,),
        [
            (lambda it: it.__setitem__(0, 2.0), False),
            (lambda it: it.__setitem__(1, -0.0), True),
            (lambda it: it.__setitem__(1, 0.0), False),
        ],
    ),
    "variables of a file": (
        {"scale": 2.0, "other": 1},
        KEYS,
        ("scale", "later"),
        [
            (lambda it: it.update(other=2), False),
            (lambda it: it.update(later=2), True),
            (lambda it: it.pop("later"), False),
            (lambda it: it.pop("scale"), True),
        ],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_changes_and_changes_back(name: str) -> None:
    owner, part, keys, steps = copy.deepcopy(STEPS[name])
    compared = of(owner, part, *keys)
    assert compared.changes() == []
    for change, is_said in steps:
        change(owner)
        gc.collect()
        for _ in range(2):
            assert bool(compared.changes()) == is_said


def test_a_function_and_its_closure() -> None:
    scale = 2.0

    def function(x: float, rows: tuple[float, ...] = (1.0,)) -> float:
        return x * scale * rows[0]

    compared = of(function, FUNCTION, "scale", "__defaults__", "__code__", "__kwdefaults__")
    assert compared.changes() == []
    scale = 5.0
    assert "it.scale" in compared.changes()[0]
    scale, function.__defaults__ = 2.0, ((3.0,),)
    assert "it.__defaults__" in compared.changes()[0]
    assert function(1.0) == 6.0


def test_a_quiet_call_looks_into_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    usual = places._Place.changes

    def counted(place: Any) -> list[str]:
        looked.append(type(place))
        return usual(place)

    monkeypatch.setattr(places._Place, "changes", counted)
    one, two = Thing(scale=2.0), Thing(scale=[1.0])
    owners: Owners = {
        (id(x), FIELDS): (x, {"scale": Origin("", "scale", CODE)}) for x in (one, two)
    }
    compared = Places(owners, (), lambda: None)
    assert compared.changes() == [] and not looked
    one.scale = float("2")
    assert compared.changes() == [] and len(looked) == 2
    assert compared.changes() == [] and len(looked) == 2
    ended = weakref.ref(two)
    owners.clear()
    del two
    gc.collect()
    assert ended() is None
    looked.clear()
    assert compared.changes() == [] and looked
    looked.clear()
    assert compared.changes() == [] and not looked
    one.scale = 3.0
    assert "was captured with 2.0" in compared.changes()[0]
