"""Formats that were not calibrated follow the training data, and cost what calibrated ones do."""

import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn

from chop.formats import Integer, Quantizer, QuantSpec
from chop.nn.quantized import QuantCall, QuantLinear
from chop.nn.quantized.running import RunningMaximum

AUTO = Integer(8, "auto")
SPEC = QuantSpec(data_in=AUTO, weight=Integer(8, 6))


@pytest.fixture
def layer():
    return QuantLinear.from_float(nn.Linear(6, 4), SPEC).train()


def fraction(layer):
    return layer.operand_format("data_in").frac_width


def test_the_fit_is_to_the_largest_training_tensor_so_far(layer):
    x = torch.randn(32, 6)
    assert layer.operand_format("data_in") == AUTO
    layer(x)
    assert layer.operand_format("data_in") == AUTO.fitted(x)
    layer(x / 64)
    assert layer.operand_format("data_in") == AUTO.fitted(x)
    layer(x * 64)
    assert layer.operand_format("data_in") == AUTO.fitted(x * 64) != AUTO.fitted(x)


def test_what_is_computed_is_what_a_calibrated_layer_computes(layer):
    x, y = torch.randn(32, 6), torch.randn(32, 6) / 16
    layer(x)
    calibrated = layer.with_spec(QuantSpec(AUTO.fitted(x), Integer(8, 6)))
    for model in (layer, layer.eval()):
        assert torch.equal(model(y), calibrated(y))


def test_evaluation_keeps_the_fit_and_without_training_there_is_none(layer):
    x = torch.randn(32, 6)
    layer.eval()
    own = [layer(x), layer(x * 64)]
    for y, seen in zip(own, (x, x * 64), strict=True):
        fitted = layer.with_spec(QuantSpec(AUTO.fitted(seen), Integer(8, 6)))
        assert torch.equal(y, fitted(seen))
    assert not layer.running
    layer.train()(x)
    layer.eval()(x * 64)
    assert layer.operand_format("data_in") == AUTO.fitted(x)


@pytest.mark.parametrize("rule", ["auto", "minmax", "percentile"])
def test_nothing_is_fitted_twice_for_steady_data(layer, rule, monkeypatch):
    layer = layer.with_spec(QuantSpec(data_in=Integer(8, rule))).train()
    calls, fitted = [], Integer.fitted
    monkeypatch.setattr(
        Integer, "fitted", lambda self, x: calls.append(self.is_fitted) or fitted(self, x)
    )
    x = torch.randn(32, 6)
    for scale in (1.0, 0.5, 1.0, 0.9, 0.1):
        layer(x * scale).sum().backward()
    assert calls.count(False) == 1


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_does_not_count(layer, odd):
    x = torch.randn(32, 6)
    layer(x)
    broken = x.clone()
    broken[0, 0] = odd
    layer(broken)
    layer(torch.full((2, 6), odd))
    assert layer.operand_format("data_in") == AUTO.fitted(x)


def test_zeros_and_empty_tensors_say_nothing(layer):
    layer(torch.zeros(3, 6))
    layer(torch.zeros(0, 6))
    assert not layer.running


def test_another_format_starts_anew(layer):
    x = torch.randn(32, 6)
    layer(x)
    other = layer.with_spec(QuantSpec(data_in=Integer(4, "auto"))).train()
    assert other.operand_format("data_in") == Integer(4, "auto")
    other(x / 8)
    assert other.operand_format("data_in") == Integer(4, "auto").fitted(x / 8)
    assert layer.operand_format("data_in") == AUTO.fitted(x)


def test_a_weight_that_was_not_fitted_follows_too():
    layer = QuantLinear(6, 4, config={"weight": AUTO}).train()
    x = torch.randn(3, 6)
    layer(x)
    before = layer.weight.detach().clone()
    assert layer.operand_format("weight") == AUTO.fitted(before)
    with torch.no_grad():
        layer.weight *= 100
    layer(x)
    assert layer.operand_format("weight") == AUTO.fitted(before * 100)


def test_calls_of_functions_have_one_format_per_operand():
    call = QuantCall(torch.add, {"input": "data_in", "other": "data_in"}, {"data_in": AUTO}).train()
    small, large = torch.randn(8) / 64, torch.randn(8)
    call(small, large)
    call(small, large)
    assert call.operand_format("data_in") == AUTO.fitted(large)


def test_a_compiled_layer_uses_what_is_known(layer):
    x = torch.randn(32, 6)
    fresh = torch.compile(layer, fullgraph=True, backend="aot_eager")
    fresh(x)
    assert not layer.running
    layer(x)
    compiled = torch.compile(layer.eval(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x / 16), layer(x / 16))


@pytest.mark.parametrize(
    "way",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_keep_the_range_and_go_on_from_it(layer, way):
    x = torch.randn(32, 6)
    layer(x)
    known = layer.running
    assert known == {"data_in": RunningMaximum(AUTO, x.abs().max().item(), AUTO.fitted(x))}
    with pytest.raises(dataclasses.FrozenInstanceError):
        known["data_in"].largest = 0.0
    again = way(layer)
    assert again.running == known
    again(x * 64)
    assert again.operand_format("data_in") == AUTO.fitted(x * 64)


def test_a_quantizer_that_waits_is_fitted_whatever_it_is(layer):
    class Clamp(Quantizer):
        """Clamps to the largest magnitude of its samples."""

        label, cache_key, is_identity = "clamp", None, False

        def __init__(self, limit=None):
            self.limit = limit

        @property
        def is_fitted(self):
            return self.limit is not None

        def fitted(self, samples):
            return Clamp(samples.abs().max().item())

        def __call__(self, x, gradient="identity"):
            return x if self.limit is None else x.clamp(-self.limit, self.limit)

    waiting = Clamp()
    layer = layer.with_spec(QuantSpec(data_in=waiting)).train()
    layer(torch.full((2, 6), 0.5))
    assert layer.running["data_in"].waiting is waiting
    assert layer.operand_format("data_in").limit == 0.5
    bounded = layer.eval()(torch.full((2, 6), 7.0))
    assert torch.equal(bounded, layer(torch.full((2, 6), 0.5)))
