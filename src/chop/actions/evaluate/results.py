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
"""Prints shares of answers."""
NO_FILTER = "none"


@dataclass(frozen=True, repr=False)
class Evaluation(Displayed):
    """A model as it was judged.

    Attributes:
        model: as it was given.
        reference: the float model; "" where none is known.
        dataset: of the rows.
        rows: the model on its rows.
        tasks: metrics of the tasks of lm-eval.
    """

    model: str
    reference: str
    dataset: str
    rows: RowResult
    tasks: tuple[TaskScore, ...]

    def numbers(self) -> list[dict[str, Any]]:
        """The table of the manifest: the rows, and each metric of each task."""
        return [asdict(self.rows), *(asdict(score) for score in self.tasks)]


def build_report(
    found: Evaluation, divergences: Sequence[float], workload: Workload
) -> Report[Evaluation]:
    """Tables in `table.md`, figures `kl.svg` and `tasks.svg`.

    Args:
        found: the numbers.
        divergences: of each answer from the float model's.
        workload: its task says how the metric is printed.
    """
    title = f"{short_name(found.model)} on {short_name(found.dataset)}"
    figures: dict[str, Writer] = {}
    if divergences:
        figures["kl.svg"] = figure(
            divergence_charts, divergences, f"{title}: divergence from the float model"
        )
    if bars := _bars(found.tasks):
        figures["tasks.svg"] = figure(score_charts, bars, f"{short_name(found.model)}: tasks")
    blocks = [*_row_blocks(title, found, workload), *_task_blocks(found)]
    return Report(
        title,
        {"table.md": blocks},
        found,
        found.numbers(),
        figures=figures,
        verdict=_verdict(found, workload),
        tiles=_tiles(found, workload),
        outcome=_outcome(found, workload.task.metric),
    )


def _outcome(evaluation: Evaluation, metric: Metric) -> Outcome:
    rows = evaluation.rows
    exact = None if rows.reference is None else rows.reference.value
    return Outcome(evaluation.dataset, metric.name, rows.own.value, exact, metric.is_share)


def _verdict(evaluation: Evaluation, workload: Workload) -> str:
    rows, metric = evaluation.rows, workload.task.metric
    said = f"{metric.title} {format_cell(rows.own.value, rows.own.interval, metric)}"
    if rows.reference is not None:
        said += f", float {format_cell(rows.reference.value, rows.reference.interval, metric)}"
    if rows.kl is not None and rows.flips is not None:
        said += f"; KL divergence {_nats(rows.kl)} nats, flips {_share(rows.flips)}"
    if not rows.rows:
        return f"{said}, by {workload.judge.title if workload.judge else 'one number'}."
    return f"{said}, on {_counted(rows, workload)}, intervals at {LEVEL_TEXT}."


def _counted(rows: RowResult, workload: Workload) -> str:
    if workload.judge is not None:
        return f"{rows.rows:,} rows of {workload.judge.title}" if rows.rows else "one number"
    return f"{rows.rows:,} {workload.get_name('test')} rows"


def _tiles(evaluation: Evaluation, workload: Workload) -> list[Tile]:
    """The metric of the rows, and how far the answers are from the float model's."""
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


def _row_blocks(title: str, found: Evaluation, workload: Workload) -> list[Block]:
    rows, metric = found.rows, workload.task.metric

    def named(name: str, score: Measured) -> dict[str, Any]:
        return {
            "model": name,
            metric.title: Cell(score.value, format_cell(score.value, score.interval, metric)),
        }

    table = [named(short_name(found.model), rows.own)]
    if rows.reference is not None:
        table.insert(0, named(f"float: {short_name(found.reference)}", rows.reference))
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
        shown = [
            {name: Cell(value, metrics[name].format_value(value)) for name, value in each.items()}
            for each in reversed(rows.outputs)
        ]
        names = [{"model": row["model"]} for row in table]
        each = [{**name, **part} for name, part in zip(names, shown, strict=True)]
        blocks.append(Table(f"{title}: outputs", each))
    return [*blocks, Note(_about_rows(found, workload))]


def _about_rows(found: Evaluation, workload: Workload) -> str:
    rows = found.rows
    if workload.judge is not None:
        count = f"{rows.rows:,} numbers, one for each row; intervals at {LEVEL_TEXT}."
        return f"Judged by {workload.judge.title}: " + (
            count if rows.rows else "one number, which has no interval."
        )
    said = [
        f"{_counted(rows, workload)} with {rows.answers:,} answers; intervals at {LEVEL_TEXT}, "
        "over rows."
    ]
    if rows.kl is not None:
        said.append(
            "KL divergence: from the float model's distribution, mean in nats of an answer. Same "
            "answer: as the float model's."
        )
        if rows.flips is not None:
            said.append("Flips: answers that change from right to wrong or from wrong to right.")
    elif rows.reference is not None:
        kind = "several outputs" if workload.task.parts else "numbers"
        said.append(f"Answers of task '{workload.task.name}' are {kind}, which do not flip.")
    else:
        said.append(
            "Beside a float model (--reference FLOAT_MODEL) KL divergence and flips are measured, "
            "too."
        )
    return " ".join(said)


def _task_blocks(found: Evaluation) -> list[Block]:
    if not found.tasks:
        return []
    table = [_task_row(score, has_reference=bool(found.reference)) for score in found.tasks]
    about = "Numbers and standard errors (±) are lm-eval's."
    if found.reference:
        about += (
            " Flips: questions whose answer changes between right and wrong, of all; interval at "
            f"{LEVEL_TEXT}."
        )
    return [Table(f"{short_name(found.model)}: tasks of lm-eval", table), Note(about)]


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


def _share(found: Measured) -> Cell:
    return Cell(found.value, format_cell(found.value, found.interval, SHARES))


def _nats(found: Measured) -> Cell:
    ends = "" if found.interval is None else " ({:.3g} to {:.3g})".format(*found.interval)
    return Cell(found.value, f"{found.value:.4g}{ends}")


def _bars(scores: Sequence[TaskScore]) -> list[TaskShares]:
    """Of metrics that are shares; perplexities have another axis."""
    return [
        TaskShares(
            f"{score.task}: {score.metric}",
            (score.own, score.stderr),
            None if score.reference is None else (score.reference, score.reference_stderr),
        )
        for score in scores
        if 0 <= score.own <= 1 and 0 <= (score.reference or 0) <= 1
    ]
