import math

import pytest

from chop.bench.break_even import break_even
from chop.bench.clock import Reading
from chop.bench.record import Measured
from chop.bench.statistics import Interval


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
