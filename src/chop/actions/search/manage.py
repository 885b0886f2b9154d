"""Management of existing searches: show, resume, join, and export of the best configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from chop.actions.search.job import SearchJob, find_job, rebuild, run_search
from chop.actions.search.settings import SearchConfig
from chop.base.files import write_text
from chop.base.files.documents import dump_toml
from chop.base.files.temporary import scratch_folder
from chop.base.plugins import (
    Extensions,
    import_options,
    import_setting,
    names_in_use,
    naming_packages,
)
from chop.base.tables import print_table, printable
from chop.base.trust import check_code, check_place, is_allowed_place, options_naming
from chop.config import parse
from chop.errors import ConfigError, enumerate_names
from chop.formats import get_format
from chop.kernels.matmul_precision import matmul_precision
from chop.runs.interrupt import with_interruption_note
from chop.search import Result, Search, TrialRecord
from chop.search.location import MEMORY, storage_file, without_password
from chop.search.reading import choice_rows, load_search
from chop.search.result import OUTCOMES

TOP = 10
OWN_FOLDER = f"runs/search-worker-{os.getpid()}"
"""Default folder for models of a worker on a server's search."""


def show_search(storage: str, name: str | None = None) -> Result:
    """Prints a search: outcomes, the best trials, and a table of the choices.

    Args:
        storage: output folder, file or URL of a search.
        name: name of the study. Default: the storage's only study.
    """
    study, result = load_search(storage, name)
    counts = [
        {"trials": count, "outcome": outcome, "meaning": OUTCOMES[outcome]}
        for outcome, count in result.counts.items()
    ]
    print_table(f"study {study['name']}", counts)
    best = result.front if len(result.front) > 1 else result.ranked[:TOP]
    kind = "Pareto front" if len(result.front) > 1 else "trials, best first"
    print_table(kind, [_trial_row(trial, result) for trial in best])
    failed = [{"trial": t.number, "reason": t.note, **t.config} for t in result.failed[:TOP]]
    print_table("failed", failed)
    print_table("choices of the best trial", choice_rows(result, study["space"]))
    return result


def resume_search(
    storage: str,
    name: str | None = None,
    trials: int | None = None,
    workers: int | None = None,
    out: Path | None = None,
) -> Result:
    """Resumes a search, and writes its results next to its storage.

    A search that was started with a storage elsewhere writes to its first output folder.

    Args:
        storage: output folder, file or URL of a search.
        name: name of the study. Default: the storage's only study.
        trials: total number of trials. Default: as started.
        workers: number of processes. Default: as started.
        out: folder for the results. Default: as started.
    Raises:
        ConfigError: if the storage names code, or a folder elsewhere, see `chop.base.trust`, or
            more than `trials` are measured already.
    """
    study, result = load_search(storage, name)
    if trials is not None and trials < (held := len(result.measured)):
        raise ConfigError(
            f"trials: got {trials}, and {held} are measured already. It is the total number: for "
            f"{trials} more, pass {held + trials}."
        )
    changes = {"trials": trials, "workers": workers, "out": None if out is None else str(out)}
    command = _command("resume", [storage], {"name": name, **changes})
    job, config = _rebuilt(study, changes, command)
    with _naming_packages(study):
        return run_search(job, config)


def work_for(url: str, name: str | None = None, out: Path | None = None) -> Result:
    """Measures trials of a search that runs elsewhere until its total is reached; writes no tables.

    Args:
        url: output folder, file or URL of a search.
        name: name of the study. Default: the storage's only study.
        out: the best models of this worker are saved in OUT/NAME/best. Default: the search's own
            folder if its storage is a file, else `OWN_FOLDER`.
    Raises:
        ConfigError: if the storage names code, or a folder elsewhere, see `chop.base.trust`.
    """
    study, _ = load_search(url, name)
    own = None if storage_file(study["url"]) else OWN_FOLDER
    changes = {"workers": 1, "out": own if out is None else str(out)}
    command = _command("worker", [without_password(url)], {"name": name, "out": out})
    job, config = _rebuilt(study, changes, command)
    note = "finished trials are saved; any worker can continue with the rest."
    with matmul_precision(config.matmul_precision), with_interruption_note(lambda: note):
        with _naming_packages(study):
            search: Search = job.load(config).search
        return search.run(until=config.trials, wait=False)


def export_best(
    storage: str, path: Path, name: str | None = None, trial: int | None = None
) -> dict[str, Any]:
    """Writes a configuration as a TOML file for `chop compress --config`.

    Args:
        storage: output folder, file or URL of a search.
        path: file to write.
        name: name of the study. Default: the storage's only study.
        trial: number of a trial. Default: the best trial.
    Returns: the written settings.
    """
    study, result = load_search(storage, name)
    command = _command("export", [storage, str(path)], {"name": name, "trial": trial})
    chosen = _choose(result, trial)
    job, config = _rebuilt(study, {}, command, writes=False)
    with _writable(config) as out:
        settings = job.export(dataclasses.replace(config, out=out), chosen.config)
    sources = _format_sources(dump_toml(settings))
    settings = {**import_setting(), **settings}
    values = ", ".join(f"{name} {value:.6g}" for name, value in chosen.values.items())
    comment = printable(f"# Trial {chosen.number} of study {study['name']}: {values}")
    write_text(path, f"{comment}\n{sources}{dump_toml(settings)}")
    more = f"{import_options()}{options_naming(vars(config))}"
    file = shlex.quote(str(path))
    line = (
        f"Wrote trial {chosen.number} to {path}. To build it: chop compress{more} --config {file}"
    )
    Console().print(line, markup=False, soft_wrap=True)
    return settings


def _format_sources(text: str) -> str:
    """Returns TOML comments on how to get the formats of packages and modules that a text names.

    Formats are the only names from packages in such a file.
    """
    sources = {
        source
        for name, source in names_in_use().get("formats", {}).items()
        if any(re.search(rf"\b{re.escape(x)}\b", text) for x in (name, *get_format(name).aliases))
    }
    packages = sorted(source.partition(" ")[0] for source in sources if " " in source)
    modules = sorted(source for source in sources if " " not in source)
    install = f"# Formats of other packages: pip install {' '.join(packages)}\n"
    add = f"# Formats of modules: import them, --import {' --import '.join(modules)}\n"
    return install * bool(packages) + add * bool(modules)


@contextlib.contextmanager
def _writable(config: SearchConfig) -> Iterator[Path]:
    """Yields the output folder, or a temporary one with its fine-tuned models.

    The temporary one replaces a folder that is missing, read-only, or not allowed by `check_place`.
    """
    out, file = config.out, storage_file(config.url)
    is_allowed = is_allowed_place(out, *([file.parent] if file else ()))
    if is_allowed and out.is_dir() and os.access(out, os.W_OK):
        yield out
        return
    with scratch_folder("search") as folder:
        for model in out.glob("fine-tuned-*"):
            (folder / model.name).symlink_to(model.absolute())
        yield folder


def _rebuilt(
    study: Mapping[str, Any], changes: Mapping[str, Any], command: str, writes: bool = True
) -> tuple[SearchJob[Any], SearchConfig]:
    """Returns the job of a study and its settings, with the storage that it was read from.

    Args:
        study: record of the study.
        changes: settings that replace those it was started with.
        command: command line, for messages.
        writes: True if the command writes to the output folder of the search.
    """
    job, url = _get_job(study), study["url"]
    given = {key: value for key, value in changes.items() if value is not None}
    given |= {"storage": url, "name": study["name"]}
    file, begun_in = storage_file(url), storage_file(job["settings"].get("storage", MEMORY))
    if file and (begun_in is None or begun_in.resolve() != file.resolve()):
        given.setdefault("out", str(file.parent.resolve()))
    where = without_password(url)
    _extensions(study).load(where, command)
    check_code(job["settings"], where)
    named = job["settings"].get("out")
    if writes and "out" not in given and isinstance(named, str):
        check_place(named, where, "--out", *([file.parent] if file else ()))
    with _naming_packages(study):
        return rebuild({**job, "settings": {**job["settings"], **given}})


def _extensions(study: Mapping[str, Any]) -> Extensions:
    """Returns the extensions that a study needs; empty for earlier versions."""
    extensions: Extensions = parse(Extensions, study["job"].get("extensions", {}), study["name"])
    return extensions


def _naming_packages(study: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Adds the package of an unknown name to errors."""
    return naming_packages(_extensions(study).names, f"study '{printable(study['name'])}'")


def _command(verb: str, arguments: Sequence[str], options: Mapping[str, Any]) -> str:
    """Returns a command line of `chop search`, with the options that are not None."""
    given = [(f"--{name}", str(value)) for name, value in options.items() if value is not None]
    return shlex.join(["chop", "search", verb, *arguments, *itertools.chain(*given)])


def _get_job(study: Mapping[str, Any]) -> Mapping[str, Any]:
    if study["job"] is None:
        raise ConfigError(
            f"study '{printable(study['name'])}' was started by a Python program: run the program "
            "again to resume it."
        )
    find_job(study["job"]["name"])
    job: Mapping[str, Any] = study["job"]
    return job


def _choose(result: Result, number: int | None) -> TrialRecord:
    if number is None:
        if result.best is None:
            raise ConfigError("no trial is within the budgets: choose one with --trial.")
        return result.best
    trial = next((t for t in result.trials if t.number == number and t.values), None)
    if trial is None:
        numbers = enumerate_names([str(t.number) for t in result.ranked], TOP)
        raise ConfigError(
            f"trial {number}: no measured trial has that number; best first: {numbers}."
        )
    return trial


def _trial_row(trial: TrialRecord, result: Result) -> dict[str, Any]:
    return {
        "trial": trial.number,
        **{goal.name: f"{trial.values[goal.name]:.6g}" for goal in result.goals},
        "within budgets": "yes" if result.excess(trial) == 0 else "no",
        "seconds": f"{trial.seconds or 0:.1f}",
    }
