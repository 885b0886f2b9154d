"""Search jobs: common settings, start, workers and resumption.

A job is a module with a `JOB`. The study stores its settings, so that every process with access
to the storage can rebuild the same search: a worker on another machine, or a resumed search.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from chop.actions.job import Job, Output, run_job
from chop.actions.search.settings import SearchConfig
from chop.base.plugins import Extensions, import_options
from chop.base.tables import printable
from chop.base.trust import confirmation
from chop.config import parse
from chop.errors import ChopError, check_known
from chop.report.report import Report
from chop.report.search_figures import search_tiles
from chop.search.ledger import Ledger
from chop.search.location import MEMORY, storage_file
from chop.search.reading import finished_trials
from chop.search.storage import open_for_reading
from chop.search.study import BEST_FOLDER
from chop.train.tasks import share_metrics

if TYPE_CHECKING:
    from chop.search.result import Result, TrialRecord
    from chop.search.study import Search

BEST_FILE = "best.json"
"""File with facts about the best configuration."""
SPLITTING = ("seeds", "samplers", "per_format")
"""Settings that split a command into several searches; single searches lack them."""
JOB_MODULES = {
    "nas": "chop.actions.search.nas",
    "precision": "chop.actions.search.precision",
    "shape": "chop.actions.search.shape",
}


class Subject(Protocol):
    """Subject of a search: its model and rows, loaded once for search, report and circuit."""

    @property
    def search(self) -> Search:
        """The search before its run; equal settings give the same search in another process."""


S = TypeVar("S", bound=Subject)


@dataclass(frozen=True)
class SearchJob(Generic[S]):
    """Kind of search.

    Attributes:
        name: name of the command.
        config: class of its settings.
        load: loads the subject of the search.
        report: builds the report of a result.
        export: returns the settings of `chop compress` that build a configuration.
        split: returns the changed settings of each search by its label, if settings describe
            several searches (apart from seeds and samplers); else {}.
        describe: returns columns about a search for the table that compares several.
        finish: runs after the result is written, for example to emit a circuit.
        is_complete: returns True if `finish` was done for the written result.
    """

    name: str
    config: type[SearchConfig]
    load: Callable[[Any], S]
    report: Callable[[S, Result], Report[Result]]
    export: Callable[[Any, Mapping[str, str]], dict[str, Any]]
    split: Callable[[Any], Mapping[str, Mapping[str, Any]]] = lambda config: {}
    describe: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    finish: Callable[[S, Result], None] = lambda subject, result: None
    is_complete: Callable[[Any], bool] = lambda config: True


def find_job(name: str) -> SearchJob[Any]:
    """Returns the search job of that name.

    Raises:
        ConfigError: if there is none.
    """
    check_known(name, JOB_MODULES, "search job")
    job: SearchJob[Any] = importlib.import_module(JOB_MODULES[name]).JOB
    return job


def run_search(
    job: SearchJob[S], config: SearchConfig, others: int = 0, is_part: bool = False
) -> Result:
    """Searches until `config.trials` configurations are measured, and writes the result.

    A second call with the same settings resumes the search.

    Args:
        job: kind of search.
        config: settings of the search.
        others: number of later searches of the same command.
        is_part: True for one of several searches of a command, which print less.
    """
    subject = functools.cache(lambda: job.load(config))

    def searched(config: SearchConfig, search: Search, output: Output) -> Report[Result]:
        extensions = dataclasses.asdict(Extensions.from_this_process())
        search.store_job(job.name, get_settings(config), extensions)
        result = search.run(until=config.trials, workers=config.workers)
        best, report = result.best, job.report(subject(), result)
        saved = [] if best is None else (config.folder / BEST_FOLDER / best.key).rglob("*")
        tiles = [*report.tiles, *search_tiles(result, search.space, share_metrics())]
        return replace(report, tiles=tiles, written=[*report.written, *saved])

    whole: Job[SearchConfig, Search, Result] = Job(
        f"search {job.name}",
        searched,
        load=lambda *_: subject().search,
        interruption_note=lambda config: _resume_note(config, others),
        settings=lambda config, _: get_settings(config),
        folder=lambda config: config.folder,
        is_part=is_part,
    )
    result = run_job(whole, config)
    job.finish(subject(), result)
    return result


def _resume_note(config: SearchConfig, others: int) -> str:
    if others:
        return (
            f"finished trials are saved. Run the same command to resume, with {others} more "
            f"search{'es' * (others != 1)} to go; chop search compare plots the finished ones."
        )
    url = config.url
    with suppress(ChopError):  # for a missing storage, the same command gives a better message
        if not finished_trials(url, config.study):
            return "no trial was finished. Run the same command to start again."
    more = f"{import_options()}{confirmation(vars(config))}"
    if config.storage and not _is_beside(config.out, storage_file(url)):
        more += f" --out {shlex.quote(str(config.out))}"
    return (
        "finished trials are saved. To resume, run the same command, or: chop search resume "
        f"{config.where}{more}"
    )


def _is_beside(out: Path, storage: Path | None) -> bool:
    """Returns True if a resumed search writes to `out` by default, from any folder."""
    return storage is not None and out.resolve().is_relative_to(storage.parent.resolve())


def where_model_is(config: SearchConfig, best: TrialRecord) -> str:
    """Describes the place of the best trial's model if `config.folder` lacks it; else "".

    A worker on another machine saves into its own folder, unless it shares this one.
    """
    url = config.url
    if not config.keep or url == MEMORY or (config.folder / BEST_FOLDER / best.key).is_dir():
        return ""
    with open_for_reading(url) as engine:
        ledger = Ledger(engine, config.study)
        ledger.sync()
    host, pid = (ledger.rows[best.number].worker.split(":")[i] for i in (0, -3))
    return (
        f"; its model is with the worker that measured it (host {printable(host)}, process {pid}), "
        f"in {config.study}/{BEST_FOLDER}/{best.key} of its --out"
    )


def best_model(config: SearchConfig, best: TrialRecord) -> Path | None:
    """Returns the best model's checkpoint without suffix, or None if the folder has none."""
    stem = config.folder / BEST_FOLDER / best.key / "model"
    return stem if stem.with_suffix(".pt").is_file() else None


def get_settings(config: SearchConfig) -> dict[str, Any]:
    """Returns the settings as plain JSON; the inverse of `rebuild`.

    The URL of a server is left out: readers of the settings know it, and it has a password. A named
    storage file stays: from it, a resumed search learns that its `out` is elsewhere.
    """
    fields = {
        k: v for k, v in dataclasses.asdict(config).items() if v is not None and k not in SPLITTING
    }
    fields.pop("storage", None)
    if config.storage and storage_file(config.url):
        fields |= {"storage": config.url, "out": config.out.absolute()}
    return {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}


def rebuild(record: Mapping[str, Any]) -> tuple[SearchJob[Any], SearchConfig]:
    """Returns the job and settings that a study was started with."""
    job = find_job(record["name"])
    return job, parse(job.config, record["settings"], f"chop search {job.name}")
