import pytest
import torch
from torch.utils.benchmark import Timer

from chop.bench.break_even import compile_seconds
from chop.bench.statistics import paired_ratio
from chop.studies.short_runs import short_runs, short_runs_title
from tests.bench.test_break_even import EAGER, measured


def test_the_first_run_tells_the_compiler_and_later_ones_the_code():
    compiled = measured("c", 0.005, prepare=1.0)
    rows = short_runs("a model", EAGER, compiled, (1, 5, 50, 200, 10**6))
    assert compile_seconds(compiled) == 1.0 and compile_seconds(EAGER) == 0.010
    assert [row.run for row in rows] == [1, 2, 3, 4] * 5
    cold = [row.ratio for row in rows if row.run == 1]
    assert cold[:2] == pytest.approx([0.010 / 1.0, 0.050 / 1.020]) and cold == sorted(cold)
    assert cold[-1] == pytest.approx(2, rel=0.01)
    assert {(row.ratio, row.low, row.high) for row in rows if row.run > 1} == {(2, 2, 2)}


def test_a_row_has_both_times_and_their_ratio():
    rows = short_runs("bert", EAGER, measured("compiled", 0.005, prepare=1.0), (5,))
    assert rows[0].formatted("eager", "compiled") == {
        "case": "bert",
        "iterations": 5,
        "run": "1, cold",
        "eager": "10.0 ms",
        "compiled": "204 ms",
        "times as fast": "0.049",
        "95 % of runs": None,
    }
    later = rows[3].formatted("eager", "compiled")
    assert (later["run"], later["compiled"], later["times as fast"]) == ("4, warm", "5.00 ms", "2")
    title = short_runs_title(
        "a CPU", "eager and mode default", rows, measured("d", 0.005, prepare=1.0)
    )
    assert "a CPU" in title and "98.0% of a run of 5 calls of d without a warm-up" in title


def test_few_calls_stray_and_many_settle():
    before, after = [0.010, 0.030] * 20, [0.010, 0.028] * 20
    assert paired_ratio(before, after).median < 1.1
    compiled = measured("c", after, prepare=1.0)
    rows = short_runs("", measured("eager", before), compiled, (1, 2000))
    few, many = rows[1], rows[5]
    assert few.low < 0.5 and few.high > 2
    assert 0.95 < many.low < many.high < 1.2 and 0.9 < many.ratio < 1.3


@pytest.mark.parametrize("iterations", [5, 50])
def test_torch_calls_before_it_times(iterations):
    """So it has no cold run."""
    calls = []
    Timer("call()", globals={"call": lambda: calls.append(torch.relu)}).timeit(iterations)
    assert len(calls) == iterations + 2
