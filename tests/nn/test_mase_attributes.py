"""What code that was written for MASE asks of quantized layers, and derives from."""

from functools import partial

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Binary, Integer, QuantSpec
from chop.nn import quantized as q
from chop.nn.quantized.modules.conv1d import _Conv1dBase
from chop.nn.quantized.modules.conv2d import Conv2dInteger, _Conv2dBase
from chop.nn.quantized.modules.linear import (
    LinearBinary,
    LinearBinaryScaling,
    LinearBlockFP,
    LinearInteger,
    LinearIntegerFloor,
    LinearMinifloatIEEE,
    _LinearBase,
)
from chop.nn.quantizers import integer_quantizer

INTEGER = {"name": "integer", "width": 8, "frac_width": 4}
CONFIGS = {
    "integer": (INTEGER, {LinearInteger}),
    "floor": ({**INTEGER, "floor": True}, {LinearInteger, LinearIntegerFloor}),
    "block_fp": (
        {"name": "block_fp", "width": 8, "exponent_width": 8, "block_size": [4]},
        {LinearBlockFP},
    ),
    "minifloat": (
        {"name": "minifloat_ieee", "width": 8, "exponent_width": 4, "exponent_bias": 7},
        {LinearMinifloatIEEE},
    ),
    "weight alone": (
        {"name": "binary", "weight_width": 1, "weight_bipolar": True, "binary_training": True},
        {LinearBinary, LinearBinaryScaling},
    ),
    "two kinds": ({"weight": Integer(4, 2), "data_in": Binary()}, set()),
    "bypass": ({**INTEGER, "bypass": True}, set()),
}
CLASSES = {found for _, classes in CONFIGS.values() for found in classes} | {Conv2dInteger}


def quantized(config):
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)), dummy_in={"input": torch.ones(3, 4)})
    rule = {"by": "type", "linear": {"config": config}}
    return passes.quantize_transform_pass(mg, rule)[0].modules["0"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_quantized_layer_has_what_mase_gives_it(name):
    config, classes = CONFIGS[name]
    layer, x = quantized(config), torch.randn(5, 4)
    assert {cls for cls in CLASSES if isinstance(layer, cls)} == classes
    assert isinstance(layer, _LinearBase) and not isinstance(layer, _Conv2dBase)
    assert QuantSpec.parse(layer.config) == layer.spec
    assert layer.bypass is (name == "bypass")
    by_hand = nn.functional.linear(
        layer.x_quantizer(x), layer.w_quantizer(layer.weight), layer.b_quantizer(layer.bias)
    )
    assert torch.equal(layer(x), by_hand)
    for attribute in ("bypass", "config", "w_quantizer"):
        with pytest.raises(ConfigError, match=f"{attribute} is derived from its formats"):
            setattr(layer, attribute, True)


def test_attributes_of_the_float_layer_stay_what_they_were():
    plain = nn.Linear(4, 2)
    plain.config, plain.bypass, plain.note = {"mine": 1}, True, "kept"
    layer = q.QuantLinear.from_float(plain, q.QuantLinear(4, 2, config=INTEGER).spec)
    assert (layer.config, layer.bypass, layer.note) == ({"mine": 1}, True, "kept")
    assert not isinstance(q.QuantLinear.__new__(q.QuantLinear), LinearInteger)


def test_the_config_of_a_layer_has_the_keys_of_mase():
    for layer in (LinearInteger(4, 2, config=INTEGER), quantized(INTEGER)):
        config = layer.config
        assert config["name"] == "integer" and config["weight_frac_width"] == 4
        weight = torch.randn(2, 4)
        assert torch.equal(layer.w_quantizer(weight), integer_quantizer(weight, 8, 4))
    assert not isinstance(nn.Linear(2, 2), LinearInteger | _LinearBase)
    assert not isinstance(q.QuantConv2d(1, 1, 1, config=INTEGER), LinearInteger)
    assert isinstance(q.QuantConv2d(1, 1, 1, config=INTEGER), Conv2dInteger)


@pytest.mark.parametrize(
    "base, plain, sizes, shape",
    [
        (_LinearBase, nn.Linear, (4, 2), (3, 4)),
        (_Conv1dBase, nn.Conv1d, (2, 3, 3), (1, 2, 8)),
        (_Conv2dBase, nn.Conv2d, (2, 3, 3), (1, 2, 8, 8)),
    ],
)
def test_layers_of_ones_own_derive_from_the_bases(base, plain, sizes, shape):
    class Mine(base):
        def __init__(self, *args, config=None):
            super().__init__(*args)
            self.config = config
            self.w_quantizer = partial(integer_quantizer, width=4, frac_width=2)
            self.x_quantizer = self.b_quantizer = self.w_quantizer

    layer, x = Mine(*sizes, config=INTEGER), torch.randn(shape)
    twin = plain(*sizes)
    twin.load_state_dict({n: integer_quantizer(t, 4, 2) for n, t in layer.state_dict().items()})
    assert torch.equal(layer(x), twin(integer_quantizer(x, 4, 2)))
    layer(x).sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    captured = MaseGraph(nn.Sequential(layer), dummy_in={"input": x})
    assert torch.equal(captured.model(x), layer(x))
    layer.bypass = True
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), twin(x))
    assert isinstance(layer, base) and not isinstance(layer, LinearInteger)
    assert not isinstance(quantized(INTEGER), Mine)
