import random

import networkx
import pytest

from chop.base.reach import reached


@pytest.mark.parametrize("seed", range(5))
def test_what_is_reached_is_what_networkx_reaches(seed):
    draw = random.Random(seed)
    edges = [(draw.randrange(30), draw.randrange(30)) for _ in range(35)]
    graph = networkx.DiGraph(edges)
    starts = draw.sample(sorted(graph), 3)
    found = list(reached(starts, graph.successors))
    expected = set(starts).union(*(networkx.descendants(graph, start) for start in starts))
    assert len(found) == len(set(found)) and set(found) == expected
    assert found[0] == starts[-1]


def test_a_circle_ends_and_neighbors_are_asked_for_once_each():
    asked = []

    def neighbors(n):
        asked.append(n)
        return [(n + 1) % 4, n]

    assert list(reached([0, 0], neighbors)) == asked == [0, 1, 2, 3]
    assert list(reached([], neighbors)) == []


def test_a_search_stops_where_its_reader_does():
    assert 5 in reached([0], lambda n: [n + 1])
