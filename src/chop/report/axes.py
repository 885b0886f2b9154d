"""Axes of plots: limits from the data, logarithms, whole numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from chop.report.figures import plain, text_inches

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

BASELINE_STYLES = (("black", "--"), ("0.5", "-."), ("0.5", ":"))
DECADE = 10
MARGIN = 0.06
"""The share of the span that is left free above and below."""
CUT_MARGINS = 2.0
"""Number of margins at an end where the axis is cut, as space for arrows."""
FLATTENED = 1 / 8
"""The share of the span below which numbers beyond the widest gap are flattened by the others."""
OPTIONAL = 1 / 2
"""The share of the span by which optional numbers may lengthen an axis."""
LEAST_LEVELS = 3
"""Levels that must remain where others are cut off."""
LEAST_PERCENT = 2.0
"""Percentage points that an axis of shares spans at least."""
FARTHEST = 2.0
"""Spans of the data beyond which a baseline is named and not drawn."""
END_POINTS, END_INCHES = 7.5, 1.6
"""Size of the names at the ends of curves, and the longest."""
END_HEIGHT = 0.042
"""A line of such a name, as a share of a panel's height."""
MOST_ENDS = 24
TRIALS = "trial"
"""Name of the axis of trial numbers, which are those of tables and of `--trial`."""
ARROW_POINTS = 7.5
"""Size of the value beside an arrow."""
MOST_ARROWS = 6
"""Arrows up to which each has its value beside it."""


@dataclass(frozen=True)
class AxisScale:
    """Range and scale of a plot's axis.

    Attributes:
        low: the lower end.
        high: the upper end.
        kind: "linear", "log", or "symlog": logarithmic, with room for 0.
        threshold: of "symlog": the smallest number that is distinguished from 0.
        below: numbers under the lower end, the least first.
        above: numbers over the upper end, the least first.
    """

    low: float
    high: float
    kind: str = "linear"
    threshold: float = 1.0
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()

    def shows(self, value: float) -> bool:
        """Returns true if a number lies between the ends."""
        return self.low <= value <= self.high


def axis_scale(
    values: Sequence[float],
    *,
    kept: Sequence[float] = (),
    optional: Sequence[float] = (),
    baselines: Sequence[float] = (),
    percent: bool = False,
    logarithm: bool = True,
) -> AxisScale:
    """The axis on which the differences between numbers can be seen.

    Numbers that are no shares and span more than a decade take logarithms. On a linear axis,
    numbers are cut off where the others, all of `kept` among them, would take less than an eighth
    of it; those of `optional` where they would lengthen it by more than a half. A baseline is on
    the axis unless it is more than twice the span of the numbers away.

    Args:
        values: to be shown; those that are not finite are not looked at.
        kept: those of them that must be on the axis; none: all must.
        optional: further numbers, which may lie off the axis.
        baselines: levels to be shown beside them.
        percent: the numbers are percentages.
        logarithm: whether logarithms may be taken.
    """
    finite = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    further = [value for value in optional if math.isfinite(value)]
    whole = sorted([*finite, *further])
    if logarithm and not percent and _spans_a_decade(whole):
        return _logarithmic(whole, baselines)
    shown = _without_far(finite, [value for value in kept if math.isfinite(value)])
    shown = _with_near(shown, further)
    low, high = shown[0], shown[-1]
    span = max(high - low, LEAST_PERCENT if percent else 0.02 * max(abs(low), abs(high)) or 1.0)
    near = [b for b in baselines if low - FARTHEST * span <= b <= high + FARTHEST * span]
    low, high = min([low, *near]), max([high, *near])
    missing = max(0.0, span - (high - low)) / 2
    low, high = low - missing, high + missing
    margin = MARGIN * (high - low)
    below = tuple(value for value in whole if value < shown[0])
    above = tuple(value for value in whole if value > shown[-1])
    return AxisScale(
        low - margin * (CUT_MARGINS if below else 1),
        high + margin * (CUT_MARGINS if above else 1),
        below=below,
        above=above,
    )


def _spans_a_decade(finite: Sequence[float]) -> bool:
    """Returns true if numbers that are not negative differ by more than a factor of ten."""
    positive = [value for value in finite if value > 0]
    return finite[0] >= 0 and bool(positive) and positive[-1] > DECADE * positive[0]


def _logarithmic(finite: Sequence[float], baselines: Sequence[float]) -> AxisScale:
    ends = [value for value in (*finite, *baselines) if value > 0 and math.isfinite(value)]
    low, high = min(ends), max(ends)
    room = (high / low) ** MARGIN
    if finite[0] > 0:
        return AxisScale(low / room, high * room, "log")
    return AxisScale(-low / 4, high * room, "symlog", threshold=low)


def _with_near(shown: list[float], optional: list[float]) -> list[float]:
    """The numbers shown, with the optional ones that lie near, the least first."""
    room = OPTIONAL * (shown[-1] - shown[0])
    near = [value for value in optional if shown[0] - room <= value <= shown[-1] + room]
    return sorted([*shown, *near])


def _without_far(finite: Sequence[float], kept: Sequence[float]) -> list[float]:
    """The side of the widest gap that has all of `kept` and most levels, if it is flattened."""
    levels = sorted(set(finite))
    if not kept or len(levels) <= LEAST_LEVELS:
        return list(finite)
    low, high = max(pairwise(levels), key=lambda pair: pair[1] - pair[0])
    for side in ([v for v in finite if v >= high], [v for v in finite if v <= low]):
        holds_kept = side[0] <= min(kept) and max(kept) <= side[-1]
        is_most = len(set(side)) >= max(LEAST_LEVELS, len(levels) / 2)
        is_flat = side[-1] - side[0] < FLATTENED * (levels[-1] - levels[0])
        if holds_kept and is_most and is_flat:
            return side
    return list(finite)


def apply_scale(axes: Axes, scale: AxisScale, which: Literal["x", "y"] = "y") -> None:
    """Sets limits and kind of an axis; where it is cut, two strokes mark its end."""
    settings = {"linthresh": scale.threshold, "linscale": 0.5} if scale.kind == "symlog" else {}
    getattr(axes, f"set_{which}scale")(scale.kind, **settings)
    axes.set(**{f"{which}lim": (scale.low, scale.high)})
    if scale.kind == "linear":
        axes.ticklabel_format(axis=which, useOffset=False)
    if which == "y":
        for end, hidden in ((0.03, scale.below), (0.97, scale.above)):
            if hidden:
                _mark_cut(axes, end)


def _mark_cut(axes: Axes, height: float) -> None:
    axes.plot(
        [0, 0],
        [height - 0.01, height + 0.01],
        transform=axes.transAxes,
        marker=[(-1.0, -0.5), (1.0, 0.5)],
        markersize=10,
        linestyle="none",
        color="black",
        clip_on=False,
        label="_cut",
    )


def draw_baselines(
    axes: Axes, levels: Mapping[str, float], scale: AxisScale, percent: bool
) -> list[tuple[Artist, str]]:
    """Draws levels across a panel; the legend's entries say their values, drawn or not."""
    entries: list[tuple[Artist, str]] = []
    for i, (label, level) in enumerate(levels.items()):
        color, dashes = BASELINE_STYLES[i % len(BASELINE_STYLES)]
        text = f"{level:.2f} %" if percent else f"{level:.4g}"
        line = axes.axhline(level, color=color, linestyle=dashes, linewidth=1.2)
        if not scale.shows(level):
            line.remove()
            text += ", off the axis"
        entries.append((line, f"{label} ({text})"))
    return entries


def draw_arrows(
    axes: Axes, off: Sequence[tuple[float, float, Any]], scale: AxisScale, percent: bool
) -> None:
    """Draws an arrow at the end of an axis for each number beyond it, with the number.

    Args:
        axes: with its limits and scales.
        off: x, the number and the color of each.
        scale: scale of the upright axis.
        percent: the numbers are percentages.
    """
    low, high = axes.get_xlim()
    for i, (x, value, color) in enumerate(off):
        is_below = value < scale.low
        end, start = (0.005, 0.09) if is_below else (0.995, 0.91)
        axes.annotate(
            "",
            (x, end),
            xytext=(x, start),
            xycoords=("data", "axes fraction"),
            textcoords=("data", "axes fraction"),
            arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0},
        )
        if len(off) > MOST_ARROWS:
            continue
        others = [x for x, other, _ in off[:i] if (other < scale.low) == is_below]
        row = sum(abs(x - other) < (high - low) / 5 for other in others)
        axes.annotate(
            f"{value:.4g} %" if percent else f"{value:.4g}",
            (x, (0.02 + 0.05 * row) if is_below else (0.95 - 0.05 * row)),
            xytext=(5, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=ARROW_POINTS,
            color=color,
            bbox={"color": "white", "alpha": 0.8, "pad": 0.5},
        )


def axis_label(name: str, scale: AxisScale, percent: bool, *notes: str) -> str:
    """The name and its unit; in lines below it notes, and what lies beyond the ends."""
    unit = " %" if percent else ""
    below = [f"down to {value:.6g}{unit} below the axis" for value in scale.below[:1]]
    above = [f"up to {value:.6g}{unit} above the axis" for value in scale.above[-1:]]
    return "\n".join([plain(f"{name} (%)" if percent else name), *notes, *below, *above])


def name_ends(
    axes: Axes,
    ends: Sequence[tuple[float, float]],
    labels: Sequence[str],
    colors: Sequence[Any],
) -> None:
    """Names curves right of a panel, each beside its last point, or as near as there is room.

    Nothing is written where there are more than 24, or a label is longer than 1.6 inches: the
    legend names all of them.

    Args:
        axes: with its limits and scales.
        ends: (x, y) of each curve's last point.
        labels: names of the curves.
        colors: of the curves.
    """
    widest = max(text_inches(plain(label), END_POINTS) for label in labels)
    if len(labels) > MOST_ENDS or widest > END_INCHES:
        return
    to_panel = axes.transScale + axes.transLimits
    points = [to_panel.transform(end) for end in ends]
    order = sorted(range(len(ends)), key=lambda i: float(points[i][1]))
    heights = spread_apart([float(points[i][1]) for i in order], END_HEIGHT)
    for i, height in zip(order, heights, strict=True):
        axes.annotate(
            plain(labels[i]),
            (float(points[i][0]), float(points[i][1])),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            verticalalignment="center",
            fontsize=END_POINTS,
            color=colors[i],
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colors[i],
                "linewidth": 0.6,
                "relpos": (0, 0.5),
            },
        )


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights from 0 to 1, as near to the given ones as they can be with a gap between any two.

    Args:
        heights: rising, 0 to 1.
        gap: smaller where there is no room for it.

    >>> spread_apart([0.5, 0.5, 1.0], 0.25)
    [0.375, 0.625, 1.0]
    >>> spread_apart([0.9, 0.9], 0.25)
    [0.75, 1.0]
    """
    gap = min(gap, 1 / max(1, len(heights) - 1))
    stacks: list[list[float]] = []
    for height in heights:
        stacks.append([height])
        while len(stacks) > 1 and _middle(stacks[-1], gap) - _middle(stacks[-2], gap) < gap * (
            (len(stacks[-1]) + len(stacks[-2])) / 2
        ):
            last = stacks.pop()
            stacks[-1] += last
    return [
        _middle(stack, gap) + gap * (i - (len(stack) - 1) / 2)
        for stack in stacks
        for i in range(len(stack))
    ]


def _middle(stack: Sequence[float], gap: float) -> float:
    """Where the middle of a stack of so many heights lies: at their mean, if all are in 0 to 1."""
    half = gap * (len(stack) - 1) / 2
    return min(max(sum(stack) / len(stack), half), 1 - half)


def trial_axis(axes: Axes, first: int, last: int) -> None:
    """A horizontal axis of trials, with ticks at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    room = max(0.5, 0.02 * (last - first))
    axes.set_xlim(first - room, last + room)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_xlabel(TRIALS)
