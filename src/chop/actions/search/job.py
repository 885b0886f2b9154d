"""Search jobs: common settings, start, workers and resumption.

A job is one module with a `JOB`. Its settings are kept in the study, so that any process that
reaches the storage can rebuild the same search: a worker on another machine, or a resume.
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
from chop.search.location import MEMORY, storage_file, without_password
from chop.search.reading import finished_trials
from chop.search.storage import open_for_reading
from chop.search.study import BEST_FOLDER
from chop.train.tasks import share_metrics

if TYPE_CHECKING:
    from chop.search.result import Result, TrialRecord
    from chop.search.study import Search

BEST_FILE = "best.json"
"""What a search notes of its best configuration."""
SPLITTING = ("seeds", "samplers", "per_format")
"""Settings by which one command runs several searches: none of these has them."""
JOB_MODULES = {
    "nas": "chop.actions.search.nas",
    "precision": "chop.actions.search.precision",
}


class Subject(Protocol):
    """Subject of a search: its model and rows, loaded once for search, report and circuit."""

    @property
    def search(self) -> Search:
        """The search, which has not run. Another process gets the same of the same settings."""


S = TypeVar("S", bound=Subject)


@dataclass(frozen=True)
class SearchJob(Generic[S]):
    """One kind of search.

    Attributes:
        name: what the command is called.
        config: its settings.
        load: loads what is searched over.
        report: tables and figures of a result, which is that of the report.
        export: the settings of `chop compress` that build a configuration.
        split: by its label, what is changed in the settings for each of several searches that they
            stand for beside seeds and samplers; nothing where they stand for one.
        describe: columns about a search for the table that compares several.
        finish: what follows a result that is written, as the circuit of the best.
        is_complete: whether that was done for the result that is written.
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
    """The job of that name.

    Raises:
        ConfigError: there is none.
    """
    check_known(name, JOB_MODULES, "search job")
    job: SearchJob[Any] = importlib.import_module(JOB_MODULES[name]).JOB
    return job


def run_search(job: SearchJob[S], config: SearchConfig, others: int = 0) -> Result:
    """Searches until `config.trials` configurations are measured, and writes the result.

    Called again with the same settings it goes on where the last run stopped.

    Args:
        job: the kind of search.
        config: its settings.
        others: searches of the same command that come after it.
    """
    subject = functools.cache(lambda: job.load(config))

    def searched(config: SearchConfig, search: Search, output: Output) -> Report[Result]:
        extensions = dataclasses.asdict(Extensions.from_this_process())
        search.store_job(job.name, get_settings(config), extensions)
        result = search.run(until=config.trials, workers=config.workers)
        best, report = result.best, job.report(subject(), result)
        saved = [] if best is None else (config.folder / BEST_FOLDER / best.key).glob("*")
        tiles = [*report.tiles, *search_tiles(result, search.space, share_metrics())]
        return replace(report, tiles=tiles, written=[*report.written, *saved])

    whole: Job[SearchConfig, Search, Result] = Job(
        f"search {job.name}",
        searched,
        load=lambda *_: subject().search,
        kept=lambda config: _resume_note(config, others),
        settings=lambda config, _: get_settings(config),
        folder=lambda config: config.folder,
    )
    result = run_job(whole, config)
    job.finish(subject(), result)
    return result


def _resume_note(config: SearchConfig, others: int) -> str:
    if others:
        return (
            f"finished trials are kept; the same command goes on from there, with {others} more "
            f"search{'es' * (others != 1)}. chop search compare draws what there is."
        )
    url = config.url
    where = without_password(url) if config.storage else str(config.folder)
    name = f" --name {shlex.quote(config.study)}" if config.storage else ""
    with suppress(ChopError):  # of a storage that is not there the same command says more
        if not finished_trials(url, config.study):
            return "no trial was finished; the same command begins again."
    more = f"{name}{import_options()}{confirmation(vars(config))}"
    if config.storage and not _is_beside(config.out, storage_file(url)):
        more += f" --out {shlex.quote(str(config.out))}"
    return (
        f"finished trials are kept; the same command, or chop search resume {shlex.quote(where)}"
        f"{more}, goes on from there."
    )


def _is_beside(out: Path, storage: Path | None) -> bool:
    """Returns true if a resumed search writes to `out` by itself, from any folder."""
    return storage is not None and out.resolve().is_relative_to(storage.parent.resolve())


def where_model_is(config: SearchConfig, best: TrialRecord) -> str:
    """Where the model of the best trial is, for a closing line, if `config.folder` has none; or "".

    A worker on another machine saves into a folder of its own, unless it shares this one.
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
    """Stem of the best model's checkpoint; None where the folder has none."""
    stem = config.folder / BEST_FOLDER / best.key / "model"
    return stem if stem.with_suffix(".pt").is_file() else None


def get_settings(config: SearchConfig) -> dict[str, Any]:
    """The settings as plain JSON; the inverse of `rebuild`.

    A server is left out: whoever reads the settings has found it, and its URL has a password. A
    file that was named stays, by which a resumed search knows that its `out` is elsewhere.
    """
    fields = {
        k: v for k, v in dataclasses.asdict(config).items() if v is not None and k not in SPLITTING
    }
    fields.pop("storage", None)
    if config.storage and storage_file(config.url):
        fields |= {"storage": config.url, "out": config.out.absolute()}
    return {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}


def rebuild(noted: Mapping[str, Any]) -> tuple[SearchJob[Any], SearchConfig]:
    """The job and settings that a study was begun with."""
    job = find_job(noted["name"])
    return job, parse(job.config, noted["settings"], f"chop search {job.name}")
