"""Repeated stretches: every one is a repeat indeed, and layers of models are found."""

from __future__ import annotations

import random

import pytest

from chop.distributed.planning.repeats import SHORTEST, Repeat, find_repeats, tied_with
from tests.distributed.graphs import graph_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("abcabc", []),  # shorter than a layer
        ("abcdabce", []),
        ("abcdabcd", [Repeat(0, 4, 2)]),
        ("xxabcdabcdabcdy", [Repeat(2, 4, 3)]),
        ("abcdeabcdeabc", [Repeat(0, 5, 2)]),  # the third one is not whole
        ("aaaaaaaaa", [Repeat(0, 4, 2)]),
        ("abababababab", [Repeat(0, 4, 3)]),
        ("abcdabcd" + "?" + "vwxyzvwxyzvwxyz", [Repeat(0, 4, 2), Repeat(9, 5, 3)]),
    ],
)
def test_repeats_by_hand(text: str, expected: list[Repeat]):
    assert find_repeats(text) == expected


def covered(items: str) -> int:
    """What the longest repeat of a list covers, by trying every stretch."""
    best = 0
    for first in range(len(items)):
        for period in range(SHORTEST, (len(items) - first) // 2 + 1):
            stretch, times = items[first : first + period], 1
            while items[first + times * period :].startswith(stretch):
                times += 1
            best = max(best, period * times if times > 1 else 0)
    return best


def test_repeats_of_random_lists_are_repeats_and_the_longest_is_among_them():
    pick = random.Random(0)
    with_several = 0
    for _ in range(300):
        layer = "".join(pick.choices("abc", k=pick.randint(4, 7)))
        parts = [pick.choice([layer, layer, "".join(pick.choices("abcd", k=3))]) for _ in range(6)]
        items = "".join(parts)
        found = find_repeats(items)
        with_several += len(found) > 1
        end = 0
        for repeat in found:
            assert repeat.first >= end and repeat.times > 1 and repeat.period >= SHORTEST
            end = repeat.end
            stretch = items[repeat.first : repeat.first + repeat.period]
            assert items[repeat.first : end] == stretch * repeat.times
        lengths = [repeat.period * repeat.times for repeat in found]
        assert max(lengths, default=0) == covered(items)
    assert with_several > 3


def test_items_are_tied_with_the_first_that_they_repeat():
    items = "xyabcdeabcdez"
    assert tied_with(items) == [0, 1, *range(2, 7), *range(2, 7), 12]
    assert all(items[i] == items[first] for i, first in enumerate(tied_with(items)))
    assert tied_with("abc") == [0, 1, 2]


def test_the_layers_of_a_model_are_a_repeat():
    mg = graph_of("bert")
    names = [(node.op, str(node.target).replace("layer.1.", "layer.0.")) for node in mg.nodes]
    (repeat,) = [x for x in find_repeats(names) if x.period > 10]
    assert repeat.times == 2
    stretch = [str(node.target) for node in mg.nodes][repeat.first : repeat.end]
    own = [target for target in stretch if "layer." in target]
    assert len(own) > 20
    assert {target.split("layer.")[1][0] for target in own} == {"0", "1"}
