"""Job: settings, and `run(config, workload, output) -> Report`; `run_job` does the rest.

The rest is the same for all: precision of products, the sentence of an interruption, the workload,
the manifest, and the report, which is printed and written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from chop import runs
from chop.base.files import names_of_files
from chop.base.notices import Assumption, assume, collected_assumptions
from chop.base.trust import trust_named
from chop.data.load import SPLIT_OFF
from chop.kernels.matmul_precision import matmul_precision
from chop.report.notebook import with_display
from chop.report.page.files import add_page
from chop.report.page.page import PAGE
from chop.report.report import Report, assumptions_text, say, show, write_report
from chop.runs.interrupt import with_interruption_note
from chop.workloads.chance import check_float_model
from chop.workloads.load import merge_settings, workload_for
from chop.workloads.workload import Workload

OWN_VALIDATION = "give validation rows, as data={'train': (X, y), 'validation': (X2, y2)}"
"""Advice for a program that gives rows without validation rows."""
NO_TEST_ROWS = "No test rows were given, so these numbers may be too good: "
"""Before the outcome of a model on rows that it may have been trained on."""
C = TypeVar("C")
W = TypeVar("W")
R = TypeVar("R")
T = TypeVar("T")


def _nothing_is_kept(config: Any) -> str:
    """Of a job that writes when it ends."""
    return f"no results were written to {config.out}/; the same command starts again."


def get_out_folder(config: Any) -> Path:
    """The output folder of most jobs."""
    out: Path = config.out
    return out


def get_settings(config: Any, workload: Any) -> Any:
    """Settings for the manifest; the model is the workload's, where there is one."""
    return merge_settings(config, workload) if isinstance(workload, Workload) else config


@dataclass(frozen=True)
class Job(Generic[C, W, R]):
    """A job.

    Attributes:
        name: as on the command line; the manifest's kind.
        run: settings, workload, output -> report.
        load: settings, workload of the caller or None -> what the job works on.
        kept: settings -> what an interrupted job says: what is kept, and how to go on.
        settings: settings, workload -> those of the manifest.
        folder: settings -> the output folder.
    """

    name: str
    run: Callable[[C, W, Output], Report[R]]
    load: Callable[[C, Workload | None], W]
    kept: Callable[[C], str] = _nothing_is_kept
    settings: Callable[[C, W], Any] = get_settings
    folder: Callable[[C], Path] = get_out_folder


def run_job(
    job: Job[C, W, R], config: C, workload: Workload | None = None, folder: Path | None = None
) -> R:
    """Runs a job: loads its workload, prints and writes its report with a manifest.

    Args:
        job: what to run.
        config: the settings.
        workload: a trained model and rows of the caller; None loads what `config` names.
        folder: in the place of the output folder, whose name it gets later.
    Returns: the result of the report, printed in short; a notebook shows it as the report.
    Raises:
        ChopError: settings, model and data do not go together, something is not there, or a name
            is too long.
        WriteError: the disk is full or read-only.
    """
    settings: Any = config
    with (
        names_of_files(),
        trust_named(vars(config)),
        matmul_precision(getattr(config, "matmul_precision", None)),
        with_interruption_note(lambda: job.kept(config)),
        collected_assumptions() as assumed,
    ):
        placed = config if folder is None else replace(settings, out=folder)
        for each in () if workload is None else workload.assumptions:
            assume(each.text, about=each.about)
        loaded = job.load(placed, workload)
        with (
            runs.start(job.name, job.settings(config, loaded), folder or job.folder(config)) as run,
            ExitStack() as stack,
        ):
            output = Output(run, stack)
            report = job.run(config, loaded, output)
            report = _with_assumptions(report, assumed)
            show(*report.blocks)
            write_report(report, output.results)
            run.rows, run.outcome = report.rows, report.outcome
            run.written += report.written
            add_page(report, run, output.results)
    if report.assumptions:
        say(str(assumptions_text(report)).replace("\n\n", "\n"))
    for sentence in report.closing:
        say(sentence)
    say(f"Page of these results: {job.folder(config) / PAGE}", is_whole=True)
    result: R = with_display(report, job.folder(config))
    return result


def _with_assumptions(report: Report[R], assumed: Sequence[Assumption]) -> Report[R]:
    """Adds assumptions to a report and its result. Rows that were split off come first.

    Args:
        report: report of a job.
        assumed: by the job and what it loaded.
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
    """The workload, whose float model is better than a constant answer.

    Raises:
        ConfigError: it is not, or settings, model and data set do not go together.
        UnavailableError: model or data set are not there.
    """
    workload = workload_for(config, workload)
    check_float_model(workload, config)
    return workload


def load_with_validation(config: Any, workload: Workload | None) -> Workload:
    """The workload with rows to choose by; a job that measures the float model checks it itself.

    Raises:
        ConfigError: settings, model and data set do not go together.
        UnavailableError: model or data set are not there.
    """
    loaded = workload_for(config, workload).with_validation()
    if loaded.has_seen_validation and loaded.validation is not None and loaded.judge is None:
        advice = "give a split 'validation'" if workload is None else OWN_VALIDATION
        assume(
            f"No validation rows were given: {len(loaded.validation)} of the training rows choose "
            f"the format. If the model was trained on them, the choice is too optimistic; {advice}."
        )
    return loaded


def load_nothing(config: Any, workload: Workload | None) -> None:
    """Loads nothing, for jobs that need no workload."""


class Output:
    """Where a running job writes.

    Args:
        run: its manifest.
        stack: ends when the report is written.
    """

    def __init__(self, run: runs.Run, stack: ExitStack) -> None:
        self.run, self._stack = run, stack

    @property
    def folder(self) -> Path:
        """The output folder, for what goes there at once: journals, circuits."""
        return self.run.folder

    @cached_property
    def results(self) -> Path:
        """Folder whose files are put in place with those of the report, all or none."""
        return self._stack.enter_context(self.run.results())

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enters a context that ends after the report is written."""
        return self._stack.enter_context(context)
