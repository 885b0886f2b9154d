import pytest

from chop.errors import ConfigError
from chop.formats import Float, Integer, NumberFormat, QuantSpec, get_format, parse_format

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


@pytest.mark.parametrize(
    "change, message",
    [
        ({"data_in_widht": 8}, "unknown key 'data_in_widht': did you mean 'data_in_width'"),
        ({"name": "integr"}, "unknown number format 'integr': did you mean 'integer'"),
        ({"bias_width": None}, "missing key 'bias_width'"),
        ({"weight_width": 8.0}, r"weight.width: expected int or 'auto', got 8.0 \(float\)"),
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
    with pytest.raises(ConfigError, match="two number formats are called 'integer'"):
        type("Other", (NumberFormat,), {"name": "integer"})
    assert get_format("fixed") is Integer
    assert get_format(None) is Float
