import math

import pytest

from chop.bench.break_even import break_even, compile_seconds, course_rows
from chop.bench.clock import Reading
from chop.bench.record import Measured
from chop.bench.statistics import Interval, paired_ratio


def measured(name, times, *, ratio=None, prepare=None, first=0.01):
    times = [times] * 20 if isinstance(times, float) else times
    middle = sorted(times)[len(times) // 2]
    readings = tuple(map(Reading, times))
    ratio = ratio or Interval(1.0, 1.0, 1.0)
    return Measured(name, middle, None, ratio, first, prepare, None, None, readings)


EAGER = measured("eager", 0.010, first=0.010)


@pytest.mark.parametrize(("ratio", "own"), [(2.0, 0.005), (1.25, 0.008)])
def test_as_many_calls_as_the_sum_says(ratio, own):
    """Against adding up call after call."""
    compiled = measured("c", own, ratio=Interval(ratio, 0.9 * ratio, 1.1 * ratio), prepare=3.0)
    found = break_even(EAGER, compiled)
    calls, before, after = 1, EAGER.first_call_seconds, 3.0
    while after > before:
        calls, before, after = calls + 1, before + EAGER.seconds, after + own
    assert found.calls == pytest.approx(calls, abs=1)
    assert found.low < found.calls < found.high


def test_never_where_no_gain_is_shown():
    for ratio in (Interval(1.02, 0.97, 1.07), Interval(0.8, 0.7, 0.9), Interval(1.5)):
        found = break_even(EAGER, measured("c", 0.009, ratio=ratio, prepare=3.0))
        assert str(found) == "never" and math.isinf(found.calls)
    quick = measured("c", 0.005, ratio=Interval(2.0, 1.9, 2.1), prepare=0.001)
    assert str(break_even(EAGER, quick)) == "1 (1 to 1)"


def test_the_course_table_tells_the_compiler_from_its_code():
    compiled = measured("c", 0.005, ratio=Interval(2.0, 2.0, 2.0), prepare=1.0)
    rows = course_rows(EAGER, compiled, (5, 50, 200, 10**6))
    assert compile_seconds(compiled) == 1.0 and compile_seconds(EAGER) == 0.010
    assert rows[0].counted == pytest.approx(0.050 / 1.020)
    assert [row.counted for row in rows] == sorted(row.counted for row in rows)
    assert rows[-1].counted == pytest.approx(2, rel=0.01)
    found = [(row.uncounted_low, row.uncounted_high) for row in rows]
    assert found == [pytest.approx((2, 2))] * 4


def test_few_calls_stray_and_many_settle():
    before, after = [0.010, 0.030] * 20, [0.010, 0.028] * 20
    assert paired_ratio(before, after).median < 1.1
    compiled = measured("c", after, prepare=1.0)
    few, many = course_rows(measured("eager", before), compiled, (1, 2000))
    assert few.uncounted_low < 0.5 and few.uncounted_high > 2
    assert 0.95 < many.uncounted_low < many.uncounted_high < 1.2
