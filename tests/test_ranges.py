"""Ranges of settings: `Annotated[int, Range(1, 100)]` on a field, checked by `chop.config`."""

from __future__ import annotations

import copy
import importlib
import json
import math
import pickle
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest

from chop.actions.search.settings import NasConfig
from chop.cli.help import notes
from chop.config import Range, check_fields, parse
from chop.errors import ConfigError
from chop.formats import parse_format
from chop.formats.mxint import MXInt
from chop.pruning.settings import WeightPruning
from tests.cli.test_adapter import COMMANDS
from tests.subcases import subcases

INF = math.inf
REQUIRED = {
    "model": "vit",
    "to": ("gguf",),
    "width": 8,
    "frac_width": 4,
    "exponent_width": 4,
    "batches": (),
    "weight": "mxint8",
    "sparsity": 0.5,
}
# Refused below, least and most accepted, refused above, each measured when classes checked their
# ranges by hand. None is no bound; a class has the rows of its bases.
BOUNDS = json.loads(Path(__file__).with_name("bounds.json").read_text(encoding="utf-8"))


@subcases("name", BOUNDS)
def test_the_same_numbers_are_accepted(name):
    module, _, cls = name.rpartition(".")
    kind = getattr(importlib.import_module(module), cls)
    rows = [BOUNDS.get(f"{base.__module__}.{base.__qualname__}", {}) for base in kind.__mro__]
    types = {each.name: str(each.type) for each in fields(kind)}
    needed = [each.name for each in fields(kind) if each.default is each.default_factory]
    given = {each: REQUIRED[each] for each in needed}
    for field, (below, least, most, above) in ChainMap(*rows).items():
        is_list = "tuple[" in types[field] and "int |" not in types[field]
        for number, is_accepted in ((least, True), (most, True), (below, False), (above, False)):
            settings = {**given, field: [number] if is_list else number}
            if is_accepted:
                assert isinstance(parse(kind, settings, "here"), kind)
            elif number is not None:
                with pytest.raises(ConfigError, match=field):
                    parse(kind, settings, "here")


def test_ranges_are_in_words():
    texts = [Range(0, 1), Range(1), Range(above=0), Range(0, below=1), Range(most=1, above=0)]
    assert list(map(str, texts)) == [
        "0 to 1",
        "1 or more",
        "more than 0",
        "0 to below 1",
        "above 0 to 1",
    ]


@dataclass(frozen=True)
class Settings:
    rows: Annotated[int | None, Range(1, 8, "rows")] = None
    width: Annotated[int | Literal["auto"], Range(2, 4)] = "auto"
    sizes: Annotated[tuple[int, ...], Range(1)] = ()
    shares: Annotated[float | Mapping[str, float] | None, Range(0, below=1)] = None
    each: tuple[Annotated[int, Range(1)], ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "settings")


@dataclass(frozen=True)
class Wider(Settings):
    width: Annotated[int | Literal["auto"], Range(2, 64)] = "auto"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": 0}, "rows: got 0, expected 1 to 8 rows."),
        ({"rows": np.int64(9)}, "rows: got 9, expected 1 to 8 rows."),
        ({"rows": 10**400}, "expected 1 to 8 rows."),
        ({"rows": 2.0}, "rows: expected int or None, got 2.0 (float)."),
        ({"width": 5}, "width: got 5, expected 2 to 4."),
        ({"width": "wide"}, "width: expected int or 'auto', got 'wide' (str)."),
        ({"sizes": [4, 0]}, "sizes: got 0, expected 1 or more."),
        ({"shares": math.nan}, "shares: got nan, expected 0 to below 1."),
        ({"shares": -INF}, "shares: got -inf, expected 0 to below 1."),
        ({"shares": {"fc1": 0.5, "fc2": 1}}, "shares['fc2']: got 1, expected 0 to below 1."),
        ({"shares": 50}, "shares: got 50, expected 0 to below 1; for 50 %, write 0.5."),
        ({"shares": 2}, "shares: got 2, expected 0 to below 1."),
        ({"each": [1, -1]}, "each[1]: got -1, expected 1 or more."),
    ],
)
def test_numbers_out_of_range_are_refused_when_made_and_when_parsed(given, message):
    for make in (lambda: Settings(**given), lambda: parse(Settings, given, "settings")):
        with pytest.raises(ConfigError) as raised:
            make()
        assert str(raised.value).endswith(message)


def test_a_subclass_has_its_own_range_and_those_of_its_bases():
    assert Wider(width=64).width == 64
    for given in ({"width": 65}, {"rows": 9}):
        with pytest.raises(ConfigError, match="expected"):
            Wider(**given)


def test_copies_are_checked_again():
    settings = Settings(rows=8, shares={"fc1": 0.0})
    assert copy.deepcopy(settings) == settings == pickle.loads(pickle.dumps(settings))
    with pytest.raises(ConfigError, match=r"settings\.rows: got 9"):
        replace(settings, rows=9)


def test_formats_blocks_and_shares_by_layer():
    for size in (0, (2, 0), [-1], 2**20 + 1):
        with pytest.raises(ConfigError, match=r"mxint\.block_size: got .* to 1048576 elements"):
            MXInt(8, block_size=size)
        with pytest.raises(ConfigError, match=r"block_size: got .* to 1048576 elements"):
            parse_format({"name": "mxint", "block_size": size})
    with pytest.raises(ConfigError, match=r"weight\.sparsity\['fc1'\]: got 1.0, expected 0 to"):
        WeightPruning({"fc1": 1.0})


def test_pages_show_ranges():
    options = {each.name: each for each in COMMANDS["search nas"].params}
    assert notes(options["limit"])[0] == "[1 to 1e9; default: all]"
    assert notes(options["share"])[0] == "[0.001 to 1; default: 0.25]"
    assert notes(options["model"])[0] == "[default: vit]"
    with pytest.raises(ConfigError, match="NasConfig.share: got 1.5, expected 0.001 to 1."):
        NasConfig(share=1.5)
