"""Operators bound to formats: `LinearInteger`, `Conv2dMXInt` and all the others."""

import copy
import importlib
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.formats import Binary, BinaryResidual, Integer, MXInt, QuantSpec, formats
from chop.ir.ops import OPS
from chop.mase.quantized_classes import MODULES, UNREAD, VARIANTS
from chop.nn import quantized
from chop.nn.quantized import modules
from chop.nn.quantized.modules import conv2d, linear, pool2d, relu
from tests.fresh import printed_by
from tests.passes.conftest import with_metadata
from tests.subcases import subcases

WIDTHS = {"width": 8, "frac_width": 5}
FLOATS = {"width": 8, "exponent_width": 4, "exponent_bias": 7}
BLOCKS = {"width": 8, "block_size": [16]}
SETTINGS = {
    "Integer": WIDTHS,
    "IntegerFloor": WIDTHS,
    "MinifloatIEEE": FLOATS,
    "MinifloatDenorm": FLOATS,
    "Log": {"width": 8, "exponent_bias": 15},
    "BlockFP": {**BLOCKS, "exponent_width": 8, "exponent_bias": None},
    "BlockMinifloat": {**BLOCKS, "exponent_width": 4, "exponent_bias_width": 8},
    "BlockLog": {**BLOCKS, "exponent_bias_width": 8},
    "ScaleInteger": {"width": 8},
}
SUFFIXES = [kind.__name__ for kind in formats() if kind.name != "float"] + list(VARIANTS)


def config(suffix, *operands):
    settings = SETTINGS.get(suffix, {})
    return {f"{operand}_{key}": settings[key] for operand in operands for key in settings}


@subcases("suffix", SUFFIXES)
def test_constructed_the_way_users_do(suffix):
    cls = getattr(linear, f"Linear{suffix}")
    old = nn.Linear(32, 8)
    before = config(suffix, "data_in", "weight", "bias")
    given = dict(before)
    new = cls(in_features=32, out_features=8, bias=True, dtype=torch.float32, config=given)
    assert given == before
    new.weight.data = old.weight.data
    new.bias.data = old.bias.data
    assert isinstance(new, nn.Linear) and isinstance(new, quantized.QuantLinear)
    kind = VARIANTS[suffix][0] if suffix in VARIANTS else cls.format
    rounded = {n for n in ("data_in", "weight", "bias") if n not in UNREAD.get(cls.__name__, ())}
    assert {n for n, fmt in new.spec.items() if isinstance(fmt, kind)} == rounded
    x = torch.randn(4, 6, 32, requires_grad=True)
    expected = quantized.QuantLinear.from_float(copy.deepcopy(old), new.spec)(x)
    y = new(x)
    assert torch.equal(y, expected) and y.isfinite().all()
    y.square().sum().backward()
    for tensor in (x, new.weight, new.bias):
        assert tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0
    for again in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
        assert type(again) is cls and torch.equal(again(x), y)


def test_every_quantized_operator_has_a_class_for_every_format():
    found = {}
    for home in MODULES:
        module = importlib.import_module(f"{modules.__name__}.{home}")
        found |= {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        }
    rows = [row for row in OPS.values() if row.quantized is not None]
    # Layers of experts come from a capture alone: nobody constructs them.
    operators = {row.quantized for row in rows if not (row.weight and row.weight.has_experts)}
    prefixes = {operator.__name__.removeprefix("Quant") for operator in operators}
    assert set(found) == {prefix + suffix for prefix in prefixes for suffix in SUFFIXES}
    for name, cls in found.items():
        assert cls.__qualname__ == name and cls.__doc__
        assert getattr(modules, name) is cls


def test_importing_chop_makes_none_of_them():
    code = "import sys, chop.passes; print('chop.nn.quantized.modules' in sys.modules)"
    assert printed_by(code) == "False\n"


def test_the_config_may_name_its_format_but_no_other():
    keys = config("Integer", "data_in", "weight", "bias")
    for name in ("integer", "fixed", None):
        assert linear.LinearInteger(4, 2, config={**keys, "name": name}).spec.weight == Integer(
            8, 5
        )
    with pytest.raises(ConfigError, match="LinearMXInt: expected a config of format 'mxint'"):
        linear.LinearMXInt(4, 2, config={**keys, "name": "integer"})
    with pytest.raises(ConfigError, match="LinearInteger: missing key 'bias_width'"):
        linear.LinearInteger(4, 2, config=config("Integer", "data_in", "weight"))
    with pytest.raises(ConfigError, match="did you mean 'weight_width'"):
        linear.LinearInteger(4, 2, config={**keys, "weigth_width": 8})
    assert linear.LinearMXInt(4, 2).spec == QuantSpec.uniform(MXInt())
    assert linear.LinearInteger(4, 2, config={**keys, "bypass": True}).spec == QuantSpec()
    assert linear.LinearInteger(4, 2, bias=False, config=keys).spec.bias.is_identity
    assert linear.LinearInteger(4, 2, True, "cpu", torch.bfloat16, keys).spec.data_in == Integer(
        8, 5
    )
    with pytest.raises(ConfigError, match="in_features"):
        linear.LinearMXInt(in_featrues=4, out_features=2)
    assert "weight=mxint(width=8)" in repr(linear.LinearMXInt(4, 2))


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_what_a_class_settles_by_its_name():
    keys = {"weight_bipolar": True, "data_in_bipolar": True}
    plain, scaling = (
        cls(4, 2, config={**keys, "binary_training": False})
        for cls in (linear.LinearBinary, linear.LinearBinaryScaling)
    )
    assert plain.spec == QuantSpec(weight=Binary())
    assert scaling.spec == QuantSpec(*[Binary(scaling_factor=True)] * 2)
    residual = {**keys, "data_in_levels": 3, "data_in_residual_sign": True, "binary_training": True}
    spec = linear.LinearBinaryResidualSign(4, 2, config=residual).spec
    assert spec == QuantSpec(BinaryResidual(levels=3), BinaryResidual())
    integer = config("Integer", "data_in", "weight", "bias")
    assert linear.LinearIntegerFloor(4, 2, config=integer).spec.bias == Integer(8, 5, floor=True)


def test_other_operators():
    x = torch.randn(2, 3, 8, 8)
    conv = conv2d.Conv2dMXInt(3, 5, kernel_size=3, padding=1, config={"name": "mxint"})
    twin = quantized.QuantConv2d.from_float(nn.Conv2d(3, 5, 3, padding=1), conv.spec)
    twin.load_state_dict(conv.state_dict())
    assert torch.equal(conv(x), twin(x))
    relu_binary = relu.ReLUBinary(config={"data_in_bipolar": True, "data_in_stochastic": False})
    assert relu_binary(x).unique().tolist() == [0.0, 1.0]
    pool = pool2d.AdaptiveAvgPool2dInteger((1, 1), config=config("Integer", "data_in"))
    assert torch.equal(pool(x), Integer(8, 5).round(x).mean((2, 3), keepdim=True))


def test_a_mixed_model_goes_through_a_graph_and_a_checkpoint(tmp_path):
    keys = ("data_in", "weight", "bias")
    model = nn.Sequential(
        linear.LinearBlockFP(32, 16, config=config("BlockFP", *keys)),
        relu.ReLUInteger(config=config("Integer", "data_in")),
        linear.LinearTernary(16, 4, config={"weight_scaling_factor": True}),
    ).eval()
    x = torch.randn(3, 32)
    expected = model(x)
    mg = with_metadata(MaseGraph(model, dummy_in={"input": x}))
    mg.export(tmp_path / "mixed")
    restored = MaseGraph.from_checkpoint(tmp_path / "mixed")
    assert torch.equal(restored.model(x), expected)
    assert type(restored.modules["0"]) is linear.LinearBlockFP
    assert restored.modules["2"].spec == model[2].spec


def test_other_formats_unbind():
    layer = linear.LinearMXInt(8, 4)
    other = layer.with_spec(QuantSpec.uniform(Integer(8, 4)))
    assert type(other) is quantized.QuantLinear
    assert other.weight is layer.weight and other.spec.weight == Integer(8, 4)
