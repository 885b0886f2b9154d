"""Circuits of a decoder's state, against the operators, and the operators against a loop."""

import pytest
import torch

from chop.errors import ConfigError
from chop.nn.integer import Edge, IntegerCache, IntegerPosition
from tests.hardware.bench import PROFILES, Driven, check, drawn, needs_tools

FLAGS = Edge.of(1.0, 0, 1)
BYTES = Edge.of(0.25, -128, 127)
STARTS = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0])[:, None]
HEAD_BY_HEAD = torch.tensor([[[0, 1, 2]], [[3, 4, 5]]])
FEATURES_REVERSED = torch.tensor([[[3, 2, 1, 0]]])


def positions(length):
    return IntegerPosition(length)(STARTS)


def flags():
    """Flags of the first token of each sequence."""
    return Driven(drawn(FLAGS, 1).stream, STARTS)


def cache_inputs(edge, length, places=HEAD_BY_HEAD):
    """Rows of tokens, and the positions of these tokens."""
    rows = drawn(edge, *places.shape, samples=len(STARTS), positions=places)
    return [rows, Driven(drawn(Edge.of(1.0, 0, length - 1), 1).stream, positions(length))]


def test_positions_restart_at_flags_and_after_the_last_one():
    assert positions(5).flatten().tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1, 0, 1]
    unmarked = torch.zeros(4, 1, dtype=torch.int64)
    assert IntegerPosition(3)(unmarked).flatten().tolist() == [0, 1, 2, 0]


def test_a_cache_has_the_rows_of_its_sequence_and_zeros():
    length, written = 5, []
    rows = drawn(BYTES, 2, 1, 3, samples=len(STARTS)).codes
    result = IntegerCache(BYTES, length)(rows, positions(length))
    for row, position, cached in zip(rows, positions(length), result, strict=True):
        written = [*written[: int(position)], row[:, 0]]
        empty = [torch.zeros(2, 3, dtype=torch.int64)] * (length - len(written))
        assert torch.equal(cached, torch.stack([*written, *empty], 1))


@needs_tools
@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.sampled(1)
def test_position_counter(length):
    assert check(IntegerPosition(length), flags(), profiles=PROFILES).cycles == 1


@needs_tools
@pytest.mark.parametrize(
    ("length", "places", "edge", "fold", "profiles"),
    [
        (5, HEAD_BY_HEAD, BYTES, 1, PROFILES),
        (5, HEAD_BY_HEAD, BYTES, 30, PROFILES),
        (8, FEATURES_REVERSED, Edge.of(1.0, 0, 9), 16, ("none", "bursts")),
        (1, HEAD_BY_HEAD, BYTES, 3, ("none", "uniform")),
        (4, torch.zeros(1, 1, 1, dtype=torch.int64), BYTES, 1, ("none", "uniform")),
    ],
)
@pytest.mark.sampled(1)
def test_cache(length, places, edge, fold, profiles):
    inputs = cache_inputs(edge, length, places)
    plan = check(IntegerCache(edge, length), *inputs, fold=fold, profiles=profiles)
    assert plan.resources.memory_bits == length * places.numel() * edge.bits
    assert plan.cycles <= max(fold, length)


def test_a_cache_that_fills_no_memory_is_refused():
    rows = torch.zeros(4000, 1, 64, dtype=torch.int64)
    with pytest.raises(ConfigError, match="caches of 100,000 tokens for 4,000 .* 191 GiB at once"):
        IntegerCache(BYTES, 100_000)(rows, torch.zeros(4000, 1, dtype=torch.int64))
