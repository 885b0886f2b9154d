"""Plots of sharding plans, each one call and one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.report.charts import Axis, Bar, BarChart, charted_as
from chop.report.figures import PALETTE, WIDTH, new_figure, plain, save_figure


def plan_charts(
    rows: Sequence[Mapping[str, Any]], title: str, memory_bytes: int | None = None
) -> list[BarChart]:
    """The charts of `plot_plans`, which takes the same arguments."""
    times = [Bar(row["plan"], (row["seconds"] * 1e3,)) for row in rows]
    sizes = [
        Bar(row["plan"], (row["kept_bytes"] / 1e6, (row["peak_bytes"] - row["kept_bytes"]) / 1e6))
        for row in rows
    ]
    budget = {} if memory_bytes is None else {"budget": memory_bytes / 1e6}
    time = Axis("predicted time of a forward (ms)", log=False)
    size = Axis("peak memory of a process (MB)", log=False)
    return [
        BarChart(f"{title}: predicted time of a forward", time, tuple(times)),
        BarChart(
            f"{title}: peak memory of a process",
            size,
            tuple(sizes),
            ("parameters", "activations"),
            budget,
        ),
    ]


@charted_as(plan_charts)
def plot_plans(
    path: str | Path, rows: Sequence[Mapping[str, Any]], title: str, memory_bytes: int | None = None
) -> Path:
    """Draws the predicted time and memory of plans side by side, one bar for each plan.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        rows: of `chop.distributed.planning.plan_report.plan_rows`.
        title: above the panels.
        memory_bytes: what a process has, drawn as a line; None: no line.
    Returns: `path`.
    Raises:
        ConfigError: there is no plan.
    """
    if not rows:
        raise ConfigError("plot_plans: expected at least one plan.")
    figure = new_figure(title, WIDTH, 1.6 + 0.4 * len(rows))
    times, sizes = figure.subplots(1, 2, sharey=True)
    places = range(len(rows))
    times.barh(places, [row["seconds"] * 1e3 for row in rows], color=PALETTE[0], height=0.6)
    kept = [row["kept_bytes"] / 1e6 for row in rows]
    rest = [(row["peak_bytes"] - row["kept_bytes"]) / 1e6 for row in rows]
    sizes.barh(places, kept, color=PALETTE[0], height=0.6, label="parameters")
    sizes.barh(places, rest, left=kept, color=PALETTE[1], height=0.6, label="activations")
    if memory_bytes is not None:
        sizes.axvline(memory_bytes / 1e6, color="black", linestyle="--", label="budget")
    times.set_yticks(places, [plain(row["plan"]) for row in rows])
    times.invert_yaxis()
    times.set(xlabel="predicted time of a forward (ms)")
    sizes.set(xlabel="peak memory of a process (MB)")
    sizes.legend(fontsize="small")
    for axes in (times, sizes):
        axes.grid(alpha=0.3, axis="x")
    return save_figure(figure, Path(path))
