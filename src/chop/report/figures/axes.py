"""Axes of figures: scales, baselines, arrows, and labels at the ends of curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from chop.report.charts.scale import MAX_ARROWS, AxisScale, decades
from chop.report.figures.style import plain, text_inches

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

BASELINE_STYLES = (("black", "--"), ("0.5", "-."), ("0.5", ":"))
END_POINTS, END_INCHES = 7.5, 1.6
"""Font size of end labels in points, and their maximum width in inches."""
END_HEIGHT = 0.042
"""Height of an end label as a share of the panel height."""
MAX_END_LABELS = 24
ARROW_POINTS = 7.5
"""Font size of the value next to an arrow."""
NEAR = 1e3
"""Maximum ratio of the ends of a logarithmic axis with plain-number ticks."""


def apply_scale(axes: Axes, scale: AxisScale, which: Literal["x", "y"] = "y") -> None:
    """Sets limits and scale of an axis, and marks a cut end with two strokes."""
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
    """Draws baselines across a panel; their legend entries have the values, even off the axis."""
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
    """Draws an arrow with its value for each number beyond the end of the vertical axis.

    Args:
        axes: axes with limits and scales set.
        off: x, number and color of each arrow.
        scale: scale of the vertical axis.
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
        if len(off) > MAX_ARROWS:
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
    """Returns an axis label: name, unit, notes and values off the axis, one per line."""
    unit = " %" if percent else ""
    below = [f"down to {value:.4g}{unit} below the axis" for value in scale.below[:1]]
    above = [f"up to {value:.4g}{unit} above the axis" for value in scale.above[-1:]]
    return "\n".join([plain(f"{name} (%)" if percent else name), *notes, *below, *above])


def name_ends(
    axes: Axes,
    ends: Sequence[tuple[float, float]],
    labels: Sequence[str],
    colors: Sequence[Any],
) -> None:
    """Labels curves to the right of a panel, as close to their last points as space permits.

    Labels are omitted, and only the legend names the curves, if there are more than 24 curves or a
    label is wider than 1.6 inches.

    Args:
        axes: axes with limits and scales set.
        ends: (x, y) of each curve's last point.
        labels: label of each curve.
        colors: color of each curve.
    """
    widest = max(text_inches(plain(label), END_POINTS) for label in labels)
    if len(labels) > MAX_END_LABELS or widest > END_INCHES:
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
    """Moves heights in 0 to 1 apart, as little as possible, to leave a gap between neighbors.

    Args:
        heights: ascending heights, 0 to 1.
        gap: minimum distance, reduced if there is no space for it.

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
    """Returns the center of a stack of heights: their mean, shifted so that all lie in 0 to 1."""
    half = gap * (len(stack) - 1) / 2
    return min(max(sum(stack) / len(stack), half), 1 - half)
