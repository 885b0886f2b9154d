"""Results of an evaluation: tables, sentences and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chop.actions.evaluate.rows import Measured, RowResult
from chop.actions.evaluate.tasks import TaskScore
from chop.base.displayed import Displayed
from chop.report.charts.evaluation import TaskShares, divergence_charts, score_charts
from chop.report.report import Block, Cell, Note, Report, Table, Tile, Writer, figure
from chop.runs import Outcome
from chop.statistics.intervals import LEVEL_TEXT
from chop.train.intervals import format_cell
from chop.train.metric import Metric
from chop.train.tasks import CLASSIFICATION
from chop.workloads.settings import short_name
from chop.workloads.workload import Workload

SHARES = CLASSIFICATION.metric
"""Metric that formats shares of answers."""
NO_FILTER = "none"


@dataclass(frozen=True, repr=False)
class Evaluation(Displayed):
    """Results of an evaluation.

    Attributes:
        model: name as given.
        reference: the float model; "" if none is known.
        dataset: data set of the rows.
        rows: results on the rows.
        tasks: metrics of the lm-eval tasks.
    """

    model: str
    reference: str
    dataset: str
    rows: RowResult
    tasks: tuple[TaskScore, ...]

    def numbers(self) -> list[dict[str, Any]]:
        """Returns the table of the manifest: the rows, and each metric of each task."""
        return [asdict(self.rows), *(asdict(score) for score in self.tasks)]


def build_report(
    evaluation: Evaluation, divergences: Sequence[float], workload: Workload
) -> Report[Evaluation]:
    """Builds the report with `table.md`, `kl.svg` and `tasks.svg`.

    Args:
        evaluation: the results.
        divergences: KL divergence of each answer from the float model's, in nats.
        workload: its task formats the metric.
    """
    title = f"{short_name(evaluation.model)} on {short_name(evaluation.dataset)}"
    figures: dict[str, Writer] = {}
    if divergences:
        figures["kl.svg"] = figure(
            divergence_charts, divergences, f"{title}: divergence from the float model"
        )
    if bars := _bars(evaluation.tasks):
        figures["tasks.svg"] = figure(score_charts, bars, f"{short_name(evaluation.model)}: tasks")
    blocks = [*_row_blocks(title, evaluation, workload), *_task_blocks(evaluation)]
    return Report(
        title,
        {"table.md": blocks},
        evaluation,
        evaluation.numbers(),
        figures=figures,
        verdict=_verdict(evaluation, workload),
        tiles=_tiles(evaluation, workload),
        outcome=_outcome(evaluation, workload.task.metric),
    )


def _outcome(evaluation: Evaluation, metric: Metric) -> Outcome:
    rows = evaluation.rows
    exact = None if rows.reference is None else rows.reference.value
    return Outcome(evaluation.dataset, metric.name, rows.own.value, exact, metric.is_share)


def _verdict(evaluation: Evaluation, workload: Workload) -> str:
    rows, metric = evaluation.rows, workload.task.metric
    parts = f"{metric.title} {format_cell(rows.own.value, rows.own.interval, metric)}"
    if rows.reference is not None:
        parts += f", float {format_cell(rows.reference.value, rows.reference.interval, metric)}"
    if rows.kl is not None and rows.flips is not None:
        parts += f"; KL divergence {_nats(rows.kl)} nats, flips {_share(rows.flips)}"
    if not rows.rows:
        return f"{parts}, by {workload.judge.title if workload.judge else 'one number'}."
    return f"{parts}, on {_counted(rows, workload)}, {LEVEL_TEXT} intervals."


def _counted(rows: RowResult, workload: Workload) -> str:
    if workload.judge is not None:
        return f"{rows.rows:,} rows of {workload.judge.title}" if rows.rows else "one number"
    return f"{rows.rows:,} {workload.get_name('test')} rows"


def _tiles(evaluation: Evaluation, workload: Workload) -> list[Tile]:
    """Returns tiles with the metric on the rows, and the distance from the float model."""
    rows, metric = evaluation.rows, workload.task.metric
    exact = "" if rows.reference is None else f"float {metric.format_value(rows.reference.value)}, "
    own = Cell(rows.own.value, format_cell(rows.own.value, rows.own.interval, metric))
    tiles = [
        Tile(f"{metric.name} ({LEVEL_TEXT} interval)", own, f"{exact}{_counted(rows, workload)}")
    ]
    if rows.kl is None or rows.same is None:
        return tiles
    tiles += [
        Tile("KL divergence (nats)", _nats(rows.kl), f"mean of {rows.answers:,} answers"),
        Tile("same answer", _share(rows.same), "as the float model"),
    ]
    if rows.flips is None:
        return tiles
    return [
        *tiles,
        Tile("flips", _share(rows.flips), f"{rows.lost} right to wrong, {rows.won} wrong to right"),
    ]


def _row_blocks(title: str, evaluation: Evaluation, workload: Workload) -> list[Block]:
    rows, metric = evaluation.rows, workload.task.metric

    def named(name: str, score: Measured) -> dict[str, Any]:
        return {
            "model": name,
            metric.title: Cell(score.value, format_cell(score.value, score.interval, metric)),
        }

    table = [named(short_name(evaluation.model), rows.own)]
    if rows.reference is not None:
        table.insert(0, named(f"float: {short_name(evaluation.reference)}", rows.reference))
    if rows.kl is not None and rows.same is not None:
        table[1] |= {"KL divergence": _nats(rows.kl), "same answer": _share(rows.same)}
        if rows.flips is not None:
            table[1] |= {
                "flips": _share(rows.flips),
                "right to wrong": rows.lost,
                "wrong to right": rows.won,
            }
        table[0] |= dict.fromkeys(list(table[1])[2:], "")
    blocks: list[Block] = [Table(title, table)]
    if rows.outputs is not None:
        metrics = workload.task.metrics
        values = [
            {name: Cell(value, metrics[name].format_value(value)) for name, value in each.items()}
            for each in reversed(rows.outputs)
        ]
        names = [{"model": row["model"]} for row in table]
        each = [{**name, **row} for name, row in zip(names, values, strict=True)]
        blocks.append(Table(f"{title}: outputs", each))
    return [*blocks, Note(_about_rows(evaluation, workload))]


def _about_rows(evaluation: Evaluation, workload: Workload) -> str:
    rows = evaluation.rows
    if workload.judge is not None:
        count = f"{rows.rows:,} numbers, one per row, with {LEVEL_TEXT} confidence intervals."
        return f"Scored by {workload.judge.title}: " + (
            count if rows.rows else "one number, without a confidence interval."
        )
    answers = f" with {rows.answers:,} answers" * (rows.answers != rows.rows)
    parts = [f"{_counted(rows, workload)}{answers}; {LEVEL_TEXT} confidence intervals over rows."]
    if rows.kl is not None:
        parts.append(
            "KL divergence: mean over answers of KL(float || model) in nats. Same answer: share of "
            "answers equal to the float model's."
        )
        if rows.flips is not None:
            parts.append("Flips: answers that change from right to wrong or from wrong to right.")
        if rows.change is not None:
            parts.insert(0, _about_change(rows.change))
    elif rows.reference is not None:
        kind = "several outputs" if workload.task.parts else "numbers"
        parts.append(f"Answers of task '{workload.task.name}' are {kind}, so there are no flips.")
    else:
        parts.append(
            "With a float model (--reference FLOAT_MODEL), KL divergence and flips are measured "
            "too."
        )
    return " ".join(parts)


def _about_change(change: Measured) -> str:
    """Describes the change of the share of right answers, in percentage points."""
    text = f"The share of right answers changes by {100 * change.value:+.2f} percentage points"
    if change.interval is None:
        return f"{text}."
    low, high = (f"{100 * end:+.2f}" for end in change.interval)
    return f"{text} ({LEVEL_TEXT} interval {low} to {high}, paired by row)."


def _task_blocks(evaluation: Evaluation) -> list[Block]:
    if not evaluation.tasks:
        return []
    table = [
        _task_row(score, has_reference=bool(evaluation.reference)) for score in evaluation.tasks
    ]
    about = "lm-eval computes the metrics and standard errors (±)."
    if evaluation.reference:
        about += (
            " Flips: share of questions whose answer changes between right and wrong, with a "
            f"{LEVEL_TEXT} confidence interval."
        )
    return [Table(f"{short_name(evaluation.model)}: tasks of lm-eval", table), Note(about)]


def _task_row(score: TaskScore, has_reference: bool) -> dict[str, Any]:
    chosen = "" if score.filter == NO_FILTER else f" ({score.filter})"
    row: dict[str, Any] = {
        "task": score.task,
        "metric": f"{score.metric}{chosen}",
        "questions": score.questions or "",
    }
    own = _with_error(score.own, score.stderr)
    if not has_reference:
        return {**row, "model": own}
    return {
        **row,
        "float": _with_error(score.reference, score.reference_stderr),
        "model": own,
        "flips": "" if score.flips is None else _share(score.flips),
        "right to wrong": "" if score.lost is None else score.lost,
        "wrong to right": "" if score.won is None else score.won,
    }


def _with_error(value: float | None, error: float | None) -> Cell | str:
    if value is None:
        return ""
    return Cell(value, f"{value:.4g}" + ("" if error is None else f" ± {error:.2g}"))


def _share(measured: Measured) -> Cell:
    return Cell(measured.value, format_cell(measured.value, measured.interval, SHARES))


def _nats(measured: Measured) -> Cell:
    ends = "" if measured.interval is None else " ({:.3g} to {:.3g})".format(*measured.interval)
    return Cell(measured.value, f"{measured.value:.4g}{ends}")


def _bars(scores: Sequence[TaskScore]) -> list[TaskShares]:
    """Returns bars of metrics that are shares; perplexities need another axis."""
    return [
        TaskShares(
            f"{score.task}: {score.metric}",
            (score.own, score.stderr),
            None if score.reference is None else (score.reference, score.reference_stderr),
        )
        for score in scores
        if 0 <= score.own <= 1 and 0 <= (score.reference or 0) <= 1
    ]
