"""MASE's quantizer functions: the same numbers as the formats, and a gradient of one."""

import functools
import inspect

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import (
    MXFP,
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    ScaleInteger,
    Ternary,
)
from chop.nn import quantizers as q
from tests.subcases import subcases

CALLS = {
    "integer_quantizer": ({"width": 8, "frac_width": 4}, Integer(8, 4)),
    "integer_floor_quantizer": (
        {"width": 8, "frac_width": 4, "is_signed": False},
        Integer(8, 4, is_signed=False, floor=True),
    ),
    "scale_integer_quantizer": ({"width": 8, "quantile": 0.9}, ScaleInteger(8, quantile=0.9)),
    "minifloat_denorm_quantizer": (
        {"width": 8, "exponent_width": 4, "exponent_bias": 7},
        MinifloatDenorm(8, 4, 7),
    ),
    "minifloat_ieee_quantizer": ({"width": 8, "exponent_width": 4}, MinifloatIEEE(8, 4)),
    "log_quantizer": ({"width": 4, "exponent_bias": 7}, Log(4, 7)),
    "block_fp_quantizer": ({}, BlockFP(12, 8)),
    "block_minifloat_quantizer": (
        {"width": 8, "exponent_width": 4, "exponent_bias_width": 6, "block_size": [1, 8]},
        BlockMinifloat(8, 4, 6, block_size=8),
    ),
    "block_log_quantizer": ({"width": 4, "block_size": 32}, BlockLog(4, block_size=32)),
    "binary_quantizer": ({}, Binary(bipolar=False)),
    "ternary_quantizer": ({"maximum": 2.0, "scaling_factor": True}, Ternary(2, True, max=2.0)),
    "mxint_quantizer": ({"block_size": [32], "element_bits": 4}, MXInt(4)),
    "mxfp_quantizer": (
        {"block_size": 16, "element_exp_bits": 2, "element_frac_bits": 1, "block_dim": 0},
        MXFP(4, 2, block_size=16, block_dim=0),
    ),
}
SIGNATURES = """
integer_quantizer(x, width, frac_width, is_signed=True)
integer_floor_quantizer(x, width, frac_width, is_signed=True)
scale_integer_quantizer(x, width, is_signed=True, quantile=1.0)
minifloat_denorm_quantizer(x, width, exponent_width, exponent_bias=None)
minifloat_ieee_quantizer(x, width, exponent_width, exponent_bias=None)
log_quantizer(x, width, exponent_bias)
block_fp_quantizer(x, width=12, exponent_width=8, exponent_bias=None, block_size=(16,), \
skip_first_dim=True)
block_minifloat_quantizer(x, width, exponent_width, exponent_bias_width, block_size=(16,), \
skip_first_dim=False)
block_log_quantizer(x, width, exponent_bias_width=None, block_size=(16,), skip_first_dim=False)
binary_quantizer(x, stochastic=False, bipolar=False)
residual_sign_quantizer(levels, x_quantizer, means, x)
ternary_quantizer(x, threshold=None, maximum=None, median=None, mean=None, scaling_factor=False)
mxint_quantizer(x, block_size, element_bits, block_dim=-1, scale_bits=8, quantile_search=False)
mxfp_quantizer(x, block_size, element_exp_bits, element_frac_bits, block_dim=-1, \
scale_exp_bits=8, quantile_search=False)
"""


@subcases("name", CALLS)
@subcases("shape", [(40,), (3, 40), (2, 3, 4, 5)])
def test_each_is_its_format_with_a_gradient_of_one(name, shape):
    arguments, fmt = CALLS[name]
    x = torch.randn(shape, requires_grad=True)
    y = getattr(q, name)(x, **arguments)
    assert torch.equal(y.detach(), fmt.round(x.detach()))
    weights = torch.randn(shape)
    (y * weights).sum().backward()
    assert torch.equal(x.grad, weights)


def test_signatures_are_those_that_users_call():
    for line in SIGNATURES.strip().splitlines():
        name = line.partition("(")[0]
        plain = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in inspect.signature(getattr(q, name)).parameters.values()
        ]
        assert f"{name}{inspect.Signature(plain)}" == line


@pytest.mark.parametrize("bipolar", [True, False])
def test_residual_signs_with_factors_that_learn(bipolar):
    x = torch.randn(5, 7, requires_grad=True)
    means = torch.nn.ParameterList([torch.tensor(1.5), torch.tensor(0.5), torch.tensor(9.0)])
    signs = functools.partial(q.binary_quantizer, stochastic=False, bipolar=bipolar)
    y = q.residual_sign_quantizer(levels=2, x_quantizer=signs, means=means, x=x)
    fmt = BinaryResidual(bipolar=bipolar, levels=2, scales=(1.5, 0.5))
    torch.testing.assert_close(y, fmt.round(x.detach()))
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    torch.testing.assert_close(means[0].grad, signs(x.detach()).sum())
    with pytest.raises(ConfigError, match="4 levels, but 3 means"):
        q.residual_sign_quantizer(4, signs, means, x)


def test_ternary_takes_the_first_statistic():
    x = torch.tensor([0.1, 0.4, -0.9])
    assert q.ternary_quantizer(x, threshold=0.3, mean=10.0).tolist() == [0, 1, -1]
    assert q.ternary_quantizer(x, mean=torch.tensor(1.0), maximum=0.1).tolist() == [0, 0, -1]
    assert torch.equal(q.ternary_quantizer(x), Ternary().round(x))


def test_scales_that_microscaling_does_not_have_are_refused():
    x = torch.randn(32)
    with pytest.raises(ConfigError, match="scale_bits: got 4, expected 8"):
        q.mxint_quantizer(x, 32, 8, scale_bits=4)
    with pytest.raises(ConfigError, match="quantile_search"):
        q.mxfp_quantizer(x, 32, 4, 3, quantile_search=True)
