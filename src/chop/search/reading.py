"""Reading of searches from storages: trials, goals and settings."""

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
    "this storage has no study. A search creates its study with the first trial; run its command "
    "again."
)


def load_search(storage: str, name: str | None = None) -> tuple[dict[str, Any], Result]:
    """Reads a search from its storage.

    Returns: its `name`, `space` (options as texts), `goals`, the storage's `url` and the `job`
        (None if a user's program ran it), and its trials.
    Raises:
        UnavailableError: if the storage does not exist.
        ConfigError: if it has no study of that name, or several and none is named.
    """
    stored, _ = read_ledger(storage, name)
    return stored, Result(stored["goals"], stored["trials"])


def read_ledger(storage: str, name: str | None = None) -> tuple[dict[str, Any], Ledger]:
    """Reads a search with all rows of its ledger."""
    url, name = find_storage(storage, name)
    with open_for_reading(url, begun=False) as engine:
        ledger = Ledger(engine, _find_study(studies(engine), name))
        ledger.sync()
        document = ledger.document()
        begun = document["search"]
        choices = (Choice(k, {t: t for t in texts}) for k, texts in begun["choices"].items())
        space = SearchSpace(tuple(choices))
        stored = {
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
    return stored, ledger


def find_storage(storage: str, name: str | None) -> tuple[str, str | None]:
    """Returns the URL of a storage and the name of a study in it.

    Args:
        storage: output folder, file or URL. `OUT/NAME` is study NAME in folder `OUT`.
        name: name of the study. None if the storage has a single one.
    """
    url = storage_url(storage, None)
    file = storage_file(url)
    if name is None and file and not file.exists() and Path(storage).name != FILE_NAME:
        # `OUT/NAME` is the output folder of study NAME, and its storage is in `OUT`.
        folder = file.parent if file.name == FILE_NAME else file
        if (folder.parent / FILE_NAME).exists():
            return storage_url(str(folder.parent), None), folder.name
    return url, name


def study_names(url: str) -> list[str]:
    """Returns the names of the studies in a storage.

    Raises:
        UnavailableError: if the storage does not exist.
    """
    with open_for_reading(url, begun=False) as engine:
        return studies(engine)


def _find_study(names: list[str], name: str | None) -> str:
    if name is None and len(names) != 1:
        listed = ", ".join(sorted(names))
        message = f"this storage has several studies. Give one as name (--name): {listed}."
        raise ConfigError(printable(message) if names else NO_STUDY)
    if name is not None and name not in names:
        raise ConfigError(printable(f"study '{name}': {did_you_mean(name, names)}"))
    return name or names[0]


def finished_trials(url: str, study: str) -> int:
    """Returns the number of finished trials of a study, 0 if there is no such storage."""
    file = storage_file(url)
    if url == MEMORY or (file is not None and not file.exists()):
        return 0
    with open_for_reading(url) as engine:
        if study not in studies(engine):
            return 0
        return sum(row.is_finished for row in Ledger(engine, study).sync())


def choice_rows(result: Result, space: SearchSpace) -> list[dict[str, Any]]:
    """Returns a table row per choice: option of the best trial, and importance.

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
