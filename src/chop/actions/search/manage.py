"""Management of existing searches: list, resume, join, and export of the best model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from chop.actions.interrupt import with_interruption_note
from chop.actions.search.job import Job, find_job, rebuild, run_job
from chop.actions.settings.search import SearchConfig
from chop.errors import ConfigError, did_you_mean
from chop.files import write_text
from chop.kernels.matmul_precision import matmul_precision
from chop.search import Choice, Result, SearchSpace, TrialRecord
from chop.search.importance import importances
from chop.search.ledger import Ledger, studies
from chop.search.location import FILE_NAME, MEMORY, storage_file, storage_url
from chop.search.objective import goals_from_json
from chop.search.result import OUTCOMES
from chop.search.storage import open_for_reading
from chop.tables import print_table, printable

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


def load_search(storage: str, name: str | None = None) -> tuple[dict[str, Any], Result]:
    """A search as its storage knows it, without what it was measured on.

    Returns: its `name`, `space` (options as texts), `goals`, the storage's `url` and the `job`
        (None where a program of the user's ran it); and its trials.
    Raises:
        UnavailableError: the storage is not there.
        ConfigError: it has no study of that name, or several and none is named.
    """
    noted, _ = read_ledger(storage, name)
    return noted, Result(noted["goals"], noted["trials"])


def read_ledger(storage: str, name: str | None = None) -> tuple[dict[str, Any], Ledger]:
    """The same, with all rows of the study as they are now; its storage is closed again."""
    url, name = find_storage(storage, name)
    with open_for_reading(url, begun=False) as engine:
        ledger = Ledger(engine, _find_study(studies(engine), name))
        ledger.sync()
        document = ledger.document()
        begun = document["search"]
        choices = (Choice(k, {t: t for t in texts}) for k, texts in begun["choices"].items())
        space = SearchSpace(tuple(choices))
        noted = {
            "name": ledger.study,
            "space": space,
            "goals": goals_from_json(begun["goals"]),
            "url": url,
            "job": document.get("job"),
            "trials": ledger.records,
        }
        for trial in ledger.records:
            if trial.config.keys() != space.by_name.keys():
                raise ValueError(f"trial {trial.number} has other choices than its study")
    return noted, ledger


def find_storage(storage: str, name: str | None) -> tuple[str, str | None]:
    """The URL of a storage, and the study that is meant.

    Args:
        storage: output folder, file or URL; `OUT/NAME` means the study NAME of `OUT`.
        name: of the study; None where the storage has one.
    """
    url = storage_url(storage, None)
    file = storage_file(url)
    if name is None and file and not file.exists() and Path(storage).name != FILE_NAME:
        folder = file.parent if file.name == FILE_NAME else file
        if (folder.parent / FILE_NAME).exists():
            return storage_url(str(folder.parent), None), folder.name
    return url, name


def study_names(url: str) -> list[str]:
    """The studies of a storage.

    Raises:
        UnavailableError: the storage is not there.
    """
    with open_for_reading(url, begun=False) as engine:
        return studies(engine)


def choice_rows(result: Result, space: SearchSpace) -> list[dict[str, Any]]:
    """A row per choice: what the best trial took, and how much the choice matters.

    See `chop.search.importance`.
    """
    if result.best is None:
        return []
    shares = importances(result, space)
    tried = {name: {trial.config[name] for trial in result.measured} for name in space.by_name}
    return [
        {
            "choice": name,
            "best": result.best.config[name],
            "importance": f"{shares[name]:.1%}" if name in shares else None,
            "options tried": f"{len(tried[name])} of {len(choice.options)}",
        }
        for name, choice in space.by_name.items()
    ]


def resume_search(
    storage: str, name: str | None = None, trials: int | None = None, workers: int | None = None
) -> Result:
    """Goes on with a job where it stopped, and writes its results beside its storage.

    A search that was begun with a storage of its own elsewhere writes where it did.

    Args:
        storage: output folder, file or URL of a search.
        name: of the study; None where the storage has one.
        trials: another total; None keeps the one that the job was begun with.
        workers: processes; None as many as before.
    """
    noted, _ = load_search(storage, name)
    job, config = _rebuilt(noted, {"trials": trials, "workers": workers})
    return run_job(job, config)


def work_for(url: str, name: str | None = None, out: Path | None = None) -> Result:
    """Measures for a job that runs elsewhere until its total is reached; writes no tables.

    Args:
        url: output folder, file or URL of a search.
        name: of the study; None where the storage has one.
        out: the best of the models that this worker measured are saved in OUT/NAME/best; None takes
            the search's own folder where its storage is a file, else `OWN_FOLDER`.
    """
    noted, _ = load_search(url, name)
    own = None if storage_file(noted["url"]) else OWN_FOLDER
    changes = {"workers": 1, "out": own if out is None else str(out)}
    job, config = _rebuilt(noted, changes)
    kept = "finished trials are kept; any worker goes on with the rest."
    with matmul_precision(config.matmul_precision), with_interruption_note(lambda: kept):
        return job.prepare(config).run(until=config.trials, wait=False)


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
    job, config = _rebuilt(noted, {})
    chosen = _choose(result, trial)
    with _writable(config.out) as out:
        settings = job.export(dataclasses.replace(config, out=out), chosen.config)
    values = ", ".join(f"{name} {value:.6g}" for name, value in chosen.values.items())
    comment = printable(f"# Trial {chosen.number} of study {noted['name']}: {values}")
    write_text(path, f"{comment}\n{toml(settings)}")
    Console().print(f"{path}: trial {chosen.number}, for chop compress --config", markup=False)
    return settings


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[Path]:
    """`out`, or a temporary folder with the models that were fine-tuned in it."""
    if out.is_dir() and os.access(out, os.W_OK):
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="chop-search-") as folder:
        for model in out.glob("fine-tuned-*"):
            (Path(folder) / model.name).symlink_to(model.absolute())
        yield Path(folder)


def toml(settings: Mapping[str, Any]) -> str:
    """Settings as TOML, tables last; None is left out.

    >>> print(toml({"layers": {"fc.1": {"weight": "4.mse"}}, "formats": [], "limit": 8}))
    formats = []
    limit = 8
    <BLANKLINE>
    [layers."fc.1"]
    weight = "4.mse"
    <BLANKLINE>
    """
    return "\n".join(_toml_lines(settings, ())) + "\n"


def _toml_lines(settings: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    tables = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    plain = {k: v for k, v in settings.items() if k not in tables and v is not None}
    if path and plain:
        yield f"\n[{'.'.join(map(_toml_key, path))}]"
    yield from (f"{_toml_key(k)} = {_toml_value(v)}" for k, v in plain.items())
    for key, table in tables.items():
        yield from _toml_lines(table, (*path, key))


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    """JSON's texts, numbers, truth values and lists are TOML's, but for pairs of surrogates."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


def _rebuilt(noted: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Job, SearchConfig]:
    """The job of a study and its settings, on the storage where it was found."""
    job, url = _job_of(noted), noted["url"]
    given = {key: value for key, value in changes.items() if value is not None}
    given |= {"storage": url, "name": noted["name"]}
    file, begun_in = storage_file(url), storage_file(job["settings"].get("storage", MEMORY))
    if file and (begun_in is None or begun_in.resolve() != file.resolve()):
        given.setdefault("out", str(file.parent.resolve()))
    return rebuild({**job, "settings": {**job["settings"], **given}})


def _job_of(noted: Mapping[str, Any]) -> Mapping[str, Any]:
    if noted["job"] is None:
        raise ConfigError(
            f"study '{printable(noted['name'])}' was begun by a program, not by `chop search`: run "
            "the program again; it goes on where it stopped."
        )
    find_job(noted["job"]["name"])
    job: Mapping[str, Any] = noted["job"]
    return job


def _find_study(names: list[str], name: str | None) -> str:
    if name is None and len(names) != 1:
        message = f"this storage has several studies, name one: {', '.join(sorted(names))}."
        raise ConfigError(printable(message) if names else "this storage has no study.")
    if name is not None and name not in names:
        raise ConfigError(printable(f"study '{name}': {did_you_mean(name, names)}"))
    return name or names[0]


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
