"""Measurement of the faster 8-bit product, and its file."""

import json
import math
import time

import pytest
import torch

from chop.kernels.cpu import crossovers, int8

THREADS = 3
SMALL, LARGE = (math.prod(shape) for shape in crossovers.SHAPES)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    monkeypatch.setattr(crossovers, "TABLES", {})
    int8._crossover.cache_clear()
    yield tmp_path / crossovers.FILE
    int8._crossover.cache_clear()


def calls_with(faster, counter):
    """Products of which oneDNN's is faster from a number of rows on, by weight."""

    def calls(shape, rows):
        counter.append((shape, rows))
        is_faster = rows >= faster[math.prod(shape)]
        loops, onednn = (2e-3, 0) if is_faster else (0, 2e-3)
        return lambda: time.sleep(loops), lambda: time.sleep(onednn)

    return calls


def test_rows_are_those_from_which_it_stays_faster(empty_cache):
    asked = []
    calls = calls_with({SMALL: math.inf, LARGE: 64}, asked)
    assert crossovers.find_rows(SMALL, THREADS, calls) == math.inf
    assert crossovers.find_rows(LARGE, THREADS, calls) == 64
    # Weights between and beyond the measured ones have the entry of the nearest.
    assert crossovers.find_rows(70_000, THREADS, calls) == math.inf
    assert crossovers.find_rows(2**28, THREADS, calls) == 64
    # A count at which oneDNN is slower ends the search: fewer rows are not measured.
    small, large = crossovers.SHAPES
    assert asked == [(small, 256), (large, 256), (large, 128), (large, 64), (large, 32)]


def test_a_stored_table_is_read_instead(empty_cache):
    crossovers.find_rows(SMALL, THREADS, calls_with({SMALL: 16, LARGE: 256}, []))
    crossovers.TABLES.clear()
    asked = []
    other = calls_with({SMALL: math.inf, LARGE: math.inf}, asked)
    assert crossovers.find_rows(SMALL, THREADS, other) == 16 and asked == []
    assert crossovers.find_rows(SMALL, THREADS + 1, other) == math.inf and asked != []
    machines = json.loads(empty_cache.read_text())
    assert {len(name.split(", ")) for name in machines} == {4} and len(machines) == 2


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"MACHINE": 3}',
        '{"MACHINE": {"1": 16}}',
        '{"MACHINE": {"A": "x", "B": 16}}',
        '{"MACHINE": {"A": 17, "B": 16}}',
        '{"MACHINE": {"A": true, "B": 16}}',
    ],
)
def test_a_damaged_table_is_measured_again(empty_cache, text):
    names = {"MACHINE": crossovers._machine(THREADS), "A": str(SMALL), "B": str(LARGE)}
    for name, value in names.items():
        text = text.replace(f'"{name}"', json.dumps(value))
    empty_cache.write_text(text)
    assert crossovers.stored_table(THREADS) is None
    calls = calls_with({SMALL: 256, LARGE: 16}, [])
    assert crossovers.find_rows(LARGE, THREADS, calls) == 16
    crossovers.TABLES.clear()
    assert crossovers.stored_table(THREADS) == {SMALL: 256, LARGE: 16}


def test_a_table_that_cannot_be_stored_is_measured_once(empty_cache):
    empty_cache.mkdir()  # a folder in place of the file
    asked = []
    calls = calls_with({SMALL: math.inf, LARGE: math.inf}, asked)
    assert crossovers.measure(THREADS, calls) == crossovers.stored_table(THREADS)
    assert crossovers.find_rows(SMALL, THREADS, calls) == math.inf and len(asked) == 2


@pytest.mark.skipif(not int8.is_exact(), reason="oneDNN adds in 16 bits on this CPU")
def test_measured_products_are_equal(empty_cache):
    state = torch.get_rng_state()
    loops, onednn = int8._calls((96, 1024), 16)
    assert torch.equal(loops(), onednn()) and len(loops().unique()) > 1000
    int8.measure_crossovers()
    table = crossovers.stored_table(torch.get_num_threads())
    assert {int8.rows_for_onednn(shape) for shape in crossovers.SHAPES} == {*table.values()}
    assert torch.equal(torch.get_rng_state(), state)
