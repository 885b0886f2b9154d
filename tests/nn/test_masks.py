"""The mask of a pruned weight, as every quantized operator carries it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.formats import Integer, QuantSpec
from chop.nn.quantized import QuantConv2d, QuantLinear


@pytest.fixture
def pruned():
    """A float Linear whose odd columns are hidden."""
    torch.manual_seed(0)
    layer = QuantLinear.from_float(nn.Linear(6, 4), QuantSpec())
    layer.register_buffer("weight_mask", (torch.arange(6) % 2 == 0).expand(4, 6).clone())
    return layer


def test_what_the_mask_hides_is_zero_and_gets_no_gradient(pruned):
    x = torch.randn(3, 6)
    y = pruned(x)
    torch.testing.assert_close(y, F.linear(x[:, ::2], pruned.weight[:, ::2], pruned.bias))
    y.sum().backward()
    assert (pruned.weight.grad[:, 1::2] == 0).all()
    assert (pruned.weight.grad[:, ::2] != 0).all()
    assert (pruned.weight != 0).all(), "the stored weight stays dense"


def test_the_mask_survives_other_formats_and_copies(pruned):
    again = copy.deepcopy(pruned.with_spec(QuantSpec.uniform(Integer(8, 5))))
    assert again.is_pruned and torch.equal(again.weight_mask, pruned.weight_mask)
    assert again.spec.weight == Integer(8, 5)
    x = torch.randn(3, 6)
    x[:, ::2] = 0
    assert torch.equal(again(x), again(torch.zeros(3, 6)))


def test_a_derived_fraction_does_not_see_what_is_hidden(pruned):
    with torch.no_grad():
        pruned.weight[:, 1::2] = 1000
    spec = pruned.with_spec(QuantSpec(weight=Integer(8, "minmax"))).spec
    assert spec.weight.frac_width == Integer(8, "minmax").fitted(pruned.weight[:, ::2]).frac_width


def test_a_mask_hides_what_is_not_a_number():
    layer = QuantConv2d.from_float(nn.Conv2d(1, 1, 1), QuantSpec())
    with torch.no_grad():
        layer.weight.fill_(float("nan"))
    layer.register_buffer("weight_mask", torch.zeros(1, 1, 1, 1, dtype=torch.bool))
    assert torch.equal(layer(torch.ones(1, 1, 1, 1)).flatten(), layer.bias)
