"""Circuits of sums and means, against the operators."""

import pytest
import torch

from chop.errors import ConfigError
from chop.nn.integer import Edge, IntegerMean, IntegerSum
from tests.hardware.bench import PROFILES, check, drawn, needs_tools

pytestmark = needs_tools
BYTES = Edge.of(0.25, -128, 127)
SOME = ("uniform", "bursts")


@pytest.mark.parametrize(
    ("kind", "shape", "dims", "keepdim", "fold", "profiles"),
    [
        (IntegerMean, (17, 48), (-2,), False, 204, PROFILES),
        (IntegerSum, (17, 12), (-1,), True, 51, PROFILES),
        (IntegerSum, (5, 7), (-1,), False, 99, SOME),
        (IntegerMean, (13, 3), (-2,), True, 1, ("none", *SOME)),
        (IntegerSum, (2, 3, 5), (-3, -1), False, 1, SOME),
        (IntegerMean, (3, 4, 2), (-1, -2), False, 1, ("none", *SOME)),
        (IntegerSum, (6, 1), (-1,), False, 1, SOME),
        (IntegerSum, (11,), (-1,), True, 1, SOME),
    ],
)
@pytest.mark.sampled(1)
def test_sum(kind, shape, dims, keepdim, fold, profiles):
    operator = kind(BYTES, (4, *shape), dims, keepdim)
    positions = None
    if dims == (-3, -1):
        positions = torch.arange(30).view(3, 5, 2).permute(2, 0, 1)
    check(operator, drawn(BYTES, *shape, positions=positions), fold=fold, profiles=profiles)


@pytest.mark.parametrize(
    ("dims", "message"), [((-3, -1), "equally spaced"), ((-4,), "batch dimension")]
)
def test_sums_without_a_circuit_are_refused(dims, message):
    with pytest.raises(ConfigError, match=message):
        check(IntegerSum(BYTES, (4, 2, 3, 5), dims, False), drawn(BYTES, 2, 3, 5))
