"""MASE's flat spelling: what it has beyond the formats' own fields, and what is told of it."""

import logging
import warnings

import pytest
import torch

from chop.base.notices import AdjustedWarning, forget_notices
from chop.errors import ConfigError, NotBuiltError
from chop.formats import (
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    MinifloatDenorm,
    MinifloatIEEE,
    QuantSpec,
    Ternary,
)
from tests.subcases import subcases

OPERANDS = ("data_in", "weight", "bias")


@pytest.fixture(autouse=True)
def every_notice():
    forget_notices()


def flat(name, **fields):
    return {"name": name} | {f"{n}_{k}": value for n in OPERANDS for k, value in fields.items()}


def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert all(issubclass(warning.category, AdjustedWarning) for warning in caught)
    return result, [str(warning.message) for warning in caught]


EXACT = [
    (flat("integer", width=8.0, frac_width=4.0), Integer(8, 4)),
    (flat("fixed", width=8, frac_width="NA") | {"frac_width": 4}, Integer(8, 4)),
    (flat("integer_floor", width=8, frac_width=4), Integer(8, 4, floor=True)),
    (flat("integer", width=8, frac_width=4) | {"floor": 1}, Integer(8, 4, floor=True)),
    (
        flat("block_fp", width=7.0, exponent_width=8, block_size=[1.0, 32.0]),
        BlockFP(7, 8, block_size=32),
    ),
    (flat("binary", width=1, stochastic=0, bipolar=1) | {"binary_training": "NA"}, Binary()),
    (
        flat("binary", bipolar=0) | {"binary_training": 1},
        Binary(bipolar=False, scaling_factor=True),
    ),
    (flat("ternary", width=2, mean="NA", median="NA", max=0.5), Ternary(max=0.5)),
]


@subcases("settings, expected", EXACT, ids=lambda value: str(value)[:40])
def test_what_is_the_same_number_is_taken_silently(settings, expected):
    before = dict(settings)
    spec, messages = told(lambda: QuantSpec.parse(settings))
    assert spec == QuantSpec.uniform(expected)
    assert messages == [] and settings == before


NEAREST = [
    (
        flat("block_fp", width=8, exponent_width=10),
        BlockFP(8, 8),
        "exponent_width=10 is changed to 8",
    ),
    (
        flat("block_fp", width=8, exponent_width=10, exponent_bias=511),
        BlockFP(8, 8, 127),
        "exponent_bias=511 is changed to 127",
    ),
    (
        flat("block_fp", width=8, exponent_width=9, exponent_bias=7),
        BlockFP(8, 8, 7),
        "=9 is changed to 8",
    ),
    (flat("minifloat_ieee", width=8, exponent_width=8), MinifloatIEEE(8, 6), "=8 is changed to 6"),
    (
        flat("minifloat_denorm", width=4, exponent_width=4),
        MinifloatDenorm(4, 2),
        "=4 is changed to 2",
    ),
    (
        flat("block_minifloat", width=16, exponent_width=8, exponent_bias_width=15),
        BlockMinifloat(16, 7, 8),
        "exponent_bias_width=15 is changed to 8",
    ),
    (flat("block_log", width=8, exponent_bias_width=16), BlockLog(8, 8), "=16 is changed to 8"),
    (flat("binary", width=8, bipolar=True), Binary(), "binary has no bias_width, data_in_width"),
    (flat("binary", scaling_factor=0.5), Binary(), "has no bias_scaling_factor, data_in_scaling"),
    (flat("binary", width=1, frac_width=0), Binary(), "binary has no bias_frac_width"),
    (
        flat("binary_residual", width=8, levels=3),
        BinaryResidual(levels=3),
        "residual has no bias_w",
    ),
    (flat("ternary", scaling_factor=0.5), Ternary(scaling_factor=True), "=0.5 is changed to True"),
    (flat("ternary", median=0.1, max=2.0), Ternary(max=2.0), "median=0.1 is ignored, as in MASE"),
    (
        flat("ternary", width=8, frac_width=0),
        Ternary(),
        "ternary has no bias_frac_width, bias_width",
    ),
]


@subcases("settings, expected, message", NEAREST)
def test_the_nearest_is_taken_and_told_once(settings, expected, message):
    parse = lambda: QuantSpec.parse(settings)  # noqa: E731
    spec, messages = told(parse)
    assert spec == QuantSpec.uniform(expected)
    assert sum(message in text for text in messages) == 1
    assert told(parse) == (spec, [])


def test_wider_shared_exponents_change_nothing():
    x = torch.randn(64, 48) * torch.logspace(-18, 18, 48)
    expected = BlockFP(8, 8).round(x)
    spec, _ = told(lambda: QuantSpec.parse(flat("block_fp", width=8, exponent_width=11)))
    assert torch.equal(spec.weight.round(x), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            flat("integer", width=8.5, frac_width=4),
            r"data_in.width: expected int or 'auto', got 8.5",
        ),
        (flat("integer", width=40, frac_width=4), "got 40, expected 1 to 32 bits"),
        (
            flat("integer", width=8, frac_width=4, exponent_width=4),
            "unknown key 'data_in_exponent_w",
        ),
        (flat("minifloat_ieee", width=2, exponent_width=4), "width: got 2"),
        (flat("binary", bipolar=2), "bipolar: expected bool, got 2"),
        (
            flat("binary", bipolra=1),
            "unknown key 'data_in_bipolra': did you mean 'data_in_bipolar'",
        ),
    ],
)
def test_what_means_nothing_stays_an_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        QuantSpec.parse(settings)


def test_keys_without_an_effect_are_in_the_debug_log(caplog):
    settings = flat("integer", width=8, frac_width=4) | {"cache_quantized_weight": True}
    with caplog.at_level(logging.DEBUG, "chop.config"):
        assert QuantSpec.parse(settings, where="layer") == QuantSpec.uniform(Integer(8, 4))
    assert [record.getMessage() for record in caplog.records] == [
        "layer: cache_quantized_weight: settings of MASE without an effect in chop."
    ]


@pytest.mark.parametrize("name", ["lutnet", "logicnets", "mxint_hardware"])
def test_formats_that_are_not_built_say_so(name):
    with pytest.raises(NotBuiltError, match=f"config: '{name}': .* not supported; "):
        QuantSpec.parse(flat(name, width=8))
