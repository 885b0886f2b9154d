"""Linear layers with a low-rank adapter."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.nn.lora import LoraLinear, freeze, unfreeze
from chop.nn.quantized import QuantLinear

GRID = QuantSpec.uniform(Integer(8, 4))


def trained(linear, **settings):
    """An adapted layer whose adapter is no longer zero."""
    layer = LoraLinear.around(linear, **{"rank": 3, "alpha": 2.0, **settings})
    nn.init.normal_(layer.lora_B.weight)
    return layer


@pytest.mark.parametrize("quantized", [False, True])
def test_a_new_adapter_changes_no_output(quantized):
    linear = nn.Linear(6, 4)
    linear = QuantLinear.from_float(linear, GRID) if quantized else linear
    x = torch.randn(2, 5, 6)
    expected = linear(x)
    layer = LoraLinear.around(linear, rank=3)
    assert torch.equal(layer(x), expected)
    assert set(layer.state_dict()) == {"weight", "bias", "lora_A.weight", "lora_B.weight"}
    assert layer.weight is linear.weight and set(linear.state_dict()) == {"weight", "bias"}
    bound = math.sqrt(3) * math.sqrt(2 / (1 + 5)) / math.sqrt(6)  # Kaiming-uniform, a = sqrt 5
    assert 0.5 * bound < layer.lora_A.weight.abs().max() <= bound


@pytest.mark.parametrize("use_rslora, scaling", [(False, 2 / 3), (True, 2 / math.sqrt(3))])
def test_the_adapter_adds_a_scaled_product(use_rslora, scaling):
    layer = trained(nn.Linear(6, 4), use_rslora=use_rslora, dropout=0.5).eval()
    x = torch.randn(5, 6)
    weight = layer.weight + scaling * layer.lora_B.weight @ layer.lora_A.weight
    torch.testing.assert_close(layer(x), F.linear(x, weight, layer.bias))
    layer.train()
    assert not torch.equal(layer(x), layer(x)), "dropout draws anew"
    with torch.no_grad():
        layer.lora_B.weight.zero_()
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias)), "only the adapter drops"


def test_device_dtype_and_mode_follow_the_layer():
    layer = LoraLinear.around(nn.Linear(6, 4, dtype=torch.bfloat16).eval(), rank=2, dropout=0.5)
    assert layer(torch.ones(1, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
    assert not any(module.training for module in layer.modules())
    assert LoraLinear.around(nn.Linear(6, 4, device="meta")).lora_A.weight.device.type == "meta"


def test_constructed_like_a_linear():
    layer = LoraLinear(6, 4, bias=False, rank=2, alpha=4, config=GRID)
    assert (layer.rank, layer.scaling, layer.bias) == (2, 2.0, None)
    assert layer.spec.weight == Integer(8, 4)
    assert "rank=2, alpha=4" in repr(layer) and "integer 8.4" in repr(layer)


def test_other_formats_keep_the_adapter():
    layer = trained(nn.Linear(6, 4), dropout=0.1)
    x = torch.randn(5, 6)
    expected = QuantLinear.from_float(layer, GRID)(x) + 2 / 3 * layer.lora_B(layer.lora_A(x))
    quantized = layer.with_spec(GRID).eval()
    assert type(quantized) is LoraLinear and quantized.lora_A is layer.lora_A
    torch.testing.assert_close(quantized(x), expected)


def test_the_format_of_the_result_holds_for_the_sum():
    layer = trained(QuantLinear.from_float(nn.Linear(6, 4), QuantSpec(data_out=Integer(6, 2))))
    y = layer(torch.randn(5, 6))
    assert torch.equal(y, Integer(6, 2).round(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_is_a_plain_linear_with_the_same_output(dtype):
    layer = trained(nn.Linear(6, 4, dtype=dtype)).eval()
    layer.bias.requires_grad_(False)
    fused = layer.fused()
    x = torch.randn(5, 6, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(fused(x), layer(x), atol=tolerance, rtol=tolerance)
    assert type(fused) is nn.Linear and set(vars(fused)) == set(vars(nn.Linear(6, 4)))
    assert fused.weight.dtype == dtype and fused.weight is not layer.weight
    assert fused.weight.requires_grad and not fused.bias.requires_grad


def test_fused_with_formats_rounds_the_whole_weight():
    layer = trained(QuantLinear.from_float(nn.Linear(6, 4), GRID))
    fused, x = layer.fused(), torch.randn(5, 6)
    weight = Integer(8, 4).round(layer.weight + layer.weight_update())
    expected = F.linear(Integer(8, 4).round(x), weight, Integer(8, 4).round(layer.bias))
    assert type(fused) is QuantLinear and fused.spec == layer.spec
    torch.testing.assert_close(fused(x), expected)


def test_a_pruned_layer_stays_pruned():
    linear = QuantLinear.from_float(nn.Linear(6, 4), QuantSpec())
    linear.register_buffer("weight_mask", (torch.arange(6) % 2 == 0).expand(4, 6).clone())
    layer = trained(linear)
    x = torch.randn(5, 6)
    unseen = x.clone()
    unseen[:, 1::2] = 7
    torch.testing.assert_close(layer(x), layer(unseen))
    fused = layer.fused()
    assert fused.is_pruned and torch.equal(fused.weight_mask, linear.weight_mask)
    torch.testing.assert_close(fused(x), layer(x))
    layer(x).sum().backward()
    assert (layer.lora_A.weight.grad[:, 1::2] == 0).all() and layer.lora_B.weight.grad.any()


def test_copies_and_compiles():
    layer = trained(nn.Linear(6, 4))
    x = torch.randn(5, 6)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x)) and twin.lora_A.weight is not layer.lora_A.weight
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"rank": 0}, "rank is 0, expected 1 or more"),
        ({"alpha": -1}, "alpha is -1, expected a number above 0"),
        ({"alpha": math.inf}, "alpha is inf"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"dropout": 1.0}, "dropout is 1.0, expected 0 or more and below 1"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ConfigError, match=message):
        LoraLinear.around(nn.Linear(6, 4), **settings)


def test_freezing_is_undone_exactly():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    freeze(model)
    assert not any(p.requires_grad for p in model.parameters())
    model[0].bias.requires_grad_(True)
    unfreeze(model)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert set(vars(model[0])) == set(vars(nn.Linear(2, 2)))
