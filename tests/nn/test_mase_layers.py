"""Layers as a search of MASE's users builds them: one config with every key for every class."""

import itertools
import warnings

import pytest
import torch
from torch import nn

from chop.base.notices import AdjustedWarning, forget_notices
from chop.errors import ConfigError
from chop.formats import Binary, BinaryResidual, Integer, Log, QuantSpec, Ternary
from chop.nn.quantized.modules import conv2d, linear
from chop.nn.quantized.modules.relu import ReLUBinary
from tests.subcases import subcases

OPERANDS = ("data_in", "weight", "bias")
FORMATS = """
    Integer IntegerFloor MinifloatDenorm MinifloatIEEE Log BlockFP BlockMinifloat BlockLog Binary
    BinaryScaling BinaryResidualSign Ternary
"""
SUFFIXES = FORMATS.split()
GRID = list(itertools.product((8, 16, 32), (2, 3, 4), (3, 7, 15), (16, 32)))


@pytest.fixture(autouse=True)
def every_notice():
    forget_notices()


def everything(width=8, exponent_width=4, exponent_bias=7, block_size=16, **more):
    fields = {
        "width": width,
        "frac_width": width // 2,
        "exponent_width": exponent_width,
        "exponent_bias": exponent_bias,
        "exponent_bias_width": exponent_bias,
        "block_size": [block_size],
        "stochastic": False,
        "bipolar": True,
        "scaling_factor": 0.5,
        "levels": 2,
        "residual_sign": True,
        "mean": None,
        "median": None,
        "max": None,
        "binarization_level": 1,
        "input_expanded": True,
        "k": 2,
        "in_dim": 4,
        **more,
    }
    settings = {f"{operand}_{key}": value for operand in OPERANDS for key, value in fields.items()}
    whole = {"bypass": False, "floor": False, "binary_training": True}
    return settings | whole | {"data_in_skip_first_dim": True}


def built(suffix, config):
    cls = getattr(linear, f"Linear{suffix}")
    return cls(in_features=32, out_features=8, bias=True, config=config)


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.sampled(3)
def test_every_class_takes_every_point_of_the_grid(suffix):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 32)
    results = set()
    for point in GRID:
        config = everything(*point)
        before = dict(config)
        torch.manual_seed(0)
        layer = built(suffix, config)
        y = layer(x.requires_grad_())
        y.square().sum().backward()
        gradients = (layer.weight.grad, layer.bias.grad, x.grad)
        assert y.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)
        assert layer.weight.grad.any() and config == before
        assert layer.spec.weight.name == type(layer).format.name
        results.add(y.sum().item())
    follows_width = not suffix.startswith(("Binary", "Ternary"))
    assert (len(results) > 1) == follows_width


@subcases("suffix", SUFFIXES)
def test_what_is_passed_over_is_told_once_and_not_by_layer(suffix):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for point in GRID[:4]:
            nn.Sequential(*(built(suffix, everything(*point)) for _ in range(3)))
    messages = [str(warning.message) for warning in caught]
    assert all(warning.category is AdjustedWarning for warning in caught)
    assert len(messages) == len(set(messages)) <= 3
    assert messages[0].startswith(f"Linear{suffix} does not read bias_")


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_the_binary_family_rounds_what_mases_does():
    every = everything()
    binary, scaling, ternary = (built(n, every) for n in ("Binary", "BinaryScaling", "Ternary"))
    assert binary.spec == QuantSpec(weight=Binary())
    assert scaling.spec == QuantSpec.uniform(Binary(scaling_factor=True))
    assert ternary.spec == QuantSpec(weight=Ternary(scaling_factor=True))
    residual = built("BinaryResidualSign", every)
    assert residual.spec == QuantSpec(BinaryResidual(), BinaryResidual())
    x = torch.randn(4, 32)
    signs = torch.where(binary.weight >= 0, 1.0, -1.0)
    assert torch.equal(binary(x), nn.functional.linear(x, signs, binary.bias))
    alone = linear.LinearBinary(32, 8, config={"data_in_bipolar": True})
    assert alone.spec == QuantSpec(weight=Binary())
    conv = conv2d.Conv2dBinary(3, 4, 3, config={"data_in_bipolar": True, "weight_bipolar": True})
    assert conv.spec == QuantSpec(Binary(), Binary())
    assert ReLUBinary(config=every | {"binary_training": False})(x).unique().tolist() == [0.0, 1.0]


def test_operands_that_are_named_whole_are_rounded_still():
    config = {"weight_bipolar": True, "data_in": {"name": "integer", "width": 8, "frac_width": 4}}
    assert linear.LinearBinary(4, 2, config=config).spec == QuantSpec(Integer(8, 4), Binary())
    spec = QuantSpec.uniform(Binary())
    assert linear.LinearBinary(4, 2, config=spec).spec == spec


def test_none_is_written_na():
    config = {"name": "NA", "width": 8, "exponent_bias": "NA", "bypass": "NA"}
    assert linear.LinearLog(4, 2, config=config).spec == QuantSpec.uniform(Log(8))


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
@subcases("suffix", SUFFIXES)
def test_a_key_of_no_format_is_an_error(suffix):
    with pytest.raises(ConfigError, match=f"Linear{suffix}: unknown key 'weigth_width'"):
        built(suffix, everything() | {"weigth_width": 8})
