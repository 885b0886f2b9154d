"""Sweep over integer bits, then over fraction bits at the fewest sufficient integer bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import get_console

from chop.actions.sweep.experiment import FLOAT, Sweep
from chop.actions.sweep.rounding import (
    PTQ,
    STAGES,
    UNPRINTED,
    Setting,
    build_curve,
    build_rounding,
    get_row,
    stages_in,
)
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.actions.sweep.value_ranges import NAME as RANGES
from chop.actions.sweep.value_ranges import (
    ValueRange,
    figures_of_ranges,
    table_of_ranges,
    value_ranges,
)
from chop.formats import Integer
from chop.report.charts.accuracy import accuracy_charts
from chop.report.measured import TIMES, MeasuredTable, report_of_tables
from chop.report.report import Report, Writer, figure_files, show
from chop.train import Metric
from chop.workloads.workload import Workload

INTEGER, FRACTION = "integer_bits", "frac_width"
PLURALS = {"weight": "weights", "bias": "biases", "input": "inputs"}
NAMES = {INTEGER: "integer bits", FRACTION: "fraction bits"}
FILES = {INTEGER: "integer-bits", FRACTION: "fraction-bits"}
TOLERATED = 0.01
"""Tolerated loss of a metric without a standard error, see `Metric.within`."""
Rows = list[dict[str, Any]]


def sweep_split_widths(config: QuantizeSweepConfig, workload: Workload) -> Report[Rows]:
    """Varies integer bits at the most fraction bits, then fraction bits at the chosen integer bits.

    The largest weights, biases and inputs are measured first: integer bits beyond their needs
    change nothing and are skipped. PTQ on validation rows chooses the numbers, see
    `least_without_loss`.

    The journal is `points.jsonl`; results are `ranges` (.csv, .md: magnitudes by layer; .svg, .png:
    histograms with the values of formats), `integer-bits` and `fraction-bits` (.csv, .md, .svg,
    .png). Rows have `varied`, `integer_bits`, `frac_width`, `width`, and the columns of
    `chop.actions.sweep.quantize.quantize_sweep`.
    """
    workload = workload.with_validation()
    sweep = Sweep(build_rounding(config, workload), workload)
    ranges = value_ranges(sweep.float_graph, config.operators, workload, config.calibration_rows)
    magnitudes = table_of_ranges(ranges, workload)
    blocks = show(*magnitudes.blocks)
    integer, fraction = config.split()
    useful = _useful(integer, ranges, config.calibration_rows)
    by_integer = _measured(sweep, INTEGER, [(n, fraction[-1]) for n in useful], config.out)
    chosen = _least(by_integer, INTEGER, workload)
    by_fraction = _measured(sweep, FRACTION, [(chosen, n) for n in fraction], config.out)
    finest = _least(by_fraction, FRACTION, workload)
    at_finest, at_chosen = _counted(fraction[-1], FRACTION), _counted(chosen, INTEGER)
    about = f"{workload.title}: weights, inputs, and the values of formats width.fraction"
    tables = {
        INTEGER: _table(workload, INTEGER, by_integer, at_finest),
        FRACTION: _table(workload, FRACTION, by_fraction, at_chosen),
    }
    figures = {
        **_figures(workload, INTEGER, tables[INTEGER], _marks(ranges, useful)),
        **_figures(workload, FRACTION, tables[FRACTION], {}),
        **figures_of_ranges(ranges, _candidates(chosen, finest), about),
    }
    rows = [
        {"varied": NAMES[varied], **row} for varied, table in tables.items() for row in table.rows
    ]
    files = {FILES[varied]: table for varied, table in tables.items()}
    report = report_of_tables({RANGES: magnitudes, **files}, rows, figures)
    return replace(report, documents={**report.documents, f"{RANGES}.md": blocks}, rows=rows)


def _useful(integer: Sequence[int], ranges: Sequence[ValueRange], rows: int) -> tuple[int, ...]:
    """Returns the integer bits worth measuring, and prints the others."""
    need = _needed(ranges)
    listed = ", ".join(f"{what} {bits}" for what, bits in need.items())
    most = max([*need.values(), integer[0]])
    beyond = [str(bits) for bits in integer if bits > most]
    text = f"Integer bits (with sign) for the largest values: {listed}."
    if beyond:
        text += (
            f" Skipped {', '.join(beyond)}: no weight, and no input on {rows} training rows, needs "
            f"more than {most}."
        )
    get_console().print(text, highlight=False, markup=False)
    return tuple(bits for bits in integer if bits <= most)


def _needed(ranges: Sequence[ValueRange]) -> dict[str, int]:
    """Returns the needed integer bits by operand, over all layers."""
    operands = dict.fromkeys(each.operand for each in ranges)
    return {
        PLURALS[operand]: max(each.integer_bits for each in ranges if each.operand == operand)
        for operand in operands
    }


def _measured(
    sweep: Sweep[Setting], varied: str, splits: Sequence[tuple[int, int]], out: Path
) -> Rows:
    """Measures each split into integer bits and fraction bits; returns a row per split."""
    results = sweep.measure([(integer + frac, frac) for integer, frac in splits], out)
    return [
        {
            **dict(
                sorted({INTEGER: integer, FRACTION: frac}.items(), key=lambda x: x[0] != varied)
            ),
            "width": integer + frac,
            **get_row(results, (integer + frac, frac), sweep.workload),
        }
        for integer, frac in splits
    ]


def _least(rows: Rows, varied: str, workload: Workload) -> int:
    """Returns and prints the fewest bits with PTQ within an error of the best."""
    metric, judges = workload.task.metric, workload.validation
    where, columns, count = " on validation rows", UNPRINTED, len(judges or ())
    if workload.judge is not None:
        where, columns = "", STAGES
    elif any(row[UNPRINTED[0]] is None for row in rows):  # some points are from an earlier version
        where, columns, count = " on test rows", STAGES, len(workload.test)
    scores = {row[varied]: row[columns[0]] for row in rows}
    best = max(scores.values(), key=metric.key)
    chosen, error = least_without_loss(scores, metric, count)
    get_console().print(
        f"{PTQ} needs {chosen} {NAMES[varied]}: the fewest within the error "
        f"({metric.format_drop(error)}) of the best{where}, {metric.format_value(best)}.",
        highlight=False,
        markup=False,
    )
    return chosen


def least_without_loss(scores: Mapping[int, float], metric: Metric, rows: int) -> tuple[int, float]:
    """Applies the one-standard-error rule: returns the least number within an error of the best.

    Args:
        scores: score by number.
        metric: metric of the scores.
        rows: number of rows they were measured on.
    Returns: the number, and the error: sqrt(p (1 - p) / rows) for a share p, else `TOLERATED`.

    Source: Breiman et al. 1984, "Classification and Regression Trees", section 3.4.3.
    """
    best = max(scores.values(), key=metric.key)
    error = math.sqrt(max(0.0, best * (1 - best)) / rows) if metric.is_share else TOLERATED
    return min(n for n, score in scores.items() if metric.within(score, best, error)), error


def _counted(bits: int, what: str) -> str:
    return f"{bits} {NAMES[what]}" if bits != 1 else f"1 {NAMES[what].removesuffix('s')}"


def _marks(ranges: Sequence[ValueRange], measured: Sequence[int]) -> dict[str, float]:
    """Returns marks of the figure: the integer bits that operands need."""
    operands: dict[int, list[str]] = {}
    for operand, bits in _needed(ranges).items():
        operands.setdefault(bits, []).append(operand)
    return {
        f"{', '.join(names)} need {bits}": bits
        for bits, names in operands.items()
        if bits in measured
    }


def _table(workload: Workload, varied: str, rows: Rows, at: str) -> MeasuredTable:
    metric = workload.task.metric
    title = f"{workload.title}: {metric.name} against {NAMES[varied]}, {at}"
    columns = dict.fromkeys((FLOAT, *STAGES), metric)
    return MeasuredTable(title, rows, columns, workload.about_test, UNPRINTED, TIMES)


def _figures(
    workload: Workload, varied: str, table: MeasuredTable, marks: Mapping[str, float]
) -> dict[str, Writer]:
    rows = table.rows
    return figure_files(
        FILES[varied],
        accuracy_charts,
        [build_curve(rows, varied, stage) for stage in stages_in(rows)],
        {FLOAT: rows[0][FLOAT], **workload.baselines},
        metric=workload.task.metric,
        xlabel=NAMES[varied],
        title=table.title,
        ticks=sorted({row[varied] for row in rows}),
        marks=marks,
    )


def _candidates(integer: int, frac_width: int) -> dict[str, Integer]:
    """Returns the chosen format by its label, and formats with a bit or two less."""
    splits = [(integer, frac_width), (integer - 1, frac_width), (integer, frac_width - 1)]
    splits.append((integer, frac_width - 2))
    formats = [Integer(m + f, f) for m, f in splits if m > 0 and f >= 0 and m + f > 1]
    return {each.label + (", chosen" if each is formats[0] else ""): each for each in formats}
