"""Charts of sharding plans: predicted time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.errors import ConfigError
from chop.report.charts.chart import Axis, Bar, BarChart


def plan_charts(
    rows: Sequence[Mapping[str, Any]], title: str, memory_bytes: int | None = None
) -> list[BarChart]:
    """Returns bar charts of the predicted time and memory of sharding plans.

    Args:
        rows: rows of `chop.distributed.planning.plan_report.plan_rows`.
        title: title of the charts.
        memory_bytes: memory of a process, drawn as a line. None for no line.
    Raises:
        ConfigError: if there are no plans.
    """
    if not rows:
        raise ConfigError("plans: expected at least one plan.")
    times = [Bar(row["plan"], (row["seconds"] * 1e3,)) for row in rows]
    most = max([memory_bytes or 0, *(row["peak_bytes"] for row in rows)])
    unit, name = (1e6, "MB") if most >= 1e6 else (1e3, "kB")
    sizes = [
        Bar(row["plan"], (row["kept_bytes"] / unit, (row["peak_bytes"] - row["kept_bytes"]) / unit))
        for row in rows
    ]
    budget = {} if memory_bytes is None else {"budget": memory_bytes / unit}
    time = Axis("predicted time of a forward (ms)", log=False)
    size = Axis(f"peak memory of a process ({name})", log=False)
    parts = ("parameters", "activations")
    return [
        BarChart(f"{title}: predicted time of each plan", time, tuple(times)),
        BarChart(f"{title}: memory of each plan", size, tuple(sizes), parts, budget),
    ]
