"""Which part of an axis is shown."""

import math

import pytest
from matplotlib.figure import Figure

from chop.report.charts.scale import AxisScale, axis_scale
from chop.report.figures.axes import draw_baselines


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([94, 95, 96, 97], [97]),
        ([94, 94.5], ()),
        ([95.0], [95.0]),
        ([0.0], ()),
        ([math.inf, 95, math.nan], [95]),
    ],
)
def test_limits_follow_the_data_with_a_margin(values, kept):
    scale = axis_scale(values, required=kept, percent=True)
    finite = [value for value in values if math.isfinite(value)]
    assert scale.kind == "linear" and not scale.below and not scale.above
    assert all(scale.low < value < scale.high for value in finite)
    span = max(2.0, max(finite) - min(finite))
    assert scale.high - scale.low == pytest.approx(1.12 * span)


@pytest.mark.parametrize(
    ("values", "kept", "below", "above"),
    [
        ([10, 94, 95, 96, 97], [97], (10,), ()),
        ([10, 40, 93, 94, 95, 96], [96], (10, 40), ()),
        ([1, 2, 3, 900], [1], (), (900,)),
        ([10, 94, 95, 96, 97], [10, 97], (), ()),  # a curve that stays at 10 %
        ([80, 90, 95, 97, 98], [98], (), ()),  # none is flattened
        ([10, 96], [96], (), ()),
        ([10, 20, 30, 40, 95, 96], [96], (), ()),  # most lie below
        ([10, 94, 95, 96, 97], [], (), ()),
    ],
)
def test_what_flattens_the_rest_is_cut_off(values, kept, below, above):
    scale = axis_scale(values, required=kept, percent=True)
    assert (scale.below, scale.above) == (below, above)
    shown = [value for value in values if scale.shows(value)]
    assert shown == [value for value in values if value not in (*below, *above)]


def test_baselines_near_the_data_widen_the_axis():
    values = [94, 95, 96, 97]
    assert axis_scale(values, percent=True, baselines=[99]).shows(99)
    far = axis_scale(values, percent=True, baselines=[10, 99])
    assert far.shows(99) and not far.shows(10)


def test_logarithms_need_a_decade_and_no_negative_numbers():
    assert axis_scale([0.001, 0.5]).kind == "log"
    assert axis_scale([0.1, 0.9]).kind == "linear"
    assert axis_scale([-1.0, 0.001, 5.0]).kind == "linear"
    assert axis_scale([0.0, 0.0]).kind == "linear"
    assert axis_scale([1, 90], percent=True).kind == "linear"
    assert axis_scale([0.001, 0.5], logarithm=False).kind == "linear"
    zero = axis_scale([0.0, 0.001, 0.5])
    assert (zero.kind, zero.threshold) == ("symlog", 0.001) and zero.low < 0 < 0.5 < zero.high
    assert axis_scale([], baselines=[0.5]) == AxisScale(-0.06, 1.06)


def test_a_baseline_that_is_not_drawn_is_told_behind_its_label():
    axes = Figure().subplots()
    scale = axis_scale([1.0, 2.0])
    entries = draw_baselines(axes, {"no search (KL)": 50.0, "4 (all)": 1.5}, scale, percent=False)
    assert [told for _, told in entries] == [
        "no search (KL) (50, off the axis)",
        "4 (all) (1.5)",
    ]
    assert len(axes.lines) == 1
