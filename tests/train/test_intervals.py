"""95 % intervals of metrics."""

import math

import pytest
import torch
from scipy.stats import binomtest

from chop.statistics.intervals import wilson
from chop.train import TASKS, Metric
from chop.train.intervals import (
    Score,
    compute_interval,
    constant_score,
    format_cell,
    format_interval,
)

CLASSES, NUMBERS, TOKENS = (
    TASKS[name].metrics for name in ("classification", "regression", "causal-lm")
)


@pytest.mark.parametrize("right, count", [(0, 7), (9, 10), (60, 60), (346, 360), (1, 1)])
def test_wilson_s_interval_is_scipy_s(right, count):
    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson(right, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_no_answers_tell_nothing():
    assert wilson(0, 0) == (0.0, 1.0)


def answers(metric, count):
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (count,), generator=draw)
    if metric.name == "perplexity":
        return torch.rand(count, generator=draw), labels
    if metric.name == "roc_auc":  # of yes and no
        return torch.randn(count, generator=draw) + labels, labels // 2
    if metric.name in NUMBERS:
        noise = torch.randn(count, generator=draw)
        return labels + 0.5 * noise, labels.float()
    is_right = torch.rand(count, generator=draw) < 0.8
    return torch.where(is_right, labels, (labels + 1) % 4), labels


@pytest.mark.sampled(6)
@pytest.mark.parametrize("metric", [*CLASSES.values(), *NUMBERS.values(), TOKENS["perplexity"]])
def test_the_interval_holds_the_value_and_shrinks_with_rows(metric):
    widths = []
    for count in (50, 800):
        predictions, labels = answers(metric, count)
        low, high = compute_interval(metric, predictions, labels)
        assert low < metric.score(predictions, labels) < high
        widths.append(high - low)
    assert 2 < widths[0] / widths[1] < 8  # the root of 16 is 4


def test_a_draw_without_a_number_has_no_interval():
    labels = torch.arange(6)

    def refuses(predictions, labels):
        raise ValueError("one class")

    for score in (refuses, lambda p, y: math.nan):
        assert compute_interval(Metric("own", score), labels, labels) is None
    score = Score(0.5, None, None, 6)
    assert score.format(CLASSES["accuracy"]) == score.format_cell(CLASSES["accuracy"]) == "50.00%"


def test_texts():
    accuracy, r2 = CLASSES["accuracy"], NUMBERS["r2"]
    assert format_cell(0.9, (0.5958, 0.9821), accuracy) == "90.00% (59.6 to 98.2)"
    assert format_cell(0.5, (-0.25, 0.75), r2) == "0.5 (-0.25 to 0.75)"
    assert format_interval((0.0793, 0.0946), accuracy) == " (95 % interval 7.93% to 9.46%)"


@pytest.mark.parametrize(
    "metric, expected",
    [
        (CLASSES["accuracy"], 0.5),
        (CLASSES["matthews_correlation"], 0.0),
        (NUMBERS["r2"], 0.0),
        (NUMBERS["mse"], 0.6875),
        (TOKENS["perplexity"], 4.0),
    ],
)
def test_the_best_answer_that_looks_at_nothing(metric, expected):
    labels = torch.tensor([0, 0, 1, 2])
    if metric.name in NUMBERS:
        labels = labels.double()
    unseen = torch.zeros(4, dtype=torch.long)
    assert constant_score(metric, labels, lambda: unseen) == pytest.approx(expected, abs=1e-12)


def test_answers_that_are_all_right_are_in_their_own_interval():
    for count in range(1, 400):
        assert wilson(count, count)[1] == 1.0 and wilson(0, count)[0] == 0.0, count
