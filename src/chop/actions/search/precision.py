"""Mixed precision as a job: which format each layer takes, within a budget of bits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import Console

from chop.actions.search.figures import draw_search
from chop.actions.search.format_settings import FORMAT_RANGES, FormatSettings, spread_evenly
from chop.actions.search.job import Job, SearchConfig, check_budgets
from chop.actions.subject import (
    Subject,
    SubjectConfig,
    fingerprint_of_rows,
    fingerprint_of_weights,
    subject_for,
)
from chop.actions.sweep.record import write_figure, write_table
from chop.errors import ConfigError, did_you_mean
from chop.files import write_text
from chop.formats import spelling
from chop.report.layer_maps import plot_layer_map
from chop.report.plots import Curve, plot_accuracy
from chop.search import Config, Goal, Result, Search, Tried
from chop.search.costs import COSTS
from chop.search.evaluation import Evaluator
from chop.search.layers import Formats
from chop.search.measure import objectives_of
from chop.search.precision import SCORES, PrecisionProblem
from chop.train import TASKS

METRICS = {name: metric for task in TASKS.values() for name, metric in task.metrics.items()}
DIRECTIONS = {
    **{name: "maximize" if m.higher_is_better else "minimize" for name, m in METRICS.items()},
    "loss": "minimize",
    "kl": "minimize",
    "bits": "minimize",
    "activation_bits": "minimize",
    "bytes": "minimize",
    "bit_operations": "minimize",
}
"""What a trial measures, and which way is better."""
PERCENT = tuple(name for name, metric in METRICS.items() if metric.is_share)


@dataclass(frozen=True)
class PrecisionConfig(FormatSettings, SearchConfig):
    """Settings of `chop search precision`; a TOML file has the same keys.

    Attributes:
        goals: what is searched for: accuracy (or the metric of another task), loss, kl, bits,
            activation_bits, bytes, bit_operations. Several give a Pareto front. Most models answer
            all their training rows right in 4 bits, so accuracy tells little there; kl, the
            divergence from the float model's answers, still tells which formats disturb it least.
            Answers that are no classes have no kl: take loss.
        per: "operand", since inputs and weights need different widths and cost differently; or
            "layer", for the same format for both.
        budgets: the most that each of them may be, the least accuracy. None: 4 bits per weight
            on average, where there is one goal and it is no cost.
        search_rows: training rows that trials are measured on. The test rows are for what is
            found alone.

    The other settings are those of `FormatSettings` and `SearchConfig`.
    """

    JOB_NAME: ClassVar[str] = "precision"
    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {
        **SearchConfig.RANGES,
        **FORMAT_RANGES,
        "search_rows": (1, 10**9),
    }

    USUAL_WIDTHS: ClassVar[str | None] = "2:8:1"

    out: Path = Path("runs/search")
    goals: tuple[str, ...] = ("kl",)
    per: Literal["layer", "operand"] = "operand"
    budgets: Mapping[str, float] | None = None
    search_rows: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_formats()
        for where, names in (("goals", self.goals), ("budgets", self.budgets or {})):
            for name in names:
                if name not in DIRECTIONS:
                    nearest = did_you_mean(name, DIRECTIONS)
                    raise ConfigError(f"{where}: unknown '{name}': {nearest}")
        check_budgets(self.budgets or {})
        objectives_of(self.all_goals())

    def all_goals(self) -> tuple[Goal, ...]:
        """Objectives, then budgets."""
        is_one_score = len(self.goals) == 1 and self.goals[0] not in COSTS
        usual = {"bits": 4.0} if is_one_score else {}
        budgets = usual if self.budgets is None else self.budgets
        objectives = [Goal(name, DIRECTIONS[name]) for name in self.goals]  # type: ignore[arg-type]
        limits = [Goal(name, DIRECTIONS[name], most) for name, most in budgets.items()]  # type: ignore[arg-type]
        return (*objectives, *limits)


def prepare(config: PrecisionConfig, subject: Subject | None = None) -> Search:
    """The search over the formats of what `config` names; it has not run.

    Raises:
        ConfigError: settings that do not fit the model.
        UnavailableError: the model or the data set is not there.
    """
    subject = subject_for(config, subject)
    found, goals = problem_of(config, subject), config.all_goals()
    found.check_goals(goals)
    found.check_budgets(goals)
    plain = found.plain(goals)
    return Search(
        found.space,
        found.measure,
        goals,
        start=() if plain is None else (plain,),
        sampler=config.sampler,
        pruner=config.pruner,
        storage=config.storage,
        out=config.out,
        name=config.study,
        seed=config.seed,
        save=lambda chosen, folder: found.graph(chosen).export(folder / "model"),
        keep=config.keep,
        problem={
            "weights": fingerprint_of_weights(subject.model),
            "train": fingerprint_of_rows(subject.train),
            "settings": {**config.told(), "rows": config.search_rows},
        },
    )


def problem_of(config: PrecisionConfig, subject: Subject) -> PrecisionProblem:
    """What is searched over, measured on training rows."""
    rows = spread_evenly(subject.train, config.search_rows)
    # A pruner compares what is reported with the objective's own direction.
    scores = (subject.task.metric.name, *SCORES)
    goal = next((score for score in scores if config.goals[0] == score), None)
    return config.problem(subject, rows, goal)


def write(
    config: PrecisionConfig, search: Search, result: Result, subject: Subject | None = None
) -> None:
    """Writes `table.csv`, `table.md`, `best.json` and the figures.

    `accuracy` (named by the metric): that on the test rows against average bits, of what was
    found, beside the same format everywhere; `formats`: the bits of each layer; and those of
    `draw_search`.

    Raises:
        ConfigError: nothing was measured.
    """
    if not result.measured:
        raise ConfigError("no configuration was measured.")
    subject = subject_for(config, subject)
    found, metric = problem_of(config, subject), subject.task.metric
    settings = {"batch_size": config.eval_batch_size, "task": subject.task}
    unseen = Evaluator(found.layers.mg.model, subject.test, **settings)
    told = {text: found.uniform(text) for text in found.options}
    told |= {f"trial {trial.number}": trial.config for trial in _told(result)}
    rows = [_row(found, unseen, "float", {})]
    rows += [_row(found, unseen, name, found.formats(chosen)) for name, chosen in told.items()]
    title = f"{subject.name} on {subject.dataset}"
    columns = dict.fromkeys((metric.name, f"test {metric.name}"), metric)
    write_table(config.folder, f"{title}: mixed precision beside uniform", rows, columns)
    _draw(config, found, result, rows, title)
    best = result.best
    if best is None:
        Console().print(f"{_nearest(result)}; {config.folder}", highlight=False)
        return
    noted = {
        "choices": dict(best.config),
        "values": dict(best.values),
        f"test_{metric.name}": next(r for r in rows if r["formats"] == f"trial {best.number}")[
            f"test {metric.name}"
        ],
        "measured": len(result.measured),
        "configurations": search.space.size,
    }
    write_text(config.folder / "best.json", json.dumps(noted, indent=2) + "\n")
    Console().print(
        f"best: {best.values['bits']:.2f} bits per weight, {metric.name} "
        f"{metric.spell(best.values[metric.name])} on the rows of the search and "
        f"{metric.spell(noted[f'test_{metric.name}'])} on test rows; {config.folder}",
        highlight=False,
    )


def _nearest(result: Result) -> str:
    """What is said where nothing keeps within the budgets."""
    nearest = result.ranked[0]
    told = ", ".join(f"{goal.name} {nearest.values[goal.name]:.4g}" for goal in result.goals)
    beyond = f"the nearest, trial {nearest.number}, has {told}"
    return f"no configuration keeps within the budgets; {beyond}"


def _told(result: Result) -> list[Tried]:
    """The front, or the nearest where nothing keeps within the budgets."""
    return result.front or result.ranked[:1]


def _row(
    found: PrecisionProblem, unseen: Evaluator, label: str, formats: Mapping[str, Formats]
) -> dict[str, Any]:
    numbers = found.score(formats) | found.costs(formats)
    found.layers.switch(formats)
    metric = found.evaluator.task.metric.name
    return {
        "formats": label,
        "bits": numbers["bits"],
        "activation_bits": f"{numbers['activation_bits']:.2f}",
        "kilobytes": f"{numbers['bytes'] / 1000:.1f}",
        metric: numbers[metric],
        "loss": f"{numbers['loss']:.4f}",
        f"test {metric}": unseen().value,
    }


def _draw(
    config: PrecisionConfig,
    found: PrecisionProblem,
    result: Result,
    rows: list[dict[str, Any]],
    title: str,
) -> None:
    metric = found.evaluator.task.metric
    test = f"test {metric.name}"
    uniform, mixed = rows[1 : 1 + len(found.options)], rows[1 + len(found.options) :]
    curves = [
        Curve(label, [(row["bits"], row[test]) for row in part])
        for label, part in (("the same everywhere", uniform), ("mixed", mixed))
    ]
    write_figure(
        config.folder / metric.name,
        plot_accuracy,
        curves,
        {"float": rows[0][test]},
        xlabel="bits per weight",
        title=f"{title}: {metric.name} on test rows",
        metric=metric,
    )
    told = _told(result)
    cells = {
        (name, f"trial {trial.number}"): found.bits(name, trial.config[name])
        for name in found.space.by_name
        for trial in told
    }
    write_figure(
        config.folder / "formats",
        plot_layer_map,
        cells,
        xlabel="",
        measure="bits",
        title=f"{title}: bits of each layer",
    )
    if result.best is not None:
        draw_search(config, result, found.space, title, PERCENT)


def export(config: PrecisionConfig, chosen: Config) -> dict[str, Any]:
    """The settings of `chop compress` that build a configuration, scales derived.

    Raises:
        ConfigError: settings that do not fit the model.
        UnavailableError: the model or the data set is not there.
    """
    rules = problem_of(config, subject_for(config, None)).pass_args(chosen)
    own = {"out", "batch_size", "device"}
    same = [field.name for field in dataclasses.fields(SubjectConfig) if field.name not in own]
    return {
        **{name: getattr(config, name) for name in same},
        "formats": [],
        "keep_best": True,
        "layers": {
            name: {n: spelling(fmt) for n, fmt in rule["config"].items() if not fmt.is_identity}
            for name, rule in rules.items()
            if name != "by"
        },
    }


JOB = Job(PrecisionConfig.JOB_NAME, PrecisionConfig, prepare, write, export)
"""Behind `chop search precision`."""
