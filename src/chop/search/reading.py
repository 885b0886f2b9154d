"""Searches as their storages know them: trials, goals and settings, without their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.base.tables import printable
from chop.errors import ConfigError, did_you_mean
from chop.search.importance import importances
from chop.search.ledger import Ledger, studies
from chop.search.location import FILE_NAME, MEMORY, storage_file, storage_url
from chop.search.objective import goals_from_json
from chop.search.result import Result
from chop.search.space import Choice, SearchSpace
from chop.search.storage import open_for_reading

NO_STUDY = (
    "this storage has no study: a search that was stopped before its first trial has none; run its "
    "command again."
)


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


def _find_study(names: list[str], name: str | None) -> str:
    if name is None and len(names) != 1:
        message = f"this storage has several studies, name one: {', '.join(sorted(names))}."
        raise ConfigError(printable(message) if names else NO_STUDY)
    if name is not None and name not in names:
        raise ConfigError(printable(f"study '{name}': {did_you_mean(name, names)}"))
    return name or names[0]


def finished_trials(url: str, study: str) -> int:
    """How many trials of a study have ended, none where there is no such storage."""
    file = storage_file(url)
    if url == MEMORY or (file is not None and not file.exists()):
        return 0
    with open_for_reading(url) as engine:
        if study not in studies(engine):
            return 0
        return sum(row.is_finished for row in Ledger(engine, study).sync())


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
