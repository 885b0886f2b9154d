"""Shape search job: sizes of a decoder within a budget of parameters, by pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from chop.actions.evaluate.rows import JOURNAL, RowResult
from chop.actions.next_steps import quoted, steps_after_search, workload_options
from chop.actions.prune.decoder import (
    NOTE,
    calibration_texts,
    compare,
    get_shape,
    load_decoder,
    load_step,
    measure_pruned,
    write_decoder,
)
from chop.actions.prune.settings import SIZES, PruneDecoderConfig
from chop.actions.search.job import BEST_FILE, SearchJob, where_model_is
from chop.actions.search.precision_rows import SearchRows, get_rows
from chop.actions.search.settings import ShapeConfig
from chop.base.files import write_json
from chop.base.notices import assume
from chop.errors import ConfigError
from chop.problems.shape import PARAMETERS, ShapeProblem
from chop.report.measured import MeasuredTable, report_of_tables
from chop.report.report import Cell, Note, Report, Step, Table, Tile, announce
from chop.report.search_figures import search_figures
from chop.runs import Journal, Outcome
from chop.runs.progress import Stages
from chop.search import Config, Result, Search, TrialRecord
from chop.search.study import BEST_FOLDER
from chop.workloads.fingerprints import fingerprint_of_rows, fingerprint_of_weights
from chop.workloads.hf_folder import FOLDER, load_processor
from chop.workloads.workload import Workload

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BEST = "best"
"""Label of the best shape."""
OPTIONS = {field: name for name, field in SIZES.items()}
"""Field of the model's configuration -> option of `chop prune`."""


class ShapeSubject:
    """Model, rows and problem of a shape search, each created on first use.

    Args:
        config: settings of the search.
        workload: a trained model and rows of the caller. Default: loaded from `config`.
    """

    def __init__(self, config: ShapeConfig, workload: Workload | None = None) -> None:
        self.config, self._workload = config, workload

    @cached_property
    def workload(self) -> Workload:
        """The model and all its rows.

        Raises:
            ConfigError: if settings, model and data set do not fit together.
            UnavailableError: if the model or the data set is missing.
        """
        return load_decoder(self.config, self._workload, "chop search shape")

    @cached_property
    def split(self) -> SearchRows:
        """Rows that measure trials."""
        return get_rows(self.workload, self.config.search_rows, has_training=False)

    @cached_property
    def problem(self) -> ShapeProblem:
        """Shapes within the budget, with their measure."""
        config, model = self.config, cast("PreTrainedModel", self.workload.model)
        announce(self.workload.title, "ranking layers, channels and heads")
        # The rows of `chop prune`, which then makes the same model.
        texts = [*calibration_texts(self.workload, config.calibration_rows)]
        budget = config.budget(model.num_parameters())
        problem = ShapeProblem(
            model,
            texts,
            self.split.rows,
            config.sizes,
            budget=budget,
            least=int(config.least_share * budget),
            task=self.workload.task,
        )
        for field, reason in problem.omitted.items():
            assume(f"{_option(field)} is not searched: {reason}")
        return problem

    @cached_property
    def search(self) -> Search:
        """The search over the shapes, before its run."""
        config, problem = self.config, self.problem
        return config.search(
            problem.space,
            problem.measure,
            config.all_goals(problem.budget),
            save=self._save,
            start=problem.starts(),
            problem={
                "weights": fingerprint_of_weights(self.workload.model),
                "train": fingerprint_of_rows(self.workload.train),
                "rows": fingerprint_of_rows(self.split.rows),
                "calibration rows": config.calibration_rows,
            },
        )

    def _save(self, config: Config, folder: Path) -> None:
        """Saves the model just measured as a folder of transformers."""
        pruned = self.problem.prune(self.problem.space.values(config))
        write_decoder(pruned.model, load_processor(self.config), folder / FOLDER)

    def sizes(self, trial: TrialRecord) -> dict[str, int]:
        """Returns the size of each searched field in a trial."""
        return self.problem.space.values(trial.config)

    def command(self, trial: TrialRecord) -> str:
        """Returns the command line that prunes the model to the shape of a trial and distills it.

        Sizes that equal the model's are left out.
        """
        config, present = self.config, self.problem.ranked.counts
        sizes = self.sizes(trial).items()
        options = _options({field: size for field, size in sizes if size < present[field]})
        if config.calibration_rows != PruneDecoderConfig.calibration_rows:
            options.append(f"--calibration-rows {config.calibration_rows}")
        # The model is an argument of `chop prune`, and the first of these options.
        where = workload_options(config).removeprefix("--model ")
        return f"chop prune {where} {' '.join(options)} --distill"


def _options(sizes: Mapping[str, int | str]) -> list[str]:
    """Returns the options of `chop prune` for sizes by field."""
    return [f"{_option(field)} {size}" for field, size in sizes.items()]


def _option(field: str) -> str:
    return f"--{OPTIONS[field].replace('_', '-')}"


def report(subject: ShapeSubject, result: Result) -> Report[Result]:
    """Reports a search in `table.csv`, `table.md`, `best.json` and `search_figures`.

    Only the original, the best shape and the best shapes of one reduced size have test results.

    Raises:
        ConfigError: if no trial was measured.
    """
    if not result.measured:
        raise ConfigError(result.why_nothing)
    config, workload, best = subject.config, subject.workload, result.best
    metric, space = workload.task.metric, subject.search.space
    trials = MeasuredTable(
        f"{workload.title}: shapes, best first",
        [_row(subject, trial) for trial in result.ranked],
        {metric.name: metric},
        f"search: {subject.split.about}.",
    )
    title = f"{workload.title}: shapes"
    figures = search_figures(config.sampler, result, space, title, ())
    base = report_of_tables({"table": trials}, result, figures)
    if best is None:
        return replace(base, closing=[f"no shape is within the budget; {config.folder}"])
    results, shapes = _measure(subject, best)
    rows, cells = compare(workload, shapes, results)
    missing = [
        OPTIONS[x] for x in subject.problem.ranked.counts if f"{OPTIONS[x]} alone" not in shapes
    ]
    note = f"test: {workload.count_test()}, used for reporting only. {NOTE}"
    if missing:
        note = f"{note} No choice of {' or '.join(missing)} alone meets the budget."
    compared = [Table(f"{workload.title}: best shapes on test rows", cells), Note(note)]
    summary = _describe(subject, result, best, rows)
    test = results[BEST]
    assert test.reference is not None, "measured with the original"
    command = subject.command(best)
    value = metric.format_value(test.own.value)
    about = f"{metric.name} of the best shape"
    return replace(
        base,
        documents={"table.md": [*compared, *trials.blocks]},
        files={**base.files, BEST_FILE: lambda path: write_json(path, summary)},
        closing=[_closing(subject, best, test), f"To distill it: {command}"],
        tiles=[Tile(about, Cell(test.own.value, value), f"on {workload.count_test()}")],
        outcome=Outcome(
            workload.dataset,
            metric.name,
            test.own.value,
            test.reference.value,
            is_share=metric.is_share,
        ),
        steps=_steps(subject, best, command),
    )


def _measure(
    subject: ShapeSubject, best: TrialRecord
) -> tuple[dict[str, RowResult], dict[str, dict[str, Any]]]:
    """Returns test results and shapes of the best trial and of single reduced sizes, by label."""
    config, problem = subject.config, subject.problem
    chosen = {BEST: subject.sizes(best)}
    chosen |= {f"{OPTIONS[name]} alone": x for name, x in problem.single_sizes().items()}
    journal = Journal(config.folder / JOURNAL)
    results, shapes = {}, {}
    with Stages([*chosen]) as stages:
        for label, sizes in chosen.items():
            with stages.stage(label, f"{label} on test rows") as advance:
                model = problem.prune(sizes).model
                results[label] = measure_pruned(
                    model, subject.workload, config.batch_size, journal, advance
                )
                shapes[label] = get_shape(model)
    return results, shapes


def _row(subject: ShapeSubject, trial: TrialRecord) -> dict[str, Any]:
    """Returns a row of the table of trials."""
    metric, values = subject.workload.task.metric.name, trial.values
    return {
        "trial": trial.number,
        **{OPTIONS[field]: size for field, size in subject.sizes(trial).items()},
        PARAMETERS: round(values[PARAMETERS]),
        "search kl": f"{values['kl']:.4g}",
        f"search {metric}": f"{values[metric]:.4g}",
    }


def _describe(
    subject: ShapeSubject, result: Result, best: TrialRecord, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the content of `best.json`."""
    metric = subject.workload.task.metric.name
    tested = next(row for row in rows if row["model"] == BEST)
    return {
        "choices": dict(best.config),
        "key": best.key,
        "values": dict(best.values),
        "budget": subject.problem.budget,
        "search_rows": subject.split.about,
        "test_rows": len(subject.workload.test),
        f"test_{metric}": tested[metric],
        "test_kl": tested["kl"],
        "compared": rows,
        "command": subject.command(best),
        "measured": len(result.measured),
        "configurations": subject.search.space.size,
    }


def _closing(subject: ShapeSubject, best: TrialRecord, test: RowResult) -> str:
    """Returns the closing line about the best shape."""
    config, workload = subject.config, subject.workload
    metric, values = workload.task.metric, best.values
    shape = ", ".join(f"{OPTIONS[name]} {n}" for name, n in subject.sizes(best).items())
    return (
        f"best: {shape}; {values[PARAMETERS]:,.0f} parameters; kl {values['kl']:.4g} on "
        f"{len(subject.split.rows)} search rows, {metric.name} "
        f"{metric.format_value(test.own.value)} on {workload.count_test()}; "
        f"{config.folder}{where_model_is(config, best)}"
    )


def _steps(subject: ShapeSubject, best: TrialRecord, command: str) -> list[Step]:
    """Returns steps that load and distill the best model."""
    folder = subject.config.folder / BEST_FOLDER / best.key / FOLDER
    steps = [load_step(folder, subject.workload.model)] if folder.is_dir() else []
    steps.append(Step("Prune the model to this shape and distill it", command))
    return [*steps, *steps_after_search(subject.config.where, None, None)]


def export(config: ShapeConfig, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Rejects the export, because a shape is not a setting of compression.

    Raises:
        ConfigError: always; the message has the folder of the models.
    """
    sizes = " ".join(_options(chosen))
    raise ConfigError(
        f"a shape is not a setting of `chop compress`. The best models are in {config.folder}/best;"
        f" chop prune {quoted(config.model)} {sizes} makes this one."
    )


JOB = SearchJob(ShapeConfig.JOB_NAME, ShapeConfig, ShapeSubject, report, export)
"""Job of `chop search shape`."""
