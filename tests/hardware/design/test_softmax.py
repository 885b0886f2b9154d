"""Circuit of the softmax, against the operator."""

import pytest
import torch

from chop.errors import ConfigError
from chop.hardware.design.stream import Stream
from chop.hardware.design.values import MASK_EDGE
from chop.nn.integer import Edge, IntegerOptions, IntegerSoftmax
from chop.nn.integer.mask import KeptKeys
from tests.hardware.bench import PROFILES, Driven, check, drawn, needs_tools

pytestmark = needs_tools
SOME = ("uniform", "bursts")


@pytest.mark.parametrize(
    ("shape", "dim", "edge", "mode", "profiles"),
    [
        ((2, 17, 17), -1, Edge.of(0.05, -128, 127), "small", PROFILES),
        ((5, 17), 2, Edge.of(0.05, -128, 127), "exact", PROFILES),
        ((7, 13), -1, Edge.of(0.4, -9, 5), "small", SOME),
        ((6, 1), -1, Edge.of(0.5, -8, 7), "small", SOME),
        ((9, 2), -1, Edge.of(0.3, -3, 3), "small", ("none", *SOME)),
        ((3, 64), -1, Edge.of(0.01, -512, 511), "small", SOME),
        ((8, 5), -1, Edge.of(0.01, 2, 2), "exact", ("none", *SOME)),
    ],
)
@pytest.mark.long
def test_softmax(shape, dim, edge, mode, profiles):
    operator = IntegerSoftmax(edge, shape[-1], dim, IntegerOptions(mode))
    entered = drawn(edge, *shape)
    entered.codes[0], entered.codes[1] = edge.low, edge.high
    check(operator, entered, profiles=profiles)


@pytest.mark.long
def test_softmax_along_the_dimension_that_travels_fastest():
    edge = Edge.of(0.05, -128, 127)
    operator = IntegerSoftmax(edge, 7, -2, IntegerOptions())
    positions = torch.arange(7 * 6).view(6, 7)[torch.randperm(6)].T
    plan = check(operator, drawn(edge, 7, 6, positions=positions), profiles=SOME)
    assert torch.equal(plan.out.positions, positions)


HEAD_BY_HEAD = torch.arange(2 * 5 * 7).view(5, 2, 7).transpose(0, 1).contiguous()


def mask_of(keys, samples=6):
    """Masks of all lengths, one with a hole, and one that hides all."""
    numbers = (torch.arange(keys) < torch.arange(samples)[:, None] * keys // (samples - 2)).long()
    numbers[-1, :-1] = torch.arange(keys - 1) % 2
    return Driven(Stream.in_order((1, 1, keys), MASK_EDGE, 1), numbers.view(samples, 1, 1, keys))


@pytest.mark.parametrize(
    ("shape", "edge", "positions", "is_causal", "mode", "profiles"),
    [
        ((2, 5, 7), Edge.of(0.05, -128, 127), HEAD_BY_HEAD, False, "small", PROFILES),
        ((2, 5, 7), Edge.of(0.05, -128, 127), HEAD_BY_HEAD, True, "small", ("none", *SOME)),
        ((2, 3, 6), Edge.of(0.4, 3, 9), None, True, "exact", SOME),
        ((1, 4, 4), Edge.of(0.01, -512, 511), None, True, "small", SOME),
        ((3, 1, 2), Edge.of(0.3, -3, 3), None, False, "small", SOME),
        ((1, 2, 9), Edge.of(0.3, -9, -2), None, False, "small", SOME),
    ],
)
@pytest.mark.sampled(1)
def test_softmax_of_what_a_mask_keeps(shape, edge, positions, is_causal, mode, profiles):
    *_, queries, keys = shape
    operator = IntegerSoftmax(edge, keys, -1, IntegerOptions(mode))
    scores, mask = drawn(edge, *shape, samples=6, positions=positions), mask_of(keys)
    kept = KeptKeys(queries, keys, is_causal)
    plan = check(operator, scores, mask, kept=kept, profiles=profiles)
    assert (
        plan.module == "chop_masked_softmax"
        and not operator(scores.codes, kept(mask.codes.flatten(1)))[0].any()
    )


def test_masks_that_travel_in_another_order_than_scores_are_refused():
    edge, numbers = Edge.of(0.05, -128, 127), mask_of(7)
    operator, kept = IntegerSoftmax(edge, 7, -1, IntegerOptions()), KeptKeys(5, 7, True)
    backwards = Stream(torch.arange(7).flip(0).view(1, 1, 7), MASK_EDGE, 1)
    with pytest.raises(ConfigError, match="the 7 scores differ in order"):
        check(operator, drawn(edge, 1, 5, 7), numbers._replace(stream=backwards), kept=kept)
    flipped = torch.arange(35).view(1, 5, 7).flip(1)
    with pytest.raises(ConfigError, match="the queries of a causal mask are not in order"):
        check(operator, drawn(edge, 1, 5, 7, positions=flipped), numbers, kept=kept)
    flipped = torch.arange(35).view(1, 5, 7).flip(2)
    last = numbers._replace(stream=backwards)
    with pytest.raises(ConfigError, match="the keys of a causal mask are not in order"):
        check(operator, drawn(edge, 1, 5, 7, positions=flipped), last, kept=kept)


def test_rows_of_softmax_that_are_interrupted_are_refused():
    edge = Edge.of(0.05, -128, 127)
    with pytest.raises(ConfigError, match="rows of 7 elements are interleaved"):
        check(IntegerSoftmax(edge, 7, -2, IntegerOptions()), drawn(edge, 7, 6))
