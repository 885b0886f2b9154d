"""Several searches by one command, compared: seeds, samplers, and what a job splits itself by."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar

from rich import get_console

from chop import runs
from chop.actions.search.compare import compare_searches
from chop.actions.search.job import BEST_FILE, SearchJob, get_settings, run_search
from chop.actions.search.settings import SearchConfig
from chop.base.files.documents import read_json
from chop.errors import CheckpointError, ConfigError
from chop.search.location import MEMORY
from chop.search.objective import select_objectives
from chop.search.reading import finished_trials, load_search

COSTS = {
    "bits": ".2f",
    "parameters": ".0f",
    "lut": ",.0f",
    "dsp": ",.0f",
    "interval": ",.0f",
    "latency_us": ".2f",
}
"""Numbers of the best that the table tells beside what is compared, and how."""
NOT_OF_STUDIES = re.compile(r"[^\w\-.,+=()]+")
"""What a format string may have, and the name of a study may not."""

Config = TypeVar("Config", bound=SearchConfig)


def is_several(job: SearchJob[Any], config: SearchConfig) -> bool:
    """Returns true if settings stand for more than one search."""
    return config.seeds > 1 or bool(config.samplers) or bool(job.split(config))


def list_searches(job: SearchJob[Any], config: Config) -> dict[str, list[Config]]:
    """The settings of each search that `config` stands for, by the label of its curve.

    Each is a study of its own in the storage of `config`, NAME-SAMPLER-seed-N, and writes into a
    folder of that name: each goes on alone, and with another number of seeds. Searches that differ
    in their seed alone are one curve.

    Raises:
        ConfigError: settings that do not fit one of them.
    """
    if config.url == MEMORY:
        raise ConfigError(f"storage: searches are compared from it, and '{MEMORY}' keeps nothing.")
    parts: Mapping[str, Mapping[str, Any]] = job.split(config) or {"": {}}
    samplers = config.samplers or (config.sampler,)
    found: dict[str, list[Config]] = {}
    for part, settings in parts.items():
        for sampler in samplers:
            labels = [part] if part and len(samplers) == 1 else [part, sampler]
            own = {**settings, "sampler": sampler, "samplers": (), "seeds": 1}
            tags = [NOT_OF_STUDIES.sub("-", tag) for tag in (config.study, part, sampler) if tag]
            found[", ".join(filter(None, labels))] = [
                dataclasses.replace(
                    config, **own, seed=seed, name="-".join([*tags, f"seed-{seed}"])
                )
                for seed in range(config.seed, config.seed + config.seeds)
            ]
    return found


def run_several(job: SearchJob[Any], config: SearchConfig) -> list[dict[str, Any]]:
    """Runs every search of `list_searches` to its total, and compares them in OUT/NAME-compared.

    Called again with the same settings it goes on where it stopped: what is finished is kept as it
    is.

    Returns: the rows of the table, a curve each: see `chop.actions.search.compare`; and of the best
        of the searches of a curve, its score on test rows and its costs, means over the seeds.
    Raises:
        ConfigError: settings that do not fit one of the searches.
    """
    curves = list_searches(job, config)
    every = [each for group in curves.values() for each in group]
    for number, each in enumerate(every, 1):
        if not _is_written(job, each):
            title = f"search {number} of {len(every)}: {each.study}"
            get_console().print(title, highlight=False, markup=False)
            run_search(job, each, others=len(every) - number)
    goal = select_objectives(_noted(every[0])["goals"])[0].name
    return compare_searches(
        [(_storage(each), each.study) for each in every],
        labels=[label for label, group in curves.items() for _ in group],
        out=get_folder(config),
        baselines=_baselines(every, goal),
        columns=_without_empty(
            {label: _columns(job, group, goal) for label, group in curves.items()}
        ),
    )


def get_folder(config: SearchConfig) -> Path:
    """Where the comparison is written."""
    return config.out / f"{config.study}-compared"


def _storage(config: SearchConfig) -> str:
    return config.storage or str(config.out)


def _noted(config: SearchConfig) -> dict[str, Any]:
    """What the storage knows of a search beside its trials."""
    return load_search(_storage(config), config.study)[0]


def _is_written(job: SearchJob[Any], config: SearchConfig) -> bool:
    """Whether the last run of a search finished, with these settings, and what follows it too, and
    its trials are there."""
    if not finished_trials(config.url, config.study):
        return False
    with suppress(CheckpointError):
        found = runs.read_manifest(config.folder)
        same = dict(found.settings) == runs.as_json(get_settings(config))
        is_finished = found.kind == f"search {job.name}" and found.state == "finished"
        return same and is_finished and job.is_complete(config)
    return False


def _baselines(every: Sequence[SearchConfig], goal: str) -> dict[str, float]:
    """The goal's value of the float model, where the searches' tables have it."""
    rows = [row for each in every for row in runs.read_manifest(each.folder).rows]
    found = [row.get(f"search {goal}") for row in rows if row.get("formats") == "float"]
    values = [value for value in found if isinstance(value, float)]
    return {"float": median(values)} if values else {}


def _columns(job: SearchJob[Any], group: Sequence[SearchConfig], goal: str) -> dict[str, Any]:
    """What the table of the comparison says of a curve beside its values."""
    best = [_best(each.folder) for each in group]
    tests = [noted[f"test_{goal}"] for noted in best if f"test_{goal}" in noted]
    columns = {"choices": len(_noted(group[0])["space"].choices), **job.describe(group[0])}
    columns[f"test {goal} (mean)"] = mean(tests) if tests else None
    for name, form in COSTS.items():
        values = [noted["values"][name] for noted in best if name in noted.get("values", ())]
        columns[f"{name} of the best"] = f"{mean(values):{form}}" if values else None
    return columns


def _best(folder: Path) -> dict[str, Any]:
    """What a search notes of its best; nothing where none is within its budgets."""
    try:
        summary: dict[str, Any] = read_json(folder / BEST_FILE, "result")
    except FileNotFoundError:
        return {}
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"'{folder / BEST_FILE}' cannot be read: {error}.") from None
    return summary


def _without_empty(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The columns in which some curve has a value."""
    kept = {name for row in columns.values() for name, value in row.items() if value is not None}
    return {
        label: {name: value for name, value in row.items() if name in kept}
        for label, row in columns.items()
    }
