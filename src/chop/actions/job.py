"""Job: settings and `run(config, workload, output) -> Report`, executed by `run_job`.

`run_job` handles what all jobs share: precision of products, the closing sentence after an
interruption, loading of the workload, the manifest, and printing and writing the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from chop import runs
from chop.base.files import names_of_files
from chop.base.notices import Assumption, assume, collected_assumptions
from chop.base.trust import trust_named
from chop.data.load import SPLIT_OFF
from chop.errors import ConfigError
from chop.kernels.matmul_precision import matmul_precision
from chop.report.notebook import with_display
from chop.report.page.files import add_page
from chop.report.page.page import PAGE
from chop.report.report import Report, assumptions_text, say, show, write_report
from chop.runs.interrupt import with_interruption_note
from chop.workloads.chance import check_float_model
from chop.workloads.fingerprints import fingerprint_of_rows, fingerprint_of_weights
from chop.workloads.load import merge_settings, workload_for
from chop.workloads.workload import Workload

OWN_VALIDATION = "pass validation rows, such as data={'train': (X, y), 'validation': (X2, y2)}"
"""Advice for Python programs that give rows without validation rows."""
NO_TEST_ROWS = "No test rows were given, so these numbers may be too good: "
"""Prefix of an outcome on rows that the model may have been trained on."""
C = TypeVar("C")
W = TypeVar("W")
R = TypeVar("R")
T = TypeVar("T")


def _nothing_saved_note(config: Any) -> str:
    """Returns the closing sentence of an interrupted job that writes only at its end."""
    return f"no results were saved in {config.out}/. Run the same command to start again."


def get_out_folder(config: Any) -> Path:
    """Returns the output folder of most jobs."""
    out: Path = config.out
    return out


def get_settings(config: Any, workload: Any) -> Any:
    """Returns settings for the manifest, with the name of the workload's model if there is one."""
    return merge_settings(config, workload) if isinstance(workload, Workload) else config


@dataclass(frozen=True)
class Job(Generic[C, W, R]):
    """Definition of a job.

    Attributes:
        name: name on the command line, and kind in the manifest.
        run: function from settings, workload and output to the report.
        load: function from settings and the caller's workload or None to the subject of the job.
        interruption_note: function from settings to the closing sentence of an interrupted job:
            saved files, and how to resume.
        settings: function from settings and workload to those of the manifest.
        folder: function from settings to the output folder.
        is_part: True for one of several jobs of a command. The terminal shows its tables with
            `--verbose` only, and the first of its closing sentences.
    """

    name: str
    run: Callable[[C, W, Output], Report[R]]
    load: Callable[[C, Workload | None], W]
    interruption_note: Callable[[C], str] = _nothing_saved_note
    settings: Callable[[C, W], Any] = get_settings
    folder: Callable[[C], Path] = get_out_folder
    is_part: bool = False


def check_arguments(settings: Any, workload: Any) -> None:
    """Checks that the arguments of a job are its settings and a workload, in this order.

    Raises:
        ConfigError: if they are something else.
    """
    if not is_dataclass(settings) or isinstance(settings, Workload | type):
        raise ConfigError(
            "expected the settings of the job first, such as CompressConfig(...), then the "
            f"workload; got {_describe_kind(settings)}."
        )
    if not isinstance(workload, Workload | None):
        raise ConfigError(
            f"workload: expected a Workload, see Workload.of; got {_describe_kind(workload)}."
        )


def _describe_kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def run_job(
    job: Job[C, W, R], config: C, workload: Workload | None = None, folder: Path | None = None
) -> R:
    """Runs a job: loads its workload, prints and writes its report with a manifest.

    Args:
        job: job to run.
        config: settings of the job.
        workload: a trained model and rows of the caller. Default: loaded from `config`.
        folder: temporary folder for the output, which is renamed later.
    Returns: the result of the report, printed in short; a notebook shows the report.
    Raises:
        ChopError: if settings, model and data do not fit together, something is missing, or a
            name is too long.
        WriteError: if the disk is full or read-only.
    """
    check_arguments(config, workload)
    settings: Any = config
    with (
        names_of_files(),
        trust_named(vars(config)),
        matmul_precision(getattr(config, "matmul_precision", None)),
        with_interruption_note(lambda: job.interruption_note(config)),
        collected_assumptions() as assumed,
    ):
        placed = config if folder is None else replace(settings, out=folder)
        for each in () if workload is None else workload.assumptions:
            assume(each.text, about=each.about)
        loaded = job.load(placed, workload)
        out, subject = folder or job.folder(config), "" if workload is None else _subject(workload)
        with (
            runs.start(job.name, job.settings(config, loaded), out, subject) as run,
            ExitStack() as stack,
        ):
            output = Output(run, stack)
            report = job.run(config, loaded, output)
            report = _with_assumptions(report, assumed)
            details = [replace(block, is_detail=True) for block in report.blocks]
            show(*(details if job.is_part else report.blocks))
            write_report(report, output.results)
            run.rows, run.outcome = report.rows, report.outcome
            run.written += report.written
            add_page(report, run, output.results)
    if report.assumptions:
        say(str(assumptions_text(report)).replace("\n\n", "\n"))
    for sentence in report.closing[:1] if job.is_part else report.closing:
        say(sentence)
    if not job.is_part:
        say(f"Page of these results: {job.folder(config) / PAGE}", is_whole=True)
    result: R = with_display(report, job.folder(config))
    return result


def _subject(workload: Workload) -> str:
    """Returns a fingerprint of the model and the training rows."""
    return f"{fingerprint_of_weights(workload.model)} {fingerprint_of_rows(workload.train)}"


def _with_assumptions(report: Report[R], assumed: Sequence[Assumption]) -> Report[R]:
    """Adds assumptions to a report and its result, those about split-off rows first.

    Args:
        report: report of a job.
        assumed: assumptions of the job and its loaders, in the order of their notes.
    """
    is_split_off = any(each.about == SPLIT_OFF for each in assumed)
    texts = [each.text for each in sorted(assumed, key=lambda each: each.about != SPLIT_OFF)]
    if not texts:
        return report
    verdict, closing, result = report.verdict, [*report.closing], report.result
    if is_split_off:
        verdict = verdict and NO_TEST_ROWS + verdict
        closing[:1] = [NO_TEST_ROWS + text for text in closing[:1]]
    if isinstance(result, dict):
        result["assumptions"] = texts
    return replace(report, verdict=verdict, closing=closing, assumptions=texts)


def load_checked(config: Any, workload: Workload | None) -> Workload:
    """Loads a workload, and checks that its float model beats a constant answer.

    Raises:
        ConfigError: if it does not, or settings, model and data set do not fit together.
        UnavailableError: if model or data set are missing.
    """
    workload = workload_for(config, workload)
    check_float_model(workload, config)
    return workload


def load_with_validation(config: Any, workload: Workload | None) -> Workload:
    """Loads a workload with validation rows; the job checks its float model itself.

    Raises:
        ConfigError: if settings, model and data set do not fit together.
        UnavailableError: if model or data set are missing.
    """
    loaded = workload_for(config, workload).with_validation()
    if loaded.has_seen_validation and loaded.validation is not None and loaded.judge is None:
        advice = "provide a split 'validation'" if workload is None else OWN_VALIDATION
        assume(
            f"No validation rows were given: {len(loaded.validation)} of the training rows choose "
            f"the format. If the model was trained on them, the choice is too optimistic; {advice}."
        )
    return loaded


def load_nothing(config: Any, workload: Workload | None) -> None:
    """Loads nothing, for jobs that need no workload."""


class Output:
    """Output of a running job.

    Args:
        run: its manifest.
        stack: closed after the report is written.
    """

    def __init__(self, run: runs.Run, stack: ExitStack) -> None:
        self.run, self._stack = run, stack

    @property
    def folder(self) -> Path:
        """Output folder, for files that are written at once: journals, circuits."""
        return self.run.folder

    @cached_property
    def results(self) -> Path:
        """Folder for files that are put in place together with those of the report."""
        return self._stack.enter_context(self.run.results())

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enters a context that ends after the report is written."""
        return self._stack.enter_context(context)
