"""Axes of figures: scales, baselines, arrows, and names at the ends of curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from chop.report.charts.scale import MOST_ARROWS, AxisScale, decades
from chop.report.figures.style import plain, text_inches

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

BASELINE_STYLES = (("black", "--"), ("0.5", "-."), ("0.5", ":"))
END_POINTS, END_INCHES = 7.5, 1.6
"""Size of the names at the ends of curves, and the longest."""
END_HEIGHT = 0.042
"""A line of such a name, as a share of a panel's height."""
MOST_ENDS = 24
ARROW_POINTS = 7.5
"""Size of the value beside an arrow."""
NEAR = 1e3
"""Ratio of the ends of a logarithmic axis up to which its ticks are written out."""


def apply_scale(axes: Axes, scale: AxisScale, which: Literal["x", "y"] = "y") -> None:
    """Sets limits and kind of an axis; where it is cut, two strokes mark its end."""
    from matplotlib.ticker import NullFormatter

    settings = {"linthresh": scale.threshold, "linscale": 0.5} if scale.kind == "symlog" else {}
    getattr(axes, f"set_{which}scale")(scale.kind, **settings)
    axes.set(**{f"{which}lim": (scale.low, scale.high)})
    if scale.kind == "linear":
        axes.ticklabel_format(axis=which, useOffset=False)
    elif scale.kind == "log" and scale.high < NEAR * scale.low:
        ticks = decades(scale.low, scale.high)
        getattr(axes, f"set_{which}ticks")(ticks, [f"{tick:g}" for tick in ticks])
        getattr(axes, f"{which}axis").set_minor_formatter(NullFormatter())
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
    heights = _spread_apart([float(points[i][1]) for i in order], END_HEIGHT)
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


def _spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights from 0 to 1, as near to the given ones as they can be with a gap between any two.

    Args:
        heights: rising, 0 to 1.
        gap: smaller where there is no room for it.

    >>> _spread_apart([0.5, 0.5, 1.0], 0.25)
    [0.375, 0.625, 1.0]
    >>> _spread_apart([0.9, 0.9], 0.25)
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
