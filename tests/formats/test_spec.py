import pytest

from chop.errors import ConfigError
from chop.formats import (
    MXFP,
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Float,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    NumberFormat,
    QuantSpec,
    Ternary,
    get_format,
    parse_format,
)
from tests.subcases import subcases

FLAT = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 6,
    "weight_frac_width": 3,
    "bias_width": 4,
    "bias_frac_width": 2,
}


def test_the_flat_spelling():
    before = dict(FLAT)
    spec = QuantSpec.parse(FLAT)
    assert spec == QuantSpec(Integer(8, 4), Integer(6, 3), Integer(4, 2))
    assert spec.data_out == Float()
    assert before == FLAT


def test_the_nested_spelling_and_mixed_operands():
    spec = QuantSpec.parse(
        {"data_in": {"name": "fixed", "width": 8, "frac_width": 4}, "weight": Integer(4, 3)}
    )
    assert spec == QuantSpec(Integer(8, 4), Integer(4, 3))
    assert QuantSpec.parse({**FLAT, "bias": None}).bias == Float()


def test_keys_without_prefix_hold_for_every_operand():
    spec = QuantSpec.parse({"name": "integer", "width": 8, "frac_width": "auto", "floor": True})
    assert spec.weight == spec.bias == Integer(8, "auto", floor=True)
    override = QuantSpec.parse({"name": "integer", "width": 8, "frac_width": 4, "weight_width": 4})
    assert override.weight == Integer(4, 4)


def test_operands_that_the_operator_lacks_are_ignored():
    assert QuantSpec.parse(FLAT, operands=("data_in",)) == QuantSpec(Integer(8, 4))
    half = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "bias_width": 8}
    assert QuantSpec.parse(half, operands=("data_in",)) == QuantSpec(Integer(8, 4))
    assert QuantSpec.uniform(Integer(8, 4)).only(("weight",)) == QuantSpec(weight=Integer(8, 4))


def test_bypass_none_and_fallback():
    assert QuantSpec.parse({**FLAT, "bypass": True}) == QuantSpec()
    assert QuantSpec.parse({"name": None}) == QuantSpec()
    only_data = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    spec = QuantSpec.parse(only_data, ("data_in", "weight"), {"weight": "data_in"})
    assert spec.weight == Integer(8, 4)


@subcases(
    "change, message",
    [
        ({"data_in_widht": 8}, "unknown key 'data_in_widht': did you mean 'data_in_width'"),
        ({"name": "integr"}, "unknown number format 'integr': did you mean 'integer'"),
        ({"bias_width": None}, "missing key 'bias_width'"),
        ({"weight_width": 8.5}, r"weight.width: expected int or 'auto', got 8.5 \(float\)"),
        ({"weight_width": True}, "expected int"),
        ({"weight_width": -1}, "got -1"),
        ({"weight_frac_width": "atuo"}, "expected int or 'auto'"),
        ({"gradient": "clipp"}, "did you mean 'clip'"),
        ({"bypass": "yes"}, "bypass: expected bool or None, got 'yes'"),
    ],
)
def test_mistakes_name_the_nearest_right_thing(change, message):
    with pytest.raises(ConfigError, match=message):
        QuantSpec.parse({**FLAT, **change})


def test_no_mapping_is_refused():
    with pytest.raises(ConfigError, match="expected a mapping"):
        QuantSpec.parse(8)
    with pytest.raises(ConfigError, match="expected a format"):
        parse_format(8)


def test_two_formats_of_one_name_clash():
    with pytest.raises(ConfigError, match="'integer' is defined twice, by chop and by tests"):
        type("Other", (NumberFormat,), {"name": "integer", "__module__": __name__})
    assert get_format("fixed") is Integer
    assert get_format(None) is Float


FLOATS = {"width": 8, "exponent_width": 4, "exponent_bias": 7}
MASE_KEYS = {
    "minifloat_ieee": (FLOATS, MinifloatIEEE(8, 4, 7)),
    "minifloat_denorm": (FLOATS, MinifloatDenorm(8, 4, 7)),
    "log": ({"width": 8, "exponent_bias": 7}, Log(8, 7)),
    "block_fp": (
        {**FLOATS, "block_size": [1, 16], "skip_first_dim": True},
        BlockFP(8, 4, 7, skip_first_dim=True),
    ),
    "block_minifloat": (
        {"width": 8, "exponent_width": 4, "exponent_bias_width": 4, "block_size": [16]},
        BlockMinifloat(8, 4, 4),
    ),
    "block_log": (
        {"width": 8, "exponent_bias_width": None, "block_size": 32},
        BlockLog(8, block_size=32),
    ),
    "binary": ({"width": 1, "stochastic": False, "bipolar": True}, Binary()),
    "binary_residual": (
        {"residual_sign": True, "levels": 3, "stochastic": False, "bipolar": True},
        BinaryResidual(levels=3),
    ),
    "ternary": (
        {"width": 2, "scaling_factor": True, "mean": None, "median": None, "max": 0.5},
        Ternary(scaling_factor=True, max=0.5),
    ),
    "mxint": ({"width": 4, "block_size": 32}, MXInt(4)),
    "mxfp": ({"width": 4, "exponent_width": 2}, MXFP(4, 2)),
}


@subcases("name", MASE_KEYS)
def test_the_flat_keys_of_every_format(name):
    keys, expected = MASE_KEYS[name]
    flat = {f"{operand}_{key}": keys[key] for operand in ("data_in", "weight") for key in keys}
    spec = QuantSpec.parse({"name": name, **flat, "bypass": False}, ("data_in", "weight"))
    assert spec == QuantSpec(expected, expected)
    nested = QuantSpec.parse({"weight": {"name": name, **keys}})
    assert nested == QuantSpec(weight=expected)
    some_key = next(iter(keys))
    with pytest.raises(ConfigError, match=f"did you mean 'weight_{some_key}'"):
        QuantSpec.parse({"name": name, **flat, f"wieght_{some_key}": 8})


def test_operands_that_no_key_speaks_of():
    assert QuantSpec.parse({"name": "mxint"}) == QuantSpec.uniform(MXInt())
    only_weight = QuantSpec.parse({"name": "binary", "weight_stochastic": True})
    assert only_weight == QuantSpec(weight=Binary(stochastic=True))
    assert QuantSpec.parse({"name": "mxint", "width": 4, "weight_width": 8}) == QuantSpec(
        MXInt(4), MXInt(8), MXInt(4)
    )
    with pytest.raises(ConfigError, match="missing key 'data_in_width'"):
        QuantSpec.parse({"name": "log", "weight_width": 8})


def test_keys_of_the_whole_module():
    flat = {"name": "binary", "weight_bipolar": True, "data_in_bipolar": True}
    scaled = Binary(scaling_factor=True)
    assert QuantSpec.parse({**flat, "binary_training": True}) == QuantSpec(scaled, scaled)
    assert QuantSpec.parse({**flat, "binary_training": False}) == QuantSpec(Binary(), Binary())
    residual = {**flat, "name": "binary_residual", "data_in_levels": 3, "binary_training": True}
    assert QuantSpec.parse(residual) == QuantSpec(BinaryResidual(levels=3), BinaryResidual())
    floor = QuantSpec.parse({**FLAT, "floor": True})
    assert floor.weight == Integer(6, 3, floor=True)
    with pytest.raises(ConfigError, match="did you mean 'binary_training'"):
        QuantSpec.parse({**flat, "binary_trainig": True})


def test_operands_in_different_formats():
    spec = QuantSpec.parse(
        {
            "data_in": {"name": "mxfp", "width": 8, "exponent_width": 4},
            "weight": {"name": "mxint", "width": 4, "block_size": [32]},
            "bias": "mxint",
        }
    )
    assert spec == QuantSpec(MXFP(), MXInt(4), MXInt())
    mixed = QuantSpec.parse({**FLAT, "weight": {"name": "mxint", "width": 4}})
    assert mixed == QuantSpec(Integer(8, 4), MXInt(4), Integer(4, 2))
