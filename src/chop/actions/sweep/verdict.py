"""Verdict of a sweep: farthest setting of each stage within a small loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from chop.actions.idle_training import describe_idle_training
from chop.actions.sweep.experiment import FLOAT
from chop.base.notices import assume
from chop.report.report import Cell, Report, Tile
from chop.runs import Outcome
from chop.train import Metric

LOSS = 0.01
"""Tolerated loss of the metric against float, as in the default of `chop compress`."""
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
    """Adds a verdict and tiles to a report: the farthest good setting of each stage.

    Args:
        report: report of a sweep, with rows of `float` and the stages.
        metric: metric of the task.
        stages: columns of rows.
        axis: column that is swept.
        best: better end of the axis.
        family: column that distinguishes curves; None for a single curve.
        data: name of the data set.
    """
    rows, sentences, tiles = report.rows, [], []
    none: list[str] = []
    chosen: list[tuple[Mapping[str, Any], str]] = []
    for kind in dict.fromkeys(row.get(family) if family else None for row in rows):
        mine = [row for row in rows if family is None or row.get(family) == kind]
        for stage in stages:
            name = stage if kind is None else f"{kind}, {stage}"
            row = _farthest(mine, metric, stage, axis, best)
            if row is None:
                none.append(name)
                continue
            chosen.append((row, stage))
            sentences.append(f"{name} at {axis} {row[axis]:g} ({metric.format_value(row[stage])})")
            about = f"{axis} {row[axis]:g}"
            cell = Cell(row[stage], metric.format_value(row[stage]))
            tiles.append(Tile(f"{name}, within {metric.format_drop(LOSS)} of float", cell, about))
    exact = rows[0][FLOAT]
    first = Tile(FLOAT, Cell(exact, metric.format_value(exact)))
    within = f"within {metric.format_drop(LOSS)} of float"
    verdict = f"W{within[1:]}: {'; '.join(sentences)}." if sentences else f"No point is {within}."
    if sentences and none:
        verdict += f" Larger losses at every {axis}: {'; '.join(none)}."
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


def note_weak_training(
    rows: Sequence[Mapping[str, Any]], stages: tuple[str, str], metric: Metric, options: str
) -> None:
    """Records an assumption if training changed no score, or brought none near the float model.

    Points with the score of the float model have nothing to regain, and do not count.

    Args:
        rows: rows of a sweep, with `float` and the stages.
        stages: column before and after training.
        metric: metric of the task.
        options: prefix of the options of training, qat or finetune.
    """
    before, after = stages
    lossy = [row for row in rows if after in row and row[before] != row[FLOAT]]
    if not lossy:
        return
    if all(row[before] == row[after] for row in lossy):
        settings = f"all {len(lossy)} points below float" if len(lossy) > 1 else "the point"
        assume(describe_idle_training(metric.name, settings, options))
    elif not any(metric.within(row[after], row[FLOAT], LOSS) for row in lossy):
        assume(
            f"Training brought no point within {metric.format_drop(LOSS)} of float. Try more "
            f"epochs (--{options}-epochs) or a higher rate (--{options}-lr)."
        )


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
