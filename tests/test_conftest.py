"""What every test has in common holds."""

import gc
import sqlite3
import sqlite3.dbapi2
from collections.abc import Callable

import pytest

from tests.conftest import evenly_spread, pytest_collection_modifyitems


@pytest.mark.parametrize(
    ("cases", "kept", "expected"),
    [
        (1, 3, {0}),
        (3, 3, {0, 1, 2}),
        (5, 3, {0, 2, 4}),
        (100, 2, {0, 99}),
        (7, 1, {0}),
        (6, 4, {0, 2, 3, 5}),
    ],
)
def test_cases_are_spread_from_the_first_to_the_last(
    cases: int, kept: int, expected: set[int]
) -> None:
    assert evenly_spread(cases, kept) == expected


class _Case:
    """What the hook reads of a `pytest.Item`."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, [*marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def test_all_but_the_sampled_cases_are_long() -> None:
    sampled, long = pytest.mark.sampled(3).mark, pytest.mark.long.mark
    family = [_Case(f"test_a.py::test_one[{case}]", sampled) for case in range(9)]
    marked = _Case("test_a.py::test_one[long]", sampled, long)
    others = [_Case("test_b.py::test_one[0]", sampled), _Case("test_a.py::test_alone")]
    pytest_collection_modifyitems([*family, marked, *others])  # type: ignore[list-item]
    kept = [case for case in family if not case.get_closest_marker("long")]
    assert kept == [family[0], family[4], family[8]]
    assert not any(case.get_closest_marker("long") for case in others)


@pytest.mark.parametrize("connect", [sqlite3.connect, sqlite3.dbapi2.connect])
def test_connections_that_are_left_open_warn_under_every_python(
    connect: Callable[[str], sqlite3.Connection],
) -> None:
    connect(":memory:").close()
    with pytest.warns(ResourceWarning, match="unclosed database"):
        connect(":memory:")
        gc.collect()  # its cache of statements refers to it
