"""Formats to choose from, and scales derived instead of searched."""

import dataclasses

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import (
    BlockFP,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    formats,
    get_format,
    parse_format_string,
)
from chop.problems.mixed_precision.candidates import (
    DERIVED_FIELDS,
    every_format,
    fitted,
    format_candidates,
    short_texts,
)
from tests.subcases import subcases


@subcases("kind", formats(), ids=lambda kind: kind.name)
def test_every_format_can_be_searched_by_its_name(kind):
    options = format_candidates([kind.name])
    assert options and all(type(fmt) is kind for fmt in options.values())
    assert [parse_format_string(text) for text in options] == list(options.values())
    bits = [fmt.bits((64, 64)) for fmt in options.values()]
    assert bits == sorted(bits)
    for name in set(kind.search_space) - set(DERIVED_FIELDS):
        assert {getattr(fmt, name) for fmt in options.values()} <= set(kind.search_space[name]) | {
            (value,) for value in kind.search_space[name]
        }


def test_formats_have_texts_that_fit_a_cell():
    several = {
        "8.4": Integer(8, 4),
        "4.auto": Integer(4, "auto"),
        "mxint": get_format("mxint")(width=4),
        "wide": get_format("mxint")(width=16),
        "binary": get_format("binary")(),
    }
    texts, meaning = short_texts(several)
    assert list(texts) == list(several)
    assert list(texts.values()) == ["8.4", "4.auto", "mxint 4", "mxint 16", "binary"]
    assert meaning == "integer width.fraction, mxint width"
    one = {"a": get_format("mxint")(width=4)}
    assert short_texts(one) == ({"a": "mxint"}, "")
    every = format_candidates([name for name in every_format() if name != "float"])
    short, meaning = short_texts(every)
    assert short.keys() == every.keys() and meaning == ""  # of so many no title can say it
    assert len(set(short.values())) == len(short)


def test_ranges_take_the_place_of_search_spaces():
    options = format_candidates(["integer", "mxint", "8.4"], {"width": (3, 8), "block_size": (16,)})
    assert set(options.values()) == {
        Integer(3, "mse"),
        Integer(8, "mse"),
        MXInt(3, block_size=16),
        MXInt(8, block_size=16),
        Integer(8, 4),
    }
    biases = format_candidates(["log"], {"width": (8,), "exponent_bias": (3, 7)})
    assert list(biases.values()) == [Log(8, 3), Log(8, 7)]
    assert list(format_candidates([BlockFP(4)]).values()) == [BlockFP(4)]
    assert list(format_candidates(["float"])) == ["float"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["integr"],), "did you mean 'integer'"),
        ((["int4"],), "did you mean 4.auto"),
        ((["integer"], {"widht": (4,)}), "did you mean 'width'"),
        ((["integer"], {"width": (99,)}), "integer.width: got 99"),
        ((["integer"], {}, "mes"), "did you mean 'mse'"),
        (([],), "at least one"),
    ],
)
def test_what_cannot_be_is_said(arguments, message):
    with pytest.raises(ConfigError, match=message):
        format_candidates(*arguments)


@pytest.mark.parametrize(
    "number_format", [Log(4), MinifloatIEEE(4, 2), MinifloatDenorm(6, 3), MinifloatIEEE(8, 4)]
)
def test_a_derived_bias_is_the_best_of_all(number_format):
    x = torch.randn(4000) * 0.037
    found = fitted(number_format, x)

    def with_bias(bias):
        return dataclasses.replace(number_format, exponent_bias=bias)

    errors = {b: (with_bias(b).round(x) - x).square().sum().item() for b in range(-8, 40)}
    assert errors[found.exponent_bias] <= 1.0001 * min(errors.values())
    loosest = fitted(number_format, x, "minmax")
    assert not loosest.saturates(x).any()
    assert with_bias(loosest.exponent_bias + 1).saturates(x).any()
    x[0] = 40.0
    assert fitted(number_format, x, "percentile") == loosest


def test_what_has_no_scale_to_derive_stays():
    x = torch.randn(100)
    assert fitted(MXInt(4), x) == MXInt(4) and fitted(Log(4, 3), x) == Log(4, 3)
    assert fitted(Integer(4, "minmax"), x) == Integer(4, "minmax").fitted(x)
    for nothing in (torch.zeros(5), torch.empty(0), torch.full((3,), torch.inf)):
        assert fitted(Log(4), nothing) == Log(4)


def test_a_format_of_one_width_keeps_it_beside_others():
    found = format_candidates(["mxint:width=4", "binary", "integer"], {"width": (3, 8)})
    signs = ["binary", "binary:scaling_factor=true"]
    assert list(found) == [*signs, "3.mse", "mxint:width=4", "8.mse"]
    with pytest.raises(ConfigError, match=r"no field 'width' in .* \(binary\)"):
        format_candidates(["binary"], {"width": (8,)})
