"""What stands in a slot of a spec: number formats, and what takes their place."""

import inspect

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import (
    OPERANDS,
    Binary,
    Float,
    Integer,
    NumberFormat,
    Quantizer,
    QuantSpec,
    ScaleInteger,
    StandIn,
    formats,
    parse_format,
    parse_format_string,
)
from tests.stand_ins import Affine, Watch
from tests.subcases import subcases

STAND_INS = [Watch(), Affine()]
BY_CLASS = subcases("stand_in", STAND_INS, ids=lambda x: type(x).__name__)


def test_every_format_is_a_quantizer_and_no_stand_in():
    kinds = formats()
    assert len(kinds) > 10
    assert all(issubclass(kind, Quantizer) and not issubclass(kind, StandIn) for kind in kinds)
    assert not any(isinstance(stand_in, NumberFormat) for stand_in in STAND_INS)


def test_what_a_quantizer_lacks_is_told_when_one_is_made():
    members = {"__call__", "fitted", "is_fitted", "is_identity", "cache_key", "label"}
    assert Quantizer.__abstractmethods__ == members
    assert StandIn.__abstractmethods__ == {"__call__"}
    for kind in (Quantizer, StandIn, type("Half", (Quantizer,), {"label": "half"})):
        with pytest.raises(TypeError, match="abstract"):
            kind()
    documented = {name: inspect.getdoc(getattr(Quantizer, name)) for name in members}
    assert all(documented.values())


@BY_CLASS
def test_a_stand_in_waits_for_nothing_and_is_never_left_out(stand_in):
    assert stand_in.fitted(torch.ones(3)) is stand_in
    assert stand_in.is_fitted and not stand_in.is_identity
    assert stand_in.cache_key is None
    assert stand_in.label == type(stand_in).__name__


def test_results_of_formats_are_kept_unless_they_are_drawn():
    plain, drawn = Binary(), Binary(stochastic=True)
    assert plain.cache_key == plain.key == Binary().cache_key
    assert plain.cache_key != Integer(8, 4).cache_key
    assert not drawn.is_deterministic and drawn.cache_key is None
    assert Float().cache_key == Float().key


@BY_CLASS
@subcases("operand", OPERANDS)
def test_a_stand_in_stands_in_every_slot(stand_in, operand):
    others = [name for name in OPERANDS if name != operand]
    grid = Integer(8, 4)
    spec = QuantSpec(grid, grid, grid, grid).with_quantizers(**{operand: stand_in})
    assert getattr(spec, operand) is stand_in and dict(spec.items())[operand] is stand_in
    assert all(getattr(spec, name) == grid for name in others)
    assert spec.keeping(operand) == QuantSpec(**{operand: stand_in})
    assert spec.only([operand]) == QuantSpec(**{"data_out": grid, operand: stand_in})
    assert not spec.keeping(operand).is_float and spec.keeping().is_float
    assert spec.fitted({operand: torch.ones(2)}) == spec
    assert spec.is_fitted and spec.lsq_operands == []
    assert not spec.with_quantizers(**{others[0]: Integer(8, "auto")}).is_fitted


@BY_CLASS
def test_configs_take_stand_ins_where_they_take_formats(stand_in):
    assert QuantSpec.uniform(stand_in) == QuantSpec(stand_in, stand_in, stand_in)
    assert QuantSpec.parse(QuantSpec.uniform(stand_in), ["weight"]) == QuantSpec(weight=stand_in)
    nested = {"data_in": stand_in, "weight": {"name": "integer", "width": 8, "frac_width": 4}}
    assert QuantSpec.parse(nested) == QuantSpec(stand_in, Integer(8, 4))
    flat = {"name": "scale_integer", "width": 8, "weight": stand_in}
    whole = ScaleInteger(8)
    assert QuantSpec.parse(flat) == QuantSpec(whole, stand_in, whole)
    assert QuantSpec.parse({"data_in": stand_in, "bypass": True}).is_float


def test_a_spec_of_stand_ins_has_nothing_to_learn():
    with pytest.raises(ConfigError, match="weight=Watch has no learnable scale"):
        QuantSpec(weight=Watch(), gradient="lsq")
    mixed = QuantSpec(data_in=Watch(), weight=ScaleInteger(4), gradient="lsq")
    assert mixed.lsq_operands == ["weight"]
    assert mixed.keeping("data_in").gradient == "identity"


@pytest.mark.parametrize("operand", OPERANDS)
def test_who_needs_a_number_format_is_told_that_there_is_none(operand):
    spec = QuantSpec(**{operand: Watch()})
    message = (
        f"{operand}: expected a number format, got the stand-in Watch, .*"
        rf"with_quantizers\({operand}="
    )
    with pytest.raises(ConfigError, match=message):
        spec.number_format(operand)
    others = {name: spec.number_format(name) for name in OPERANDS if name != operand}
    assert set(others.values()) == {Float()}


def test_a_name_or_mapping_never_means_a_stand_in():
    with pytest.raises(ConfigError, match="expected a format, a name or a mapping, got a Watch"):
        parse_format(Watch())
    with pytest.raises(ConfigError, match="unknown number format 'Watch'"):
        QuantSpec.parse({"data_in": "Watch"})


@pytest.mark.parametrize("text", ["mxint:width=4", "8.auto"])
def test_a_format_string_instead_of_a_name_is_refused_with_its_reader(text):
    with pytest.raises(ConfigError, match=r"expected a name.*parse_format_string"):
        parse_format(text)
    assert parse_format_string(text).name in ("mxint", "integer")


@pytest.mark.parametrize("given", [3, "integer", None, Integer])
def test_a_slot_takes_nothing_else_than_a_quantizer(given):
    with pytest.raises(ConfigError, match=r"data_in: expected a number format, such as .*, got "):
        QuantSpec(data_in=given)
