"""Engines at the bottom of the house: each can be imported without the rooms above it."""

import json

import pytest

from tests.fresh import printed_by

ENGINES = ("captured", "search", "bench", "base.native")
BELOW = {
    "base",
    "config",
    "errors",
    "paths",
    "private",
    "runs",
    "statistics",
}
"""Rooms that every engine may import."""


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_imports_no_room_above_it(engine):
    code = (
        f"import json, sys, chop.{engine}\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('chop.')]))"
    )
    rooms = {name.split(".")[1] for name in json.loads(printed_by(code))}
    assert engine.partition(".")[0] in rooms
    assert rooms - {engine.partition(".")[0]} <= BELOW
