"""Mixed precision as a job: which format each layer takes, within a budget of bits."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from chop.actions.search.job import SearchJob
from chop.actions.search.precision_circuit import emit_best, is_emitted
from chop.actions.search.precision_recipe import settings_of_workload
from chop.actions.search.precision_report import report
from chop.actions.search.precision_subject import PrecisionSubject
from chop.actions.search.settings import PrecisionConfig
from chop.formats import format_string
from chop.problems.mixed_precision.candidates import get_fields, varied_fields
from chop.search import Config, Result, Search
from chop.search.reading import load_search
from chop.workloads.workload import Workload


def prepare(config: PrecisionConfig, workload: Workload | None = None) -> Search:
    """The search over the formats of what `config` names; it has not run.

    Raises:
        ConfigError: settings that do not fit the model.
        UnavailableError: the model or the data set is not there.
    """
    return PrecisionSubject(config, workload).search


def export(config: PrecisionConfig, chosen: Config) -> dict[str, Any]:
    """The settings of `chop compress` that build a configuration, scales derived.

    Raises:
        ConfigError: settings that do not fit the model.
        UnavailableError: the model or the data set is not there.
    """
    rules = PrecisionSubject(config).problem.pass_args(chosen)
    if config.epochs:
        Console().print(
            "The formats are exported, the weights that trials were trained to are not: those are "
            f"in {config.folder}/best, and chop compress trains its own for {config.epochs} "
            f"epoch{'s' * (config.epochs > 1)} "
            "where the rounded model is not within its --max-drop.",
            highlight=False,
            markup=False,
        )
    return {
        **settings_of_workload(config),
        "formats": [],
        "keep_best": True,
        **({"qat_epochs": config.epochs, "qat_lr": config.lr} if config.epochs else {}),
        "layers": {
            name: {
                n: format_string(fmt) for n, fmt in rule["config"].items() if not fmt.is_identity
            }
            for name, rule in rules.items()
            if name != "by"
        },
    }


def split(config: PrecisionConfig) -> dict[str, dict[str, Any]]:
    """With `per_format`, what the search of each format alone has of the settings, by the format.

    It keeps the values of the fields that the format has.
    """
    found: dict[str, dict[str, Any]] = {}
    for given in config.formats if config.per_format else ():
        fields = get_fields(given)
        found[given] = {
            "formats": (given,),
            "per_format": False,
            "warm_start": config.begins_warm,
            "widths": config.widths if "width" in fields else None,
            "ranges": {name: values for name, values in config.ranges.items() if name in fields},
            "budgets": {} if config.budgets is None else config.budgets,
        }
    return found


def describe(config: PrecisionConfig) -> dict[str, Any]:
    """For a table that compares searches, the options of a choice and the fields that they vary."""
    options = config.candidates()
    return {"options": len(options), "varied": varied_fields(options.values())}


def finish(subject: PrecisionSubject, result: Result) -> None:
    """Emits the circuit of the best, where it is asked for."""
    if subject.config.emit and result.best is not None:
        emit_best(subject.config, subject.problem, result.best, subject.given)


def is_complete(config: PrecisionConfig) -> bool:
    """Whether the circuit of the best is there, if it is asked for: a kill may have come first."""
    if not config.emit:
        return True
    best = load_search(config.storage or str(config.out), config.study)[1].best
    return best is None or is_emitted(config, best)


JOB: SearchJob[PrecisionSubject] = SearchJob(
    PrecisionConfig.JOB_NAME,
    PrecisionConfig,
    PrecisionSubject,
    report,
    export,
    split,
    describe,
    finish,
    is_complete,
)
"""Behind `chop search precision`."""
