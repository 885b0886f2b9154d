"""Compression job: evaluates each format, saves the smallest model within `max_drop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self

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
from chop.actions.job import Job, Output, run_job
from chop.report.report import Note, Report, say, show
from chop.train import Metric
from chop.workloads.load import merge_settings
from chop.workloads.workload import Workload


class Subject(Protocol):
    """Model that is compressed, with its rows: as a whole, or block by block.

    Attributes:
        saves_all: the model is saved whatever it loses.
    """

    saves_all: ClassVar[bool]

    @property
    def workload(self) -> Workload:
        """The rows, and the task."""

    @classmethod
    def load(cls, config: CompressConfig, workload: Workload | None) -> Self:
        """The model that settings name, or a workload of the caller."""

    @staticmethod
    def kept(config: CompressConfig) -> str:
        """The sentence of an interrupted run: what is kept, and how to go on."""

    def measure(self) -> Measured:
        """Rounds the model, and measures it beside float."""

    def save(
        self, report: Report[dict[str, Any]], exact: Candidate, chosen: Candidate, output: Output
    ) -> Report[dict[str, Any]]:
        """Writes the chosen model; the report then has what is known of its files."""


def compress(config: CompressConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Quantizes a model in several formats, trains the hardest one back, and writes it all down.

    Formats are chosen by their accuracy on validation rows; that on test rows is only reported.

    Writes into `config.out`: `model.pt` and `model.mz` (the smallest model within `max_drop` of
    float, its weights packed: `pack_transform_pass` unpacks them for training), the folder `model`
    where it is one of transformers, which loads it, `model.onnx` where ONNX has the formats,
    `graph.svg`, `accuracy.svg` (named by the metric), `table.md`, `result.json` and
    `manifest.json`. Where no format keeps within `max_drop`, and `keep_best` does not ask for one
    all the same, no model is saved: files of an earlier run's model stay.

    With `by_block` a decoder is rounded with one block in memory, and the folder `model` alone is
    written. A run that was killed goes on after the last block that is done.

    Args:
        config: the settings.
        workload: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: what is in `result.json`; its `saved` is None where no model was saved.
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model, the data set or a library is not there.
    """
    if config.by_block and workload is None:
        from chop.actions.compress.by_block import Decoder
        from chop.quantization.walk.values import NoBlocksError

        try:
            return run_job(_job_for(Decoder), config)
        except NoBlocksError as error:
            say(f"{config.model} is compressed as a whole, not block by block: {error}.")
    return run_job(_job_for(WholeModel), config, workload)


def _job_for(kind: type[Subject]) -> Job[CompressConfig, Subject, dict[str, Any]]:
    return Job(
        "compress",
        _compress,
        kind.load,
        kind.kept,
        lambda config, subject: merge_settings(config, subject.workload),
    )


def _compress(config: CompressConfig, subject: Subject, output: Output) -> Report[dict[str, Any]]:
    found, workload = subject.measure(), subject.workload
    title, metric, exact = workload.title, workload.task.metric, found.exact
    quantized = [*found.rounded, *found.trained]
    candidates = [exact, *quantized]
    measured = show(
        terminal_table(f"{title}: {metric.title}", candidates, metric, workload.get_name("test")),
        *outputs_tables(f"{title}: outputs{workload.judged_on}", candidates, workload.task),
        *map(Note, footnotes(candidates)),
        Note(about_operators(candidates), is_written=False),
        Note(about_rows(workload, exact.scores["test"])),
        Note(found.note, is_written=False),
    )
    report = build_report(candidates, measured, workload, config)
    chosen = _smallest(quantized, exact, config.max_drop, metric)
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
    """The smallest that is not much worse than float on validation rows; None if none is."""
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
        f"No format keeps within {metric.format_drop(config.max_drop)} of float{where}: the "
        f"nearest, {row.format} ({row.method}), loses {lost}, {mine.format(metric)} against "
        f"{reference.format(metric)}{f' on {mine.rows} rows' if mine.rows else ''}"
    )
    if config.keep_best:
        return f"{outcome}; it is saved because --keep-best asks for it."
    kept = "; the model in it is an earlier run's" if (config.out / MODEL_FILES[0]).exists() else ""
    return (
        f"{outcome}. No model was saved in {config.out}/{kept}. Give other --formats, more "
        "--qat-epochs or a larger --max-drop, or save it all the same with --keep-best."
    )
