"""Mistakes in number formats of one's own, each with a sentence that names it."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import REGISTRY, Integer, NumberFormat, parse_format
from chop.formats.elements import Element, Fixed
from chop.formats.groups import Blocks, Whole
from chop.formats.layout import Layout
from chop.formats.scaling import ConstantScale
from chop.testing import check_format

INTEGERS = Fixed(4, 0, "twos_complement")


class NoWidth(Element):
    """Element without a width."""

    largest = 1.0

    def round(self, x):
        return x.round().clamp(-1, 1)

    def codes(self, y):
        return y.long() + 1

    def values(self, codes):
        return codes.double() - 1


@pytest.fixture(autouse=True)
def _registry():
    before = set(REGISTRY)
    yield
    for name in set(REGISTRY) - before:
        del REGISTRY[name]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Whole("collumn"), "Whole: expected one of tensor, channel, row, got 'collumn'"),
        (
            lambda: Blocks(32),
            r"Blocks: expected a tuple of positive sizes, .*, got 32",
        ),
        (lambda: Blocks((32, 0)), r"Blocks: .*, got \(32, 0\)"),
        (lambda: Blocks(()), r"Blocks: .*, got \(\)"),
        (lambda: ConstantScale(1.0), "ConstantScale: expected a tuple of numbers, got 1.0"),
        (lambda: Layout("int4"), "layout: expected an Element as element, got 'int4'"),
        (lambda: Layout(INTEGERS, (32,)), r"layout: expected Groups as groups, got \(32,\)"),
        (lambda: Layout(INTEGERS, scaling=1.0), "expected a Scaling or None as scaling, got 1.0"),
        (lambda: Layout(NoWidth()), "layout: NoWidth has no width"),
    ],
)
def test_parts_of_a_layout_are_checked(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_format_has_a_layout():
    @dataclass(frozen=True)
    class Wrong(NumberFormat):
        name: ClassVar[str] = "wrong_layout"

        def layout(self):
            return INTEGERS

    with pytest.raises(ConfigError, match=r"wrong_layout.layout\(\): expected a Layout, got Fixed"):
        Wrong()


@pytest.mark.parametrize("name", ["my format", "int:4", "4bit", "a,b", ""])
def test_a_name_can_be_written_in_a_format_string(name):
    with pytest.raises(ConfigError, match="expected a name of letters, digits and underscores"):
        type("Wrong", (NumberFormat,), {"name": name})
    assert name not in REGISTRY


def test_a_format_without_a_name_is_not_made():
    @dataclass(frozen=True)
    class Nameless(NumberFormat):
        def layout(self):
            return Layout(INTEGERS)

    with pytest.raises(ConfigError, match="Nameless: expected a name for configs"):
        Nameless()


@pytest.mark.parametrize("decorate", [lambda kind: kind, dataclass])
def test_a_class_is_a_frozen_dataclass(decorate):
    @decorate
    class Mutable(NumberFormat):
        name: ClassVar[str] = "mutable_format"

        def layout(self):
            return Layout(INTEGERS)

    for use in (lambda: parse_format("mutable_format"), lambda: check_format(Mutable, [])):
        with pytest.raises(ConfigError, match=r"write @dataclass\(frozen=True\) above the class"):
            use()


@pytest.mark.parametrize(
    ("kind", "examples"), [("integer", ["8.4"]), (Integer, Integer(8, 4)), (Integer, [])]
)
def test_the_check_takes_a_class_and_examples(kind, examples):
    with pytest.raises(AssertionError, match="expected (a class of formats|examples of this)"):
        check_format(kind, examples)


def test_the_check_names_keys_of_a_search_space_that_are_no_fields():
    @dataclass(frozen=True)
    class Misspelled(NumberFormat):
        name: ClassVar[str] = "misspelled_space"
        search_space: ClassVar = {"widht": (2, 4)}

        def layout(self):
            return Layout(INTEGERS)

    with pytest.raises(AssertionError, match=r"the class has no fields \['widht'\]"):
        check_format(Misspelled, [Misspelled()])
    assert Misspelled().round(torch.tensor([0.6])).item() == 1


@pytest.mark.parametrize(
    ("method", "result", "message"),
    [
        ("round", 3, r"round\(\): expected a tensor of shape \(2,\), got 3"),
        ("round", torch.ones(3), r"round\(\): expected a tensor of shape \(2,\), got \(3,\)"),
        ("bits", "four", r"bits\(\): expected a number, got 'four'"),
        ("bits", None, r"bits\(\): expected a number, got None"),
    ],
)
def test_a_method_that_returns_something_else_is_named(method, result, message):
    members = {method: lambda self, *args: result}
    kind = dataclass(frozen=True)(type("Returns", (NumberFormat,), members | {"name": "returns"}))
    with pytest.raises(ConfigError, match=f"^returns.{message}"):
        getattr(kind(), method)(*[torch.ones(2)] * (method == "round"))
