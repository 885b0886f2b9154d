"""Mixed-precision search job: chooses the format of each layer within budgets."""

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
    """Returns the search over formats for the model that `config` names, before its run.

    Raises:
        ConfigError: if settings do not fit the model.
        UnavailableError: if the model or the data set is missing.
    """
    return PrecisionSubject(config, workload).search


def export(config: PrecisionConfig, chosen: Config) -> dict[str, Any]:
    """Returns the settings of `chop compress` that build a configuration, with derived scales.

    Raises:
        ConfigError: if settings do not fit the model.
        UnavailableError: if the model or the data set is missing.
    """
    rules = PrecisionSubject(config).problem.pass_args(chosen)
    if config.epochs:
        Console().print(
            "The file has the formats only. The weights that trials trained are in "
            f"{config.folder}/best; chop compress trains its own for {config.epochs} "
            f"epoch{'s' * (config.epochs > 1)} "
            "if the rounded model is not within its --max-drop.",
            highlight=False,
            markup=False,
        )
    return {
        **settings_of_workload(config),
        "formats": [],
        "keep_best": True,
        **({"qat_epochs": config.epochs, "qat_lr": config.lr} if config.epochs else {}),
        **config.distill_settings(),
        "layers": {
            name: {
                n: format_string(fmt) for n, fmt in rule["config"].items() if not fmt.is_identity
            }
            for name, rule in rules.items()
            if name != "by"
        },
    }


def split(config: PrecisionConfig) -> dict[str, dict[str, Any]]:
    """Returns the settings of each format's own search by format, with `per_format`; else {}.

    Each keeps the values of the fields that its format has.
    """
    settings_by_format: dict[str, dict[str, Any]] = {}
    for given in config.formats if config.per_format else ():
        fields = get_fields(given)
        settings_by_format[given] = {
            "formats": (given,),
            "per_format": False,
            "warm_start": config.begins_warm,
            "widths": config.widths if "width" in fields else None,
            "ranges": {name: values for name, values in config.ranges.items() if name in fields},
            "budgets": {} if config.budgets is None else config.budgets,
        }
    return settings_by_format


def describe(config: PrecisionConfig) -> dict[str, Any]:
    """Returns the number of options and the varied fields, for a table of searches."""
    options = config.candidates()
    return {"options": len(options), "varied": varied_fields(options.values())}


def finish(subject: PrecisionSubject, result: Result) -> None:
    """Emits the circuit of the best configuration, if requested."""
    if subject.config.emit and result.best is not None:
        emit_best(subject.config, subject.problem, result.best, subject.given)


def is_complete(config: PrecisionConfig) -> bool:
    """Returns True unless a requested circuit of the best trial is missing, as after a kill."""
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
"""Job of `chop search precision`."""
