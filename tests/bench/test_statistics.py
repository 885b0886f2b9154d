import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from chop.bench import Interval, paired_ratio
from chop.statistics.intervals import LEVEL


def noisy(rng, count, ratio):
    """Times of two variants on a machine whose speed wanders, with outliers."""
    machine = np.exp(np.cumsum(rng.normal(0, 0.1, count)))
    jitter = rng.lognormal(0, 0.05, (2, count)) * (1 + 3 * (rng.random((2, count)) < 0.1))
    return (ratio * machine * jitter[0]).tolist(), (machine * jitter[1]).tolist()


def test_bounds_are_those_of_scipys_percentile_bootstrap():
    above, below = noisy(np.random.default_rng(1), 60, 1.3)
    ratios = np.array(above) / np.array(below)
    expected = bootstrap(
        (ratios,), np.median, confidence_level=LEVEL, method="percentile", n_resamples=20_000, rng=0
    ).confidence_interval
    found = paired_ratio(above, below)
    assert found.median == pytest.approx(np.median(ratios))
    assert found.low == pytest.approx(expected.low, rel=0.02)
    assert found.high == pytest.approx(expected.high, rel=0.02)


@pytest.mark.parametrize("count, share, width", [(10, 0.88, 0.3), (40, 0.92, 0.09)])
@pytest.mark.long
def test_intervals_hold_the_true_ratio(count, share, width):
    rng = np.random.default_rng(0)
    intervals = [paired_ratio(*noisy(rng, count, 1.1)) for _ in range(300)]
    assert sum(i.low <= 1.1 <= i.high for i in intervals) >= share * 300
    assert np.median([i.high - i.low for i in intervals]) < width


def test_the_same_seed_gives_the_same_bounds():
    times = noisy(np.random.default_rng(2), 30, 1.0)
    assert paired_ratio(*times) == paired_ratio(*times)
    assert paired_ratio(*times, seed=1).median == paired_ratio(*times).median


def test_few_pairs_and_small_differences_show_nothing():
    few = paired_ratio([2.0] * 9, [1.0] * 9)
    assert few == Interval(2.0, 0.0, math.inf)
    assert few.spans_one and not few.is_known
    assert Interval(1.005, 1.001, 1.009).spans_one
    assert Interval(0.995, 0.99, 0.999).spans_one
    assert not Interval(1.03, 1.02, 1.04).spans_one
    assert not Interval(0.9, 0.88, 0.92).spans_one
