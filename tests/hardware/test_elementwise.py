"""Circuits of operators that treat each code by itself, against the operators."""

from dataclasses import replace

import pytest

from chop.nn.integer import Edge, IntegerReLU
from tests.hardware.bench import check, drawn, needs_tools

pytestmark = needs_tools


@pytest.mark.parametrize(
    ("low", "high", "shape", "fold"),
    [
        (-128, 127, (17, 12), 204),
        (-128, 127, (17, 12), 17),
        (-7, 3, (10,), 2),
        (-1, 0, (1,), 1),
        (-9, -3, (3, 5), 5),
        (-(2**40), 2**41, (2, 3), 3),
    ],
)
def test_relu(low, high, shape, fold):
    edge = Edge.of(0.5, low, high)
    out = replace(edge, low=max(low, 0), high=max(high, 0))
    check(IntegerReLU(out), drawn(edge, *shape), fold=fold)
