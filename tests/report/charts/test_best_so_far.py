"""The best until each trial, as a chart of a page."""

import re

import pytest

from chop.report.charts.best_so_far import best_so_far_charts, compute_spread
from chop.report.charts.scale import axis_scale
from chop.report.page.svg import svg
from chop.search import Goal, Result, TrialRecord

TOLD = {"ylabel": "best accuracy so far", "title": "T"}
ARROW = re.compile(r'<path class="mark (c\d)" d="M([\d.]+),([\d.]+)l-5,(-?8.0)h10z"')


def test_a_page_has_an_arrow_for_the_first_level_and_no_mark_at_the_edge():
    curves = {"tpe": [[(0, 0.1), (1, 0.1), (2, 0.9), (5, 0.95), (9, 0.97)]]}
    (chart,) = best_so_far_charts(curves, **TOLD)
    assert [mark.optional for mark in chart.series[0].marks] == [True] * 2 + [False] * 8
    drawn = svg(chart)
    ((color, x, y, back),) = ARROW.findall(drawn)
    assert drawn.count("<circle") == 8 and (color, back) == ("c0", "-8.0")
    begin = re.search(r'd="M([\d.]+),([\d.]+)H', drawn)
    assert begin is not None and begin.groups() == (x, y)  # the riser comes from the arrow
    assert ">10 %</text>" in drawn and "best accuracy so far 10 %" in drawn


def test_numbers_beside_arrows_do_not_overlap():
    curves = {name: [[(0, 0.1), (1, 0.9), (9, 0.95), (10, 0.96)]] for name in "abc"}
    drawn = svg(best_so_far_charts(curves, **TOLD)[0])
    heights = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*class="name on-line"', drawn)]
    assert len(ARROW.findall(drawn)) == 3 and len(set(heights)) == len(heights) == 3
    above = best_so_far_charts({"a": [[(0, 9.0), (1, 2.0), (2, 1.5)]]}, percent=False, **TOLD)
    assert [arrow[3] for arrow in ARROW.findall(svg(above[0]))] == ["8.0"]


@pytest.mark.parametrize("levels", [[0.5], [0.1, 0.9], [0.93, 0.94, 0.97, 0.98]], ids=str)
def test_all_of_few_or_near_levels_is_drawn(levels):
    (chart,) = best_so_far_charts({"tpe": [list(enumerate(levels))]}, **TOLD)
    drawn = svg(chart)
    assert not ARROW.findall(drawn) and drawn.count("<circle") == len(levels)


def test_bands_of_seeds_are_optional_where_their_median_is():
    runs = [[(0, 0.1), (1, 0.9), (2, 0.95)], [(0, 0.2), (1, 0.8), (2, 0.96)]]
    (chart,) = best_so_far_charts({"tpe": runs}, **TOLD)
    marks = chart.series[0].marks
    assert [(mark.low, mark.high) for mark in marks] == [(0.1, 0.2), (0.8, 0.9), (0.95, 0.96)]
    assert [mark.optional for mark in marks] == [True, False, False]
    assert len(ARROW.findall(svg(chart))) == 1


def test_optional_numbers_lengthen_an_axis_by_half_at_most():
    far = axis_scale([90.0, 98.0], optional=[10.0, 87.0])
    assert (far.below, far.above) == ((10.0,), ()) and 85 < far.low < 87
    near = axis_scale([90.0, 98.0], optional=[86.0, float("nan")])
    assert near.below == () and near.shows(86.0)
    assert axis_scale([1.0, 1.5], optional=[0.0, 200.0]).kind == "symlog"  # all has its place there


def test_the_axis_has_the_numbers_of_trials_that_tables_have():
    outcomes = ("measured", "cached", "measured", "failed", "running", "measured")
    values = (0.5, 0.5, 0.7, None, None, 0.6)
    trials = [
        TrialRecord(i, outcome, {"x": str(i)}, str(i), {"y": value} if value else {})
        for i, (outcome, value) in enumerate(zip(outcomes, values, strict=True))
    ]
    result = Result((Goal("y"),), tuple(trials))
    assert result.best_by_trial() == [(0, 0.5), (2, 0.7), (3, 0.7), (5, 0.7)]
    assert result.best_so_far() == [(1, 0.5), (2, 0.7), (3, 0.7), (4, 0.7)]
    assert result.best is not None and result.best.number == 2
    assert compute_spread([result.best_by_trial()])[0] == [0, 1, 2, 3, 4, 5]
