"""`subcases` runs a body for each value and names those that fail."""

import random

import pytest

from tests.subcases import subcases

SEEN = []


def run_all(test, **given):
    SEEN.clear()
    test(**given)
    return [*SEEN]


def test_every_value_is_run_with_seeds_and_fixtures_of_its_own(monkeypatch, tmp_path):
    @subcases("a, b", [(1, "x"), pytest.param(2, "y", id="two")])
    def body(a, b, monkeypatch, tmp_path):
        monkeypatch.setitem(state, "a", a)
        (tmp_path / "file").touch(exist_ok=False)
        SEEN.append((a, b, random.random(), state["a"]))

    state = {"a": 0}
    (first, second) = run_all(body, monkeypatch=monkeypatch, tmp_path=tmp_path)
    assert first[:2] == (1, "x") and second[:2] == (2, "y") and first[2] == second[2]
    assert (first[3], second[3], state["a"]) == (1, 2, 0)


@pytest.mark.parametrize(
    ("ids", "names"),
    [(None, "2, 4"), (lambda n: f"n{n}", "n2, n4"), ("abcd", "b, d"), (["a"] * 4, "a-1, a-3")],
)
def test_what_fails_is_named_after_all_have_run(ids, names):
    @subcases("n", [1, 2, 3, 4], ids=ids)
    def body(n):
        SEEN.append(n)
        assert n % 2, f"{n} is even"

    with pytest.raises(ExceptionGroup, match=f"^2 of 4 subcases failed: {names}") as caught:
        run_all(body)
    assert SEEN == [1, 2, 3, 4]
    assert [str(error).splitlines()[0] for error in caught.value.exceptions] == [
        "2 is even",
        "4 is even",
    ]


def test_what_raises_nothing_is_a_failure_too():
    @subcases("n", [0, 1])
    def body(n):
        with pytest.raises(ZeroDivisionError):
            1 / n

    with pytest.raises(BaseExceptionGroup, match="^1 of 2 subcases failed: 1") as caught:
        body()
    assert "DID NOT RAISE" in str(caught.value.exceptions[0])


def test_it_skips_where_every_run_does():
    @subcases("n", [1, 2])
    @subcases("m", [1, 2])
    def body(n, m):
        if n >= least:
            pytest.skip(f"no {n}")
        SEEN.append((n, m))

    least = 2
    assert run_all(body) == [(1, 1), (1, 2)]
    least = 1
    with pytest.raises(pytest.skip.Exception, match="no 1"):
        run_all(body)


def test_those_that_are_kept_are_spread_and_the_others_are_long():
    @subcases("n", range(9), kept=3)
    def body(n):
        SEEN.append(n)

    (mark,) = body.pytestmark
    kept, others = mark.args[1]
    assert others.values == ("others",) and others.marks[0].name == "long"
    assert run_all(body, part=kept) == [0, 4, 8]
    assert run_all(body, part="others") == [1, 2, 3, 5, 6, 7]


def test_a_name_that_is_no_parameter_is_refused():
    with pytest.raises(AssertionError, match="m: "):
        subcases("m", [1])(lambda n: None)


def test_cases_of_their_own_where_each_takes_long(monkeypatch):
    monkeypatch.setenv("CHOP_SUBCASES", "apart")

    @subcases("m", [1, 2], ids=str)
    @subcases("n, k", [(1, 2), (3, 4)], kept=1)
    def body(n, k, m):
        SEEN.append((n, k, m))

    assert [mark.args for mark in body.pytestmark] == [("n, k", [(1, 2), (3, 4)]), ("m", [1, 2])]
