"""Compression job: evaluates each format, saves the smallest model within `max_drop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self

from chop.actions.compress.doubts import note_test_drop
from chop.actions.compress.measure import Measured
from chop.actions.compress.report import about_rows, build_report
from chop.actions.compress.saving import MODEL_FILES
from chop.actions.compress.settings import CompressConfig
from chop.actions.compress.table import (
    Candidate,
    about_operators,
    footnotes,
    outputs_tables,
    terminal_table,
)
from chop.actions.compress.whole import WholeModel
from chop.actions.job import Job, Output, check_arguments, run_job
from chop.report.report import Note, Report, say, show
from chop.train import Metric
from chop.workloads.load import merge_settings
from chop.workloads.workload import Workload


class Subject(Protocol):
    """Model to compress, with its rows: in memory, or block by block.

    Attributes:
        saves_all: save the model regardless of its loss.
    """

    saves_all: ClassVar[bool]

    @property
    def config(self) -> CompressConfig:
        """Settings of the job, with the default operands of the model's task."""

    @property
    def workload(self) -> Workload:
        """Rows and task of the model."""

    @classmethod
    def load(cls, config: CompressConfig, workload: Workload | None) -> Self:
        """Loads the model that settings name, or uses a workload of the caller."""

    @staticmethod
    def interruption_note(config: CompressConfig) -> str:
        """Returns the closing sentence of an interrupted run: saved files, and how to resume."""

    def measure(self) -> Measured:
        """Measures the float model, and the rounded ones."""

    def save(
        self, report: Report[dict[str, Any]], exact: Candidate, chosen: Candidate, output: Output
    ) -> Report[dict[str, Any]]:
        """Writes the chosen model, and returns the report with facts about its files."""


def compress(config: CompressConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Quantizes a model in several formats, fine-tunes the smallest one, and saves the best model.

    The format is chosen on validation rows. Test rows are used for reporting only.

    Writes into `config.out`: `model.pt` and `model.mz` (the smallest model within `max_drop` of
    float, with packed weights; `pack_transform_pass` unpacks them for training), the folder `model`
    for a transformers model, `model.onnx` if ONNX has the formats, `graph.svg`, `accuracy.svg`
    (named by the metric), `table.md`, `result.json` and `manifest.json`. If no format is within
    `max_drop` and `keep_best` is off, no model is saved, and an earlier run's model files stay.

    With `by_block`, a decoder is rounded with one block in memory, and only the folder `model` is
    written. A killed run resumes after the last finished block.

    Args:
        config: settings of the job.
        workload: your own trained model and rows, see `Workload.of`. Default: the model and
            data that `config` names.
    Returns: the content of `result.json`; its `saved` is None if no model was saved.
    Raises:
        ConfigError: if settings do not fit together.
        UnavailableError: if the model, the data set or a library is missing.
    """
    check_arguments(config, workload)
    if config.by_block and workload is None:
        from chop.actions.compress.by_block import Decoder
        from chop.quantization.walk.values import NoBlocksError

        try:
            return run_job(_job_for(Decoder), config)
        except NoBlocksError as error:
            say(f"chop compresses {config.model} as a whole, not block by block: {error}.")
    return run_job(_job_for(WholeModel), config, workload)


def _job_for(kind: type[Subject]) -> Job[CompressConfig, Subject, dict[str, Any]]:
    return Job(
        "compress",
        _compress,
        kind.load,
        kind.interruption_note,
        lambda _, subject: merge_settings(subject.config, subject.workload),
    )


def _compress(_: CompressConfig, subject: Subject, output: Output) -> Report[dict[str, Any]]:
    config, measurement, workload = subject.config, subject.measure(), subject.workload
    title, metric, exact = workload.title, workload.task.metric, measurement.exact
    quantized = [*measurement.rounded, *measurement.trained]
    candidates = [exact, *quantized]
    measured = show(
        terminal_table(f"{title}: {metric.title}", candidates, metric, workload.get_name("test")),
        *outputs_tables(f"{title}: outputs{workload.judged_on}", candidates, workload.task),
        *map(Note, footnotes(candidates)),
        Note(about_operators(candidates), is_written=False),
        Note(about_rows(workload, exact.scores["test"])),
        Note(measurement.note, is_written=False),
    )
    chosen = _smallest(quantized, exact, config.max_drop, metric)
    if chosen is not None:
        note_test_drop(chosen, exact, workload, config.max_drop)
    report = build_report(candidates, measured, workload, config)
    nearest = max(quantized, key=lambda c: metric.key(c.row.validation))
    if chosen is None and not subject.saves_all:
        closing = [_nothing_within(nearest, exact, config, metric)]
        report = replace(report, closing=closing)
        if not config.keep_best:
            return report
    return subject.save(report, exact, chosen or nearest, output)


def _smallest(
    candidates: Sequence[Candidate], exact: Candidate, max_drop: float, metric: Metric
) -> Candidate | None:
    """Returns the smallest candidate within `max_drop` of float on validation rows, or None."""
    least = exact.row.validation
    good = [c for c in candidates if metric.within(c.row.validation, least, max_drop)]
    return min(good, key=lambda c: (c.row.bits, -metric.key(c.row.validation)), default=None)


def _nothing_within(
    nearest: Candidate, exact: Candidate, config: CompressConfig, metric: Metric
) -> str:
    row, (mine, reference) = nearest.row, (c.scores["validation"] for c in (nearest, exact))
    lost = metric.format_loss(row.validation, exact.row.validation)
    where = "" if nearest.is_judged else " on the validation rows"
    outcome = (
        f"No format is within {metric.format_drop(config.max_drop)} of float{where}: the best one, "
        f"{row.format} ({row.method}), loses {lost}, {mine.format(metric)} against "
        f"{reference.format(metric)}{f' on {mine.rows} rows' if mine.rows else ''}"
    )
    if config.keep_best:
        return f"{outcome}. It is saved because of --keep-best."
    earlier = "; its model is from an earlier run" if (config.out / MODEL_FILES[0]).exists() else ""
    return (
        f"{outcome}. No model was saved in {config.out}/{earlier}. Try other --formats, more "
        "--qat-epochs or a larger --max-drop, or save the best one anyway with --keep-best."
    )
