"""Circuits of a decoder's state, against the operators, and the operators against a loop."""

import pytest
import torch

from chop.errors import ConfigError
from chop.nn.integer import Edge, IntegerCachedMatmul, IntegerPosition
from chop.nn.integer.cache import cached_rows
from tests.hardware.bench import PROFILES, Driven, check, drawn, needs_tools

FLAGS = Edge.of(1.0, 0, 1)
BYTES = Edge.of(0.25, -128, 127)
STARTS = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0])[:, None]


def positions(length):
    return IntegerPosition(length)(STARTS)


def flags():
    """Flags of the first token of each sequence."""
    return Driven(drawn(FLAGS, 1).stream, STARTS)


def cached(rows, a, length, heads, groups, features, is_transposed):
    """A product with a cache, and its inputs for a token each."""
    terms = features if is_transposed else length
    operator = IntegerCachedMatmul(a, rows, terms, length, groups, is_transposed)
    place = Driven(drawn(Edge.of(1.0, 0, length - 1), 1).stream, positions(length))
    count = len(STARTS)
    first = drawn(a, heads * groups, 1, terms, samples=count)
    return operator, [first, drawn(rows, heads, 1, features, samples=count, seed=1), place]


def test_positions_restart_at_flags_and_after_the_last_one():
    assert positions(5).flatten().tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1, 0, 1]
    unmarked = torch.zeros(4, 1, dtype=torch.int64)
    assert IntegerPosition(3)(unmarked).flatten().tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("is_transposed", [True, False])
def test_a_product_reads_the_rows_of_its_sequence_and_zeros(is_transposed):
    length, written = 5, []
    operator, inputs = cached(BYTES, BYTES, length, 2, 3, 4, is_transposed)
    a, rows, places = (each.codes for each in inputs)
    for token, (row, place) in enumerate(zip(rows, places, strict=True)):
        written = [*written[: int(place)], row[:, 0]]
        cache = torch.zeros(2, length, 4, dtype=torch.int64)
        cache[:, : len(written)] = torch.stack(written, 1)
        for head in range(6):
            read = cache[head // 3].T if is_transposed else cache[head // 3]
            expected = a[token, head].double() @ read.double()
            assert torch.equal(operator(a, rows, places)[token, head].double(), expected)


@needs_tools
@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.sampled(1)
def test_position_counter(length):
    assert check(IntegerPosition(length), flags(), profiles=PROFILES).cycles == 1


@needs_tools
@pytest.mark.parametrize(
    ("length", "heads", "groups", "features", "is_transposed", "rows", "fold", "profiles"),
    [
        (5, 2, 3, 4, True, BYTES, 1, PROFILES),
        (5, 2, 3, 4, False, BYTES, 130, PROFILES),
        (5, 2, 3, 4, True, BYTES, 200, ("none", "bursts")),
        (5, 3, 1, 4, False, Edge.of(1.0, 1, 9), 1, ("none", "bursts")),
        (8, 1, 2, 6, True, Edge.of(1.0, 0, 9), 60, ("none", "uniform")),
        (1, 2, 1, 3, True, BYTES, 1, ("none", "uniform")),
        (1, 2, 1, 3, False, BYTES, 9, ("none", "uniform")),
        (4, 1, 1, 1, True, BYTES, 1, ("none", "uniform")),
        (4, 1, 1, 1, False, BYTES, 1, ("none", "uniform")),
    ],
)
@pytest.mark.sampled(2)
def test_product_with_a_cache(length, heads, groups, features, is_transposed, rows, fold, profiles):
    case = cached(rows, Edge.of(1.0, -3, 5), length, heads, groups, features, is_transposed)
    plan = check(case[0], *case[1], fold=fold, profiles=profiles)
    lanes = plan.lanes[1]
    assert plan.cycles == heads * features // lanes * (1 + groups * length)
    assert plan.cycles <= fold or lanes == features


def test_a_cache_that_fills_no_memory_is_refused():
    rows = torch.zeros(4000, 1, 64, dtype=torch.int64)
    with pytest.raises(ConfigError, match="caches of 100,000 tokens for 4,000 .* 191 GiB at once"):
        cached_rows(rows, torch.zeros(4000, 1, dtype=torch.int64), 100_000)
