"""Management of existing searches: list, resume, join, and export of the best model."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
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
from chop.base.trust import check_code, check_place, options_naming
from chop.config import parse
from chop.errors import ConfigError
from chop.kernels.matmul_precision import matmul_precision
from chop.runs.interrupt import with_interruption_note
from chop.search import Result, Search, TrialRecord
from chop.search.location import MEMORY, storage_file, without_password
from chop.search.reading import choice_rows, load_search
from chop.search.result import OUTCOMES

TOP = 10
OWN_FOLDER = f"runs/search-worker-{os.getpid()}"
"""Where a worker of a server's search saves models, unless `out` is given."""


def show_search(storage: str, name: str | None = None) -> Result:
    """Prints what a search found: outcomes, the best trials, and a table of the choices.

    Args:
        storage: output folder, file or URL of a search.
        name: of the study; None where the storage has one.
    """
    noted, result = load_search(storage, name)
    counts = [
        {"trials": count, "outcome": outcome, "meaning": OUTCOMES[outcome]}
        for outcome, count in result.counts.items()
    ]
    print_table(f"study {noted['name']}", counts)
    best = result.front if len(result.front) > 1 else result.ranked[:TOP]
    kind = "Pareto front" if len(result.front) > 1 else "the best"
    print_table(kind, [_trial_row(trial, result) for trial in best])
    failed = [{"trial": t.number, "reason": t.note, **t.config} for t in result.failed[:TOP]]
    print_table("failed", failed)
    print_table("choices of the best", choice_rows(result, noted["space"]))
    return result


def resume_search(
    storage: str,
    name: str | None = None,
    trials: int | None = None,
    workers: int | None = None,
    out: Path | None = None,
) -> Result:
    """Goes on with a job where it stopped, and writes its results beside its storage.

    A search that was begun with a storage of its own elsewhere writes where it did.

    Args:
        storage: output folder, file or URL of a search.
        name: of the study; None where the storage has one.
        trials: another total; None keeps the one that the job was begun with.
        workers: processes; None as many as before.
        out: folder of the results; None the one that the job was begun with.
    Raises:
        ConfigError: the storage names code, or a folder elsewhere, see `chop.base.trust`.
    """
    noted, _ = load_search(storage, name)
    changes = {"trials": trials, "workers": workers, "out": None if out is None else str(out)}
    command = _command("resume", [storage], {"name": name, **changes})
    job, config = _rebuilt(noted, changes, command)
    with _explaining(noted):
        return run_search(job, config)


def work_for(url: str, name: str | None = None, out: Path | None = None) -> Result:
    """Measures for a job that runs elsewhere until its total is reached; writes no tables.

    Args:
        url: output folder, file or URL of a search.
        name: of the study; None where the storage has one.
        out: the best of the models that this worker measured are saved in OUT/NAME/best; None takes
            the search's own folder where its storage is a file, else `OWN_FOLDER`.
    Raises:
        ConfigError: the storage names code, or a folder elsewhere, see `chop.base.trust`.
    """
    noted, _ = load_search(url, name)
    own = None if storage_file(noted["url"]) else OWN_FOLDER
    changes = {"workers": 1, "out": own if out is None else str(out)}
    command = _command("worker", [without_password(url)], {"name": name, "out": out})
    job, config = _rebuilt(noted, changes, command)
    kept = "finished trials are kept; any worker goes on with the rest."
    with matmul_precision(config.matmul_precision), with_interruption_note(lambda: kept):
        with _explaining(noted):
            search: Search = job.load(config).search
        return search.run(until=config.trials, wait=False)


def export_best(
    storage: str, path: Path, name: str | None = None, trial: int | None = None
) -> dict[str, Any]:
    """Writes a configuration as the TOML file that `chop compress --config` takes.

    Args:
        storage: output folder, file or URL of a search.
        path: the file.
        name: of the study; None where the storage has one.
        trial: number of a trial; None takes the best.
    Returns: what was written.
    """
    noted, result = load_search(storage, name)
    command = _command("export", [storage, str(path)], {"name": name, "trial": trial})
    job, config = _rebuilt(noted, {}, command)
    chosen = _choose(result, trial)
    with _writable(config.out) as out:
        settings = job.export(dataclasses.replace(config, out=out), chosen.config)
    settings = {**import_setting(), **settings}
    values = ", ".join(f"{name} {value:.6g}" for name, value in chosen.values.items())
    comment = printable(f"# Trial {chosen.number} of study {noted['name']}: {values}")
    needs = {x.partition(" ")[0] for x in names_in_use().get("formats", {}).values()}
    if needs:  # a file of settings has names of formats alone
        comment = f"{comment}\n# Formats of other packages: pip install {' '.join(sorted(needs))}"
    write_text(path, f"{comment}\n{dump_toml(settings)}")
    more = f"{import_options()}{options_naming(vars(config))}"
    file = shlex.quote(str(path))
    line = f"{path}: trial {chosen.number}; chop compress{more} --config {file} builds it"
    Console().print(line, markup=False, soft_wrap=True)
    return settings


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[Path]:
    """`out`, or a temporary folder with the models that were fine-tuned in it."""
    if out.is_dir() and os.access(out, os.W_OK):
        yield out
        return
    with scratch_folder("search") as folder:
        for model in out.glob("fine-tuned-*"):
            (folder / model.name).symlink_to(model.absolute())
        yield folder


def _rebuilt(
    noted: Mapping[str, Any], changes: Mapping[str, Any], command: str
) -> tuple[SearchJob[Any], SearchConfig]:
    """The job of a study and its settings, on the storage where it was found.

    Args:
        noted: the study.
        changes: settings that are not as it was begun with.
        command: command line, for messages.
    """
    job, url = _get_job(noted), noted["url"]
    given = {key: value for key, value in changes.items() if value is not None}
    given |= {"storage": url, "name": noted["name"]}
    file, begun_in = storage_file(url), storage_file(job["settings"].get("storage", MEMORY))
    if file and (begun_in is None or begun_in.resolve() != file.resolve()):
        given.setdefault("out", str(file.parent.resolve()))
    where = without_password(url)
    _extensions(noted).load(where, command)
    check_code(job["settings"], where)
    named = job["settings"].get("out")
    if "out" not in given and isinstance(named, str):
        check_place(named, where, "--out", *([file.parent] if file else ()))
    with _explaining(noted):
        return rebuild({**job, "settings": {**job["settings"], **given}})


def _extensions(noted: Mapping[str, Any]) -> Extensions:
    """The record of extensions of a study; empty in those of earlier versions."""
    found: Extensions = parse(Extensions, noted["job"].get("extensions", {}), noted["name"])
    return found


def _explaining(noted: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Context whose errors on unknown names say which package has them."""
    return naming_packages(_extensions(noted).names, f"study '{printable(noted['name'])}'")


def _command(verb: str, arguments: Sequence[str], options: Mapping[str, Any]) -> str:
    """A command line of `chop search`, with the options that are not None."""
    given = [(f"--{name}", str(value)) for name, value in options.items() if value is not None]
    return shlex.join(["chop", "search", verb, *arguments, *itertools.chain(*given)])


def _get_job(noted: Mapping[str, Any]) -> Mapping[str, Any]:
    if noted["job"] is None:
        raise ConfigError(
            f"study '{printable(noted['name'])}' was begun by a program, not by `chop search`: run "
            "the program again; it goes on where it stopped."
        )
    find_job(noted["job"]["name"])
    job: Mapping[str, Any] = noted["job"]
    return job


def _choose(result: Result, number: int | None) -> TrialRecord:
    if number is None:
        if result.best is None:
            raise ConfigError("no trial keeps within the budgets: name one with --trial.")
        return result.best
    found = next((t for t in result.trials if t.number == number and t.values), None)
    if found is None:
        raise ConfigError(f"trial {number}: there is none with that number that was measured.")
    return found


def _trial_row(trial: TrialRecord, result: Result) -> dict[str, Any]:
    return {
        "trial": trial.number,
        **{goal.name: f"{trial.values[goal.name]:.6g}" for goal in result.goals},
        "within budgets": "yes" if result.excess(trial) == 0 else "no",
        "seconds": f"{trial.seconds or 0:.1f}",
    }
