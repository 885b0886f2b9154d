"""What people type and what is written back are the same format."""

import pytest

from chop.errors import ConfigError
from chop.formats import Integer, MXInt, format_string, parse_format_string
from tests.formats.examples import ALL
from tests.subcases import subcases


@subcases("number_format", ALL, ids=lambda fmt: fmt.label)
def test_every_format_is_read_back(number_format):
    assert parse_format_string(format_string(number_format)) == number_format


def test_short_forms():
    assert parse_format_string("8.4") == Integer(8, 4) and format_string(Integer(8, 4)) == "8.4"
    assert parse_format_string("6.auto") == parse_format_string(" 6.auto ") == Integer(6, "auto")
    assert (
        parse_format_string("4.mse") == Integer(4, "mse")
        and format_string(Integer(4, "mse")) == "4.mse"
    )
    assert parse_format_string("8.-2") == Integer(8, -2)
    assert parse_format_string("mxint") == MXInt() and format_string(MXInt()) == "mxint"
    assert parse_format_string("mxint:width=4:block_size=16") == MXInt(4, block_size=16)
    assert parse_format_string("mxint4") == MXInt(4)
    assert parse_format_string("mxint4:block_size=16") == MXInt(4, block_size=16)
    assert parse_format_string("mxfp:scale_mode=even").scale_mode == "even"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8", "expected width.fraction"),
        ("8.x", "expected width.fraction"),
        ("mxint:width", "expected name:field=value"),
        ("mxnit", "did you mean 'mxint'"),
        ("int8", "did you mean 8.auto"),
        ("uint4", "did you mean 4.auto"),
        ("q4_0", "did you mean group_integer:width=4 or 4.auto"),
        ("q4_k_m", "did you mean k_quant:width=4"),
        ("Q6_K", "did you mean k_quant:width=6"),
        ("W4A8", r"4 bits and inputs of 8 by --formats 8.auto --overrides 're:\.\*=4.auto' --op"),
        ("w4a16", "4 bits and float inputs, write 4.auto, with --operands weight"),
        ("W8A8", "did you mean 8.auto"),
        ("int4_weight_only", "4 bits and float inputs, write 4.auto"),
        ("int8_dynamic_activation_int4_weight", "weights of 4 bits and inputs of 8 by"),
        ("fp8_e4m3", "did you mean fp8, mxfp or minifloat_ieee"),
        ("exponent_width=2", "write fields after the name and ':'"),
        ("mxint:widht=4", "did you mean 'width'"),
        ("mxint:block=16", "did you mean 'block_size'"),
        ("mxint:bits=4", "did you mean 'width'"),
        ("fp4", "did you mean mxfp4 or nvfp4"),
        ("integer:width=4", "'frac_width': write 4.auto, or integer:width=4:frac_width=auto"),
        ("mxint4:width=6", "'width' is given twice"),
        ("mxint:name=nvfp4", "'name' is given twice"),
    ],
)
def test_what_is_spelt_differently_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_format_string(text)


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ("frac=2", "unknown key 'frac': did you mean 'frac_width'?"),
        ("frac_width=2", "Write integer:width=4:frac_width=2."),
    ],
)
def test_commas_between_fields_are_explained(fields, advice):
    with pytest.raises(ConfigError) as error:
        parse_format_string(f"integer:width=4,{fields}")
    assert "commas separate formats" in str(error.value) and str(error.value).endswith(advice)


@pytest.mark.parametrize("text", ["8.auto,4.auto", "mxint,fp8", "mxint:block_size=[4,8],8.4"])
def test_a_list_is_no_format(text):
    with pytest.raises(ConfigError, match="expected one format, got 2"):
        parse_format_string(text)
