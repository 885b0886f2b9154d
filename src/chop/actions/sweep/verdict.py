"""Verdict of a sweep: how far each stage goes before it loses more than a little."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from chop.actions.sweep.experiment import FLOAT
from chop.report.report import Cell, Report, Tile
from chop.runs import Outcome
from chop.train import Metric

LOSS = 0.01
"""Of the float model's metric; what `chop compress` allows by default."""
R = Report[list[dict[str, Any]]]


def with_verdict(
    report: R,
    metric: Metric,
    stages: Sequence[str],
    axis: str,
    best: Literal["least", "greatest"],
    family: str | None = None,
    data: str = "",
) -> R:
    """A report with its verdict and tiles: the farthest setting that each stage bears.

    Args:
        report: of a sweep, rows with `float` and the stages.
        metric: of the task.
        stages: columns of rows.
        axis: column that is swept.
        best: which end of it is the better one.
        family: column that tells curves apart; None where there is one.
        data: name of the data set.
    """
    rows, said, tiles = report.rows, [], []
    none: list[str] = []
    chosen: list[tuple[Mapping[str, Any], str]] = []
    for kind in dict.fromkeys(row.get(family) if family else None for row in rows):
        mine = [row for row in rows if family is None or row.get(family) == kind]
        for stage in stages:
            name = stage if kind is None else f"{kind}, {stage}"
            found = _farthest(mine, metric, stage, axis, best)
            if found is None:
                none.append(name)
                continue
            chosen.append((found, stage))
            said.append(f"{name} at {axis} {found[axis]:g} ({metric.format_value(found[stage])})")
            about = f"{axis} {found[axis]:g}"
            shown = Cell(found[stage], metric.format_value(found[stage]))
            tiles.append(Tile(f"{name}, within {metric.format_drop(LOSS)} of float", shown, about))
    exact = rows[0][FLOAT]
    first = Tile(FLOAT, Cell(exact, metric.format_value(exact)))
    within = f"within {metric.format_drop(LOSS)} of float"
    verdict = f"W{within[1:]}: {'; '.join(said)}." if said else f"Nothing is {within}."
    if said and none:
        verdict += f" Not at any {axis}: {'; '.join(none)}."
    choose = min if best == "least" else max
    row, stage = choose(chosen, key=lambda each: each[0][axis], default=(None, ""))
    outcome = Outcome(
        data=data,
        metric=metric.name,
        value=None if row is None else row[stage],
        reference=exact,
        is_share=metric.is_share,
        bits=None if row is None else row.get("bits"),
    )
    return dataclasses.replace(report, verdict=verdict, tiles=[first, *tiles], outcome=outcome)


def _farthest(
    rows: Sequence[Mapping[str, Any]], metric: Metric, stage: str, axis: str, best: str
) -> Mapping[str, Any] | None:
    good = [
        row
        for row in rows
        if isinstance(row.get(stage), float)
        and math.isfinite(row[stage])
        and isinstance(row.get(axis), int | float)
        and metric.within(row[stage], row[FLOAT], LOSS)
    ]
    choose = min if best == "least" else max
    return choose(good, key=lambda row: row[axis], default=None)
