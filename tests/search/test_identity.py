"""Identity of option values: equal for equal values in every process, another for others."""

import dataclasses
import functools
import math
import os
import subprocess
import sys
from enum import Enum

import numpy as np
import pytest
import torch
from torch import nn

from chop.formats import Integer
from chop.problems.nas.architecture import SQUARE_LAYERS
from chop.search.identity import get_identity


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


class Plain:
    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def derived(self):
        return self.x + 1


class Itself:
    def __init__(self):
        self.own = self


def closing_over(n):
    return lambda x: x + n


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(2, 2)


DIFFERENT = {
    "number": (1, 2),
    "type": (1, 1.0),
    "bool": (1, True),
    "text": ("1", 1),
    "sign": (0.0, -0.0),
    "none": (None, "null"),
    "tuple": ((1, 2), (2, 1)),
    "list": ([1], (1,)),
    "mapping": ({"a": 1}, {"a": 2}),
    "set": ({"a", "b"}, {"a", "c"}),
    "enum": (Color.RED, Color.BLUE),
    "class": (nn.ReLU, nn.GELU),
    "function": (torch.relu, torch.tanh),
    "numpy function": (np.sin, np.cos),
    "partial": (functools.partial(round, ndigits=1), functools.partial(round, ndigits=2)),
    "lambda": (lambda x: x + 1, lambda x: x + 2),
    "closure": (closing_over(1), closing_over(2)),
    "method": ("a".upper, "b".upper),
    "dataclass": (Point(1.0), Point(2.0)),
    "object": (Plain(1), Plain(2)),
    "tensor": (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
    "dtype": (torch.float16, torch.bfloat16),
    "array": (np.arange(300), np.arange(300) + 1),
    "numpy number": (np.float32(1), np.float64(1)),
    "module": (nn.Dropout(0.1), nn.Dropout(0.2)),
    "weights": (linear(0), linear(1)),
    "format": (Integer(8, 4), Integer(8, 5)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_values_have_another_identity(name):
    first, second = DIFFERENT[name]
    assert get_identity(first) == get_identity(first) != get_identity(second)
    assert get_identity([first, first]) != get_identity([first, second])


def test_what_was_asked_of_an_object_changes_nothing():
    asked = Plain(1)
    assert asked.derived == 2 and get_identity(asked) == get_identity(Plain(1))
    used = Integer(8, 4)
    used(torch.randn(3))
    assert get_identity(used) == get_identity(Integer(8, 4))
    one = (1, 2)
    assert get_identity([one, one]) == get_identity([(1, 2), tuple(range(1, 3))])


def test_a_lambda_may_move():
    assert get_identity(lambda x: x + 1) == get_identity((lambda: lambda x: x + 1)())
    assert get_identity(closing_over(1)) == get_identity(closing_over(1))


def test_any_value_has_an_identity():
    assert get_identity(Itself()) == get_identity(Itself())
    assert get_identity(math.nan) == get_identity(float("nan"))
    assert get_identity(iter([])) and get_identity(n for n in ()) and get_identity(math)
    assert len(get_identity(torch.zeros(10_000))) <= 200


PROGRAM = """
from chop.problems.nas.architecture import SQUARE_LAYERS
from chop.search.identity import get_identity
found = [get_identity(value) for value in ({"b", "a", "c"}, 1.5, max, lambda x: x + 1)]
"""


@pytest.mark.long
def test_it_is_the_same_in_another_process():
    here = {"__name__": "__main__"}
    exec(PROGRAM, here)
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", f"{PROGRAM}print(found)"]
    there = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert there.stdout.strip() == str(here["found"])


def test_builtins_have_their_module_and_strange_values_have_an_identity():
    import cmath

    assert get_identity(math.sqrt) != get_identity(cmath.sqrt)

    def unassigned():
        return late

    assert get_identity(unassigned) == get_identity(unassigned)
    late = 1
    assert get_identity(torch.empty(2, device="meta")) != get_identity(
        torch.empty(3, device="meta")
    )


def test_names_in_studies_are_older_than_the_places_of_functions():
    """Written by a version whose problems were no package of their own."""
    known = r'["builtins.function", "chop.nas.architecture.linear"]'
    assert get_identity(SQUARE_LAYERS["Linear"]) == known
