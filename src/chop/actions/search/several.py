"""Several searches in one command, compared: seeds, samplers, and a job's own split."""

from __future__ import annotations

import dataclasses
import re
import warnings
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
from chop.base.notices import AdjustedWarning
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
"""Format of the other values of the best trial in the table, by name."""
NOT_OF_STUDIES = re.compile(r"[^\w\-.,+=()]+")
"""Characters of format strings that names of studies cannot have."""

Config = TypeVar("Config", bound=SearchConfig)


def is_several(job: SearchJob[Any], config: SearchConfig) -> bool:
    """Returns True if settings describe more than one search."""
    return config.seeds > 1 or bool(config.samplers) or bool(job.split(config))


def list_searches(job: SearchJob[Any], config: Config) -> dict[str, list[Config]]:
    """Returns the settings of each search that `config` describes, by the label of its curve.

    Each is a study in the storage of `config`, called NAME-SAMPLER-seed-N, with a folder of that
    name. Each can be resumed by itself, and with another number of seeds. Searches that differ only
    in their seed form one curve.

    Raises:
        ConfigError: if settings do not fit one of them.
    """
    if config.url == MEMORY:
        raise ConfigError(
            f"storage: expected a file or server to compare searches; '{MEMORY}' stores nothing."
        )
    parts: Mapping[str, Mapping[str, Any]] = job.split(config) or {"": {}}
    samplers = config.samplers or (config.sampler,)
    curves: dict[str, list[Config]] = {}
    for part, settings in parts.items():
        for sampler in samplers:
            labels = [part] if part and len(samplers) == 1 else [part, sampler]
            own = {**settings, "sampler": sampler, "samplers": (), "seeds": 1}
            tags = [NOT_OF_STUDIES.sub("-", tag) for tag in (config.study, part, sampler) if tag]
            with warnings.catch_warnings():
                # Values that a format of the search cannot have are those of other formats.
                warnings.simplefilter("ignore", AdjustedWarning)
                curves[", ".join(filter(None, labels))] = [
                    dataclasses.replace(
                        config, **own, seed=seed, name="-".join([*tags, f"seed-{seed}"])
                    )
                    for seed in range(config.seed, config.seed + config.seeds)
                ]
    return curves


def run_several(job: SearchJob[Any], config: SearchConfig) -> list[dict[str, Any]]:
    """Runs every search of `list_searches` to its total, and compares them in OUT/NAME-compared.

    A second call with the same settings resumes; finished searches are not repeated.

    Returns: the rows of the table, one per curve, see `chop.actions.search.compare`, with mean test
        score and costs of the best trial over the seeds.
    Raises:
        ConfigError: if settings do not fit one of the searches.
    """
    curves = list_searches(job, config)
    every = [each for group in curves.values() for each in group]
    for number, each in enumerate(every, 1):
        if not _is_written(job, each):
            title = f"search {number} of {len(every)}: {each.study}"
            get_console().print(title, highlight=False, markup=False)
            run_search(job, each, others=len(every) - number, is_part=True)
    goal = select_objectives(_study_record(every[0])["goals"])[0].name
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
    """Returns the folder of the comparison."""
    return config.out / f"{config.study}-compared"


def _storage(config: SearchConfig) -> str:
    return config.storage or str(config.out)


def _study_record(config: SearchConfig) -> dict[str, Any]:
    """Returns the record of a search's study."""
    return load_search(_storage(config), config.study)[0]


def _is_written(job: SearchJob[Any], config: SearchConfig) -> bool:
    """Returns True if a search finished with these settings, including its `finish` and trials."""
    if not finished_trials(config.url, config.study):
        return False
    with suppress(CheckpointError):
        manifest = runs.read_manifest(config.folder)
        same = dict(manifest.settings) == runs.as_json(get_settings(config))
        is_finished = manifest.kind == f"search {job.name}" and manifest.state == "finished"
        return same and is_finished and job.is_complete(config)
    return False


def _baselines(every: Sequence[SearchConfig], goal: str) -> dict[str, float]:
    """Returns the float model's value of the goal, if the searches' tables have it."""
    rows = [row for each in every for row in runs.read_manifest(each.folder).rows]
    scores = [row.get(f"search {goal}") for row in rows if row.get("formats") == "float"]
    values = [value for value in scores if isinstance(value, float)]
    return {"float": median(values)} if values else {}


def _columns(job: SearchJob[Any], group: Sequence[SearchConfig], goal: str) -> dict[str, Any]:
    """Returns further columns of a curve for the comparison table."""
    best = [_best(each.folder) for each in group]
    tests = [each[f"test_{goal}"] for each in best if f"test_{goal}" in each]
    columns = {"choices": len(_study_record(group[0])["space"].choices), **job.describe(group[0])}
    columns[f"test {goal} (mean)"] = mean(tests) if tests else None
    for name, form in COSTS.items():
        values = [each["values"][name] for each in best if name in each.get("values", ())]
        columns[f"{name} of the best trial"] = f"{mean(values):{form}}" if values else None
    return columns


def _best(folder: Path) -> dict[str, Any]:
    """Reads the facts about a search's best; {} if none is within its budgets."""
    try:
        summary: dict[str, Any] = read_json(folder / BEST_FILE, "result")
    except FileNotFoundError:
        return {}
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"'{folder / BEST_FILE}' cannot be read: {error}.") from None
    return summary


def _without_empty(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Drops columns that are empty for all curves."""
    filled = {name for row in columns.values() for name, value in row.items() if value is not None}
    return {
        label: {name: value for name, value in row.items() if name in filled}
        for label, row in columns.items()
    }
