import pytest

from chop.base.notices import AdjustedWarning, forget_notices
from chop.search import Choice, Goal, Search, SearchSpace
from chop.search import space as spaces
from chop.search.neighbors import unvisited_neighbor

SPACE = SearchSpace(
    tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(3)),
    infeasible=lambda values: "no 3" if values["c0"] == 3 else None,
)
HERE = {"c0": "1", "c1": "1", "c2": "1"}


def distance(a, b):
    return sum(a[name] != b[name] for name in a)


def test_the_nearest_unseen_come_first_until_the_space_is_used_up():
    seen, distances = {SPACE.key(HERE)}, []
    while (found := unvisited_neighbor(SPACE, HERE, seen)) is not None:
        assert SPACE.key(found) not in seen and SPACE.why_infeasible(found) is None
        seen.add(SPACE.key(found))
        distances.append(distance(HERE, found))
    assert distances == sorted(distances)
    assert len(seen) == 2 * 3 * 3  # all but the impossible


def test_the_order_is_the_seed_s():
    first = [unvisited_neighbor(SPACE, HERE, set(), seed) for seed in range(8)]
    assert first == [unvisited_neighbor(SPACE, HERE, set(), seed) for seed in range(8)]
    assert len({SPACE.key(config) for config in first}) > 1
    assert all(distance(HERE, config) == 1 for config in first)


def test_large_spaces_are_not_walked_through():
    wide = SearchSpace(tuple(Choice(f"c{i}", dict.fromkeys("abcdefgh")) for i in range(60)))
    here = wide.at(0)
    found = unvisited_neighbor(
        wide, here, {wide.key(c) for c in wide.neighbors(here)} | {wide.key(here)}
    )
    assert distance(here, found) == 2


@pytest.mark.parametrize("sampler", ["sensitivity", "random", "grid", "tpe"])
@pytest.mark.long
def test_a_large_space_without_a_possible_configuration_is_given_up(sampler, monkeypatch):
    monkeypatch.setattr(spaces, "MAX_GRID_POINTS", 1000)
    forget_notices()
    choices = tuple(Choice(f"c{i}", dict.fromkeys("0123456789")) for i in range(40))
    space = SearchSpace(choices, infeasible=lambda values: "never")
    measure = lambda config, report: {"y": 1.0}  # noqa: E731
    search = Search(space, measure, Goal("y"), sampler=sampler, storage="memory")
    with pytest.warns(AdjustedWarning, match=r"among the first 1\d+ of 1e\+40"):
        result = search.run(until=6, progress=False)
    assert set(result.counts) == {"infeasible"}
