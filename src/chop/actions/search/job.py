"""Search jobs: common settings, start, workers and resumption.

A job is one module with a `JOB`. Its settings are kept in the study, so that any process that
reaches the storage can rebuild the same search: a worker on another machine, or a resume.
"""

from __future__ import annotations

import dataclasses
import importlib
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop import runs
from chop.actions.interrupt import with_interruption_note
from chop.actions.settings.search import SearchConfig
from chop.config import parse
from chop.errors import ChopError, ConfigError, check_known
from chop.kernels.matmul_precision import matmul_precision
from chop.mixed_precision.costs import COSTS
from chop.search.ledger import Ledger, studies
from chop.search.location import MEMORY, storage_file, storage_url, without_password
from chop.search.storage import open_for_reading
from chop.search.study import BEST_FOLDER
from chop.tables import printable

if TYPE_CHECKING:
    from chop.search.result import Result, TrialRecord
    from chop.search.study import Search

SIZES = (*COSTS, "parameters", "size_bytes")
"""What every model has some of."""
SPLITTING = ("seeds", "samplers", "per_format")
"""Settings by which one command runs several searches: none of these has them."""
JOB_MODULES = {
    "nas": "chop.actions.search.nas",
    "precision": "chop.actions.search.precision",
}


def check_budgets(budgets: Mapping[str, float]) -> None:
    """Raises ConfigError where a budget is a number that what it bounds can never have."""
    for name, number in budgets.items():
        if name in SIZES and not number > 0:
            raise ConfigError(f"budgets: {name}: got {number:g}, expected more than 0.")
        if name == "accuracy" and not 0 <= number <= 1:
            raise ConfigError(f"budgets: accuracy: got {number:g}, expected 0 to 1.")


@dataclass(frozen=True)
class Job:
    """One kind of search.

    Attributes:
        name: what the command is called.
        config: its settings.
        prepare: loads what is searched over; the search it returns has not run. Called again with
            the same settings in another process it gives the same search.
        write: writes tables and plots of a result into `config.folder`; called when a run ends.
            It returns the rows of the table.
        export: the settings of `chop compress` that build a configuration.
        split: by its label, what is changed in the settings for each of several searches that they
            stand for beside seeds and samplers; nothing where they stand for one.
        describe: columns about a search for the table that compares several.
    """

    name: str
    config: type[SearchConfig]
    prepare: Callable[[Any], Search]
    write: Callable[[Any, Search, Result], list[dict[str, Any]]]
    export: Callable[[Any, Mapping[str, str]], dict[str, Any]]
    split: Callable[[Any], Mapping[str, Mapping[str, Any]]] = lambda config: {}
    describe: Callable[[Any], Mapping[str, Any]] = lambda config: {}


def find_job(name: str) -> Job:
    """The job of that name.

    Raises:
        ConfigError: there is none.
    """
    check_known(name, JOB_MODULES, "search job")
    job: Job = importlib.import_module(JOB_MODULES[name]).JOB
    return job


def run_job(job: Job, config: SearchConfig) -> Result:
    """Searches until `config.trials` configurations are measured, and writes the result.

    Called again with the same settings it goes on where the last run stopped.
    """
    with (
        matmul_precision(config.matmul_precision),
        with_interruption_note(lambda: _kept(config)),
    ):
        search, settings = job.prepare(config), settings_of(config)
        with runs.start(f"search {job.name}", settings, config.folder) as run:
            search.note_job(job.name, settings)
            result = search.run(until=config.trials, workers=config.workers)
            with run.results():
                run.rows = job.write(config, search, result)
                if result.best is not None:
                    run.written += (config.folder / BEST_FOLDER / result.best.key).glob("*")
    return result


def _kept(config: SearchConfig) -> str:
    url = storage_url(config.storage, config.out)
    where = without_password(url) if config.storage else str(config.folder)
    name = f" --name {shlex.quote(config.study)}" if config.storage else ""
    with suppress(ChopError):  # of a storage that is not there the same command says more
        if not finished_trials(url, config.study):
            return "no trial was finished; the same command begins again."
    return (
        f"finished trials are kept; the same command, or chop search resume {shlex.quote(where)}"
        f"{name}, goes on from there."
    )


def finished_trials(url: str, study: str) -> int:
    """How many trials of a study have ended, none where there is no such storage."""
    file = storage_file(url)
    if url == MEMORY or (file is not None and not file.exists()):
        return 0
    with open_for_reading(url) as engine:
        if study not in studies(engine):
            return 0
        return sum(row.is_finished for row in Ledger(engine, study).sync())


def where_model_is(config: SearchConfig, best: TrialRecord) -> str:
    """Where the model of the best trial is, for a closing line, if `config.folder` has none; or "".

    A worker on another machine saves into a folder of its own, unless it shares this one.
    """
    url = storage_url(config.storage, config.out)
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


def settings_of(config: SearchConfig) -> dict[str, Any]:
    """The settings as plain JSON; the inverse of `rebuild`.

    A server is left out: whoever reads the settings has found it, and its URL has a password. A
    file that was named stays, by which a resumed search knows that its `out` is elsewhere.
    """
    fields = {
        k: v for k, v in dataclasses.asdict(config).items() if v is not None and k not in SPLITTING
    }
    url = storage_url(fields.pop("storage", None), config.out)
    if config.storage and storage_file(url):
        fields |= {"storage": url, "out": config.out.absolute()}
    return {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}


def rebuild(noted: Mapping[str, Any]) -> tuple[Job, SearchConfig]:
    """The job and settings that a study was begun with."""
    job = find_job(noted["name"])
    return job, parse(job.config, noted["settings"], f"chop search {job.name}")
