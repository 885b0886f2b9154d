"""Plots of searches, each one call and one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from chop.errors import ConfigError
from chop.report.figures import save_figure
from chop.report.plots import MAX_CURVES_INSIDE

Run = Sequence[tuple[int, float]]
"""(configurations measured, best value so far): a value holds until the next one."""


def plot_best_so_far(
    path: str | Path,
    curves: Mapping[str, Sequence[Run]],
    *,
    ylabel: str,
    title: str,
    baselines: Mapping[str, float] | None = None,
    percent: bool = True,
) -> Path:
    """Draws the best value found after so many trials: the median over the runs, and their spread.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        curves: label -> runs, one per seed, as `Result.best_so_far` gives them; empty runs, which
            found nothing within their budgets, are left out.
        ylabel: what is best.
        title: above the plot.
        baselines: label -> value, drawn level.
        percent: values are shares of 1 and drawn as percentages.
    Returns: `path`.
    Raises:
        ConfigError: no run has a point.
    """
    from matplotlib.figure import Figure

    drawn = {label: [run for run in runs if run] for label, runs in curves.items()}
    drawn = {label: runs for label, runs in drawn.items() if runs}
    if not drawn:
        raise ConfigError("plot_best_so_far: expected at least one run with a point.")
    inside = len(drawn) <= MAX_CURVES_INSIDE
    figure = Figure(figsize=(6.4 if inside else 8.4, 4.0), layout="constrained")
    axes = figure.subplots()
    factor = 100 if percent else 1
    for i, (label, runs) in enumerate(drawn.items()):
        counts, columns = spread_of(runs)
        scaled = [[factor * value for value in column] for column in columns]
        style = {"color": f"C{i % 10}", "linestyle": "-" if i < 10 else "--"}
        axes.plot(counts, [median(c) for c in scaled], label=label, drawstyle="steps-post", **style)
        if len(runs) > 1:
            low, high = [min(column) for column in scaled], [max(column) for column in scaled]
            axes.fill_between(counts, low, high, step="post", alpha=0.15, color=style["color"])
    for label, value in (baselines or {}).items():
        axes.axhline(factor * value, color="black", linestyle=":", linewidth=1, label=label)
    axes.set(xlabel="trials", ylabel=f"{ylabel} (%)" if percent else ylabel, title=title)
    axes.grid(alpha=0.3)
    if inside:
        axes.legend(loc="lower right", fontsize="small")
    else:
        figure.legend(loc="outside right upper", fontsize="small")
    return save_figure(figure, Path(path))


@dataclass(frozen=True)
class Cloud:
    """One panel of `plot_front`.

    Attributes:
        xlabel: what lies to the right.
        points: (x, y) of everything that was measured.
        front: those that nothing beats.
        limit: the budget of x, if it has one.
    """

    xlabel: str
    points: Sequence[tuple[float, float]]
    front: Sequence[tuple[float, float]]
    limit: float | None = None


def plot_front(
    path: str | Path, clouds: Sequence[Cloud], *, ylabel: str, title: str, percent: bool = True
) -> Path:
    """Draws what was measured, and the front of it, a panel for each number against the first.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        clouds: the panels; points that are not finite are left out.
        ylabel: the number that all panels share.
        title: above the plot.
        percent: y are shares of 1 and drawn as percentages.
    Returns: `path`.
    Raises:
        ConfigError: there is no panel.
    """
    from matplotlib.figure import Figure

    if not clouds:
        raise ConfigError("plot_front: expected at least one number beside the first.")
    figure = Figure(figsize=(1.6 + 4.8 * len(clouds), 4.0), layout="constrained")
    panels = figure.subplots(1, len(clouds), sharey=True, squeeze=False)[0]
    factor = 100 if percent else 1
    for axes, cloud in zip(panels, clouds, strict=True):
        axes.scatter(*_columns(cloud.points, factor), s=14, color="0.65", label="measured")
        axes.plot(*_columns(sorted(cloud.front), factor), "o-", color="C0", label="front")
        if cloud.limit is not None:
            axes.axvline(cloud.limit, color="black", linestyle="--", linewidth=1, label="budget")
        axes.set(xlabel=cloud.xlabel)
        axes.grid(alpha=0.3)
    panels[0].set(ylabel=f"{ylabel} (%)" if percent else ylabel)
    panels[0].legend(loc="best", fontsize="small")
    figure.suptitle(title)
    return save_figure(figure, Path(path))


def _columns(
    points: Sequence[tuple[float, float]], factor: float
) -> tuple[list[float], list[float]]:
    finite = [(x, factor * y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return [x for x, _ in finite], [y for _, y in finite]


def plot_importances(path: str | Path, shares: Mapping[str, float], *, title: str) -> Path:
    """Draws how much each choice matters, as bars, in the order given from the top.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        shares: choice -> share of 1.
        title: above the plot.
    Returns: `path`.
    Raises:
        ConfigError: there is no choice.
    """
    from matplotlib.figure import Figure

    if not shares:
        raise ConfigError("plot_importances: expected at least one choice.")
    figure = Figure(figsize=(6.4, 1.2 + 0.24 * len(shares)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(shares)), [100 * share for share in shares.values()], color="C0")
    axes.set_yticks(range(len(shares)), list(shares), fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="importance (%)", title=title)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return save_figure(figure, Path(path))


def spread_of(runs: Sequence[Run]) -> tuple[list[int], list[list[float]]]:
    """Each trial count from which all runs have a value, and the runs' values there.

    >>> spread_of([[(1, 0.5), (3, 0.7)], [(2, 0.6)]])
    ([2, 3], [[0.5, 0.6], [0.7, 0.6]])
    """
    first = max(run[0][0] for run in runs)
    last = max(run[-1][0] for run in runs)
    counts = list(range(first, last + 1))
    return counts, [[_value_at(run, count) for run in runs] for count in counts]


def _value_at(run: Run, count: int) -> float:
    return next(value for at, value in reversed(run) if at <= count)
