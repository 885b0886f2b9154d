"""Lookup tables as elements of one's own formats."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from chop.errors import ConfigError
from chop.formats import NF4, REGISTRY, NumberFormat
from chop.formats.elements import LookupTable
from chop.formats.groups import Blocks
from chop.formats.layout import Layout
from chop.formats.scaling import FloatScale
from chop.formats.statistic import LARGEST
from chop.report.layout_text import describe_layout
from chop.testing.formats import CHECKS

LOPSIDED = (0.0, -1.0, 0.125, -0.25, 0.5, 0.75, 0.0, 0.375)
"""Any order, a repeated number, and a highest number below the largest magnitude."""


def test_values_become_the_nearest_number_and_of_two_the_lower_one():
    x = np.linspace(-1.5, 1.5, 97)  # has every middle, in float64 and exact
    numbers = np.unique(LOPSIDED)
    nearest = numbers[np.abs(x[:, None] - numbers).argmin(1)]  # the first of equals is the lower
    element = LookupTable(LOPSIDED, 3)
    y = element.round(torch.from_numpy(x))
    assert y.tolist() == nearest.tolist()
    assert torch.equal(element.values(element.codes(y)), y)
    assert element.rounding == "nearest_down"


def test_the_ends_are_those_of_the_table():
    element = LookupTable(LOPSIDED, 3)
    assert (element.lowest, element.highest, element.largest) == (-1.0, 0.75, 1.0)
    x = torch.tensor([-1.0, -1.25, 0.75, 0.875, torch.nan])
    assert element.saturates(x).tolist() == [False, True, False, True, False]


def test_a_format_of_a_table_obeys_the_laws():
    try:

        @dataclass(frozen=True)
        class Codebook(NumberFormat):
            """`LOPSIDED` times the largest magnitude of four neighbors."""

            name: ClassVar[str] = "codebook_of_a_test"

            def layout(self):
                return Layout(LookupTable(LOPSIDED, 3), Blocks((4,)), FloatScale(LARGEST, 1.0))

        laws = [law for law in CHECKS if law.applies(Codebook())]
        assert len(laws) > 12
        for law in laws:
            if law.name not in ("key pickle and copy give the same format",):  # a local class
                law.run(Codebook())
    finally:
        del REGISTRY["codebook_of_a_test"]


def test_a_negative_zero_becomes_a_zero():
    x = torch.tensor([-0.2, 0.0, 0.2], dtype=torch.float64)
    for table in ((0.0, 1.0, -1.0, -0.0), (-0.0, 1.0, -1.0, 0.0)):
        element = LookupTable(table, 2)
        y = element.round(x)
        assert y.tolist() == [0.0] * 3 and not y.signbit().any()
        assert element.codes(y).tolist() == [0] * 3 and str(element.table).count("-0.0") == 0


def test_an_error_of_a_table_names_the_format():
    @dataclass(frozen=True)
    class Short(NumberFormat):
        name: ClassVar[str] = "short_codebook_of_a_test"

        def layout(self):
            return Layout(LookupTable((0.0, 1.0, -1.0), 2))

    try:
        with pytest.raises(ConfigError, match="^number format 'short_.*': LookupTable: .* Repeat"):
            Short()
    finally:
        del REGISTRY["short_codebook_of_a_test"]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ((0.0, 1.0, -1.0), "4 numbers for a width of 2 bits, got 3. Repeat a number to fill a"),
        ((*range(8),), "4 numbers for a width of 2 bits, got 8. Pass 3 as its width"),
        ((-1.0, -0.5, 0.5, 1.0), "one of which is 0"),
        ((0.0, 1.0, float("nan"), 2.0), "expected finite numbers"),
        ((0.0, 1.0, 1e39, 2.0), "expected finite numbers of float32"),
        ([0.0, 1.0, 3.0, 2.0], "expected a tuple of numbers"),
    ],
)
def test_other_tables_are_rejected(table, why):
    with pytest.raises(ConfigError, match=why):
        LookupTable(table, 2)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"width": 0}, "a width of 1 bit or more"),
        ({"width": 1.0}, "a width of 1 bit or more"),
        ({"rounding": "floor"}, "expected the rounding 'nearest_down', got 'floor'"),
    ],
)
def test_other_settings_of_a_table_are_rejected(settings, why):
    with pytest.raises(ConfigError, match=why):
        LookupTable(**{"table": (0.0, 1.0), "width": 1} | settings)


def test_a_page_shows_the_ends_of_a_table():
    table = "LookupTable(table of 16 numbers from -1 to 1)"
    scale = "float32 (largest) per block of 64"
    assert describe_layout(NF4().layout()) == f"{table} x {scale}; nearest down"
