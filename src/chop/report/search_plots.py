"""Plots of searches, each one call and one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from chop.errors import ConfigError
from chop.report.plots import MAX_CURVES_INSIDE, save_figure

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
