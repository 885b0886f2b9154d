"""The comparison by the rounding edge takes either neighbor at a tie, and no other number."""

import pytest
import torch
from torch import nn

from chop.formats import Integer, QuantSpec
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear
from tests.rounding import agree, nudged

STEP = 2.0**-4


def layers(kind):
    """Two layers, inputs and results in steps of 1/16, and an input whose first sum is a tie."""
    spec = QuantSpec.uniform(Integer(8, 4))
    first = QuantLinear.from_float(nn.Linear(4, 3), spec)
    last = QuantLinear.from_float(nn.Linear(3, 2), spec)
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.copy_(torch.randint(-8, 9, layer.weight.shape) * STEP)
            layer.bias.zero_()
        first.weight[:, 0], first.weight[0] = 0.0, torch.tensor([0.5, 0.0, 0.0, 0.0])
        last.weight[:, 0] = 1.0
    if kind == "packed":
        first, last = pack(first), pack(last)
    return nn.Sequential(first, last).eval(), torch.tensor([[STEP, -1.0, 1.0, 2.0]])


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_either_neighbor_of_a_tie_is_right_and_what_follows(kind):
    model, x = layers(kind)

    def run():
        return model(x)

    y = run().detach()
    assert agree(y, run)
    # Ties go to even, to 0: another processor's sum may be a little more, and go to a step.
    assert agree(y + STEP, run)
    assert not agree(y + torch.tensor([[STEP * 8, 0.0]]), run)
    assert not agree(y.double(), run) and not agree(y[:, :1], run)


def test_without_a_tie_no_other_number_is_right():
    model, x = layers("plain")
    x = x + torch.tensor([[STEP, 0.0, 0.0, 0.0]])

    def run():
        return model(x)

    y = run().detach()
    assert agree(y, run) and agree(y * (1 + 1e-7), run)
    assert not agree(y + torch.tensor([[STEP, 0.0]]), run)


def test_parameters_and_zeros_are_exact():
    layer = QuantLinear.from_float(nn.Linear(4, 3, bias=False), QuantSpec.uniform(Integer(8, 4)))
    with torch.no_grad():
        layer.weight.fill_(STEP / 2)  # a tie, as written
    x, before = torch.ones(2, 4), layer(torch.ones(2, 4))
    with nudged(0):
        assert torch.equal(layer(x), before) and torch.equal(layer(x * 0), before * 0)
    assert torch.equal(layer(x), before)
