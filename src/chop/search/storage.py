"""Where trials are kept: Optuna's tables, tuned, and beside them what Optuna does not record.

Optuna stores trials. It has no notion of a configuration that was measured before, nor of a
worker that is gone, so the ledger adds two small tables: who measures which configuration, and
which workers are alive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chop.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    import sqlalchemy as sa
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

MEMORY = "memory"
"""Storage of a search that lives and dies with its process: for trials of milliseconds."""
FILE_NAME = "search.db"
LOCK_SECONDS = 60
"""How long a writer waits for another one of the same SQLite file."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS chop_claims (study INTEGER NOT NULL, config VARCHAR(64) NOT NULL, "
    "slot INTEGER NOT NULL, trial INTEGER NOT NULL, "
    "PRIMARY KEY (study, config), UNIQUE (study, slot))",
    "CREATE TABLE IF NOT EXISTS chop_workers (study INTEGER NOT NULL, worker VARCHAR(255) NOT NULL,"
    " beat TIMESTAMP NOT NULL, PRIMARY KEY (study, worker))",
)


@dataclass(frozen=True)
class Store:
    """An open storage.

    Attributes:
        url: what `open_store` takes in another process.
        trials: Optuna's part.
        engine: of the ledger.
    """

    url: str
    trials: BaseStorage
    engine: sa.Engine

    @property
    def is_shared(self) -> bool:
        """True when other processes can reach it."""
        return self.url != MEMORY

    def close(self) -> None:
        """Lets go of every connection."""
        self.engine.dispose()


def storage_url(storage: str | None, out: Path | None) -> str:
    """The URL of a storage as people name it.

    Args:
        storage: None for a SQLite file in `out`; "memory"; `sqlite:///FILE`; `postgresql://...`;
            the path of a SQLite file.
        out: the output folder.
    Raises:
        ConfigError: neither names a storage, or it is of another kind.
    """
    if storage is None and out is None:
        raise ConfigError("a search needs an `out` folder, or `storage`, to keep its trials.")
    if storage is None:
        return _file_url(Path(out or ".") / FILE_NAME)
    kind = storage.partition("://")[0]
    if storage == MEMORY or kind == "sqlite":
        return storage
    if kind in ("postgresql", "postgres", "postgresql+psycopg"):
        return f"postgresql+psycopg://{storage.partition('://')[2]}"
    if "://" in storage:
        raise ConfigError(
            f"storage of kind '{kind}': expected postgresql://..., sqlite:///FILE, a file or "
            f"'{MEMORY}'."
        )
    path = Path(storage)
    return _file_url(path / FILE_NAME if path.is_dir() else path)


def _file_url(file: Path) -> str:
    import sqlalchemy as sa

    return sa.URL.create("sqlite", database=str(file.absolute())).render_as_string()


def storage_file(url: str) -> Path | None:
    """The SQLite file of a URL from `storage_url`; None of a server or of memory."""
    import sqlalchemy as sa

    database = sa.make_url(url).database if url.startswith("sqlite") else None
    return None if database is None else Path(database)


def open_store(url: str, *, create: bool = True) -> Store:
    """Opens a storage, and makes its tables where they are missing.

    Args:
        url: from `storage_url`.
        create: False: a SQLite file that is not there is an error.
    Raises:
        UnavailableError: the file or server is not there or refuses, or a driver is missing.
    """
    import sqlalchemy as sa
    from optuna.storages import InMemoryStorage, RDBStorage

    from chop.search.held import HoldingStorage

    if url == MEMORY:
        engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
        _make_tables(engine)
        return Store(url, InMemoryStorage(), engine)
    _check_reachable(url, create)
    with storage_errors(url):
        options = _engine_options(url)
        engine = sa.create_engine(url, **options)
        _tune(engine)
        with engine.connect():
            pass
        trials = RDBStorage(url, engine_kwargs=options)
        _tune(trials.engine)
        trials.engine.dispose()  # its first connection came before the tuning
        _make_tables(trials.engine)
        engine.dispose()
    return Store(url, HoldingStorage(trials), trials.engine)


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Inside, a storage that fails raises one clear error.

    Raises:
        UnavailableError: the file or server cannot be used (any more).
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (StorageInternalError, DBAPIError) as error:
        cause = error if isinstance(error, DBAPIError) else error.__cause__ or error
        reason = str(getattr(cause, "orig", cause)).strip().splitlines()[0]
        raise UnavailableError(
            f"storage {without_password(url)} cannot be used: {reason}. Finished trials are safe; "
            "when it is back, run the same search again or `chop search resume`."
        ) from error


def without_password(url: str) -> str:
    """The URL as it may be printed."""
    import sqlalchemy as sa

    return url if url == MEMORY else sa.make_url(url).render_as_string(hide_password=True)


def _check_reachable(url: str, create: bool) -> None:
    import sqlalchemy as sa

    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "postgresql":
        if find_spec("psycopg") is None:
            raise UnavailableError("PostgreSQL needs a driver: pip install 'mase-chop[postgres]'.")
        return
    file = Path(parsed.database or "")
    if not create and not file.is_file():
        raise UnavailableError(f"there is no search in '{file}'.")
    if file.is_dir():
        raise UnavailableError(f"storage '{file}' is a folder, expected a file.")
    file.parent.mkdir(parents=True, exist_ok=True)


def _engine_options(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": LOCK_SECONDS}}
    return {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}


def _tune(engine: sa.Engine) -> None:
    """Write-ahead logging: readers and a writer do not wait for one another.

    With it, synchronous=NORMAL survives a killed process; a machine that loses power may lose the
    last trials, never the file.
    """
    import sqlalchemy as sa

    if engine.dialect.name != "sqlite":
        return

    @sa.event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()


def _make_tables(engine: sa.Engine) -> None:
    import sqlalchemy as sa

    with engine.begin() as connection:
        for statement in TABLES:
            connection.execute(sa.text(statement))


class Claim(NamedTuple):
    """Who measures a configuration.

    Attributes:
        trial: number of the trial that holds the claim.
        is_new: the claim was made by the call that returns it.
    """

    trial: int
    is_new: bool


class Ledger:
    """Who measures which configuration of one study, and which workers are alive.

    A claim is one row under a unique key, so that of any number of workers exactly one measures a
    configuration, on SQLite and on PostgreSQL alike.
    """

    def __init__(self, store: Store, study_id: int) -> None:
        self.engine = store.engine
        self.study = study_id

    def claim(self, config: str, trial: int, limit: int) -> Claim | None:
        """Claims a configuration for a trial, while fewer than `limit` are claimed.

        Args:
            config: its key.
            trial: number of the trial that wants to measure it.
            limit: how many configurations may be claimed in all.
        Returns: the claim that holds, or None when the limit is reached.
        """
        from sqlalchemy.exc import IntegrityError

        while True:
            rows = self._rows("SELECT trial FROM chop_claims WHERE {here}", config=config)
            if rows:
                return Claim(int(rows[0][0]), is_new=False)
            try:
                made = self._write(
                    "INSERT INTO chop_claims (study, config, slot, trial) "
                    "SELECT :study, :config, taken + 1, :trial FROM "
                    "(SELECT COUNT(*) AS taken FROM chop_claims WHERE study = :study) AS t "
                    "WHERE taken < :limit",
                    config=config,
                    trial=trial,
                    limit=limit,
                )
            except IntegrityError:
                continue  # another worker was faster; what it took is seen now
            return Claim(trial, is_new=True) if made else None

    def take_over(self, config: str, trial: int, holder: int) -> bool:
        """Moves a claim from a trial that is lost; False when another worker was faster."""
        return self._write(
            "UPDATE chop_claims SET trial = :trial WHERE {here} AND trial = :holder",
            config=config,
            trial=trial,
            holder=holder,
        )

    def claimed(self) -> dict[str, int]:
        """Key of every claimed configuration -> number of the trial that holds it."""
        rows = self._rows("SELECT config, trial FROM chop_claims WHERE study = :study")
        return {key: int(trial) for key, trial in rows}

    def count(self) -> int:
        """How many configurations are claimed: measured, or being measured."""
        return int(self._rows("SELECT COUNT(*) FROM chop_claims WHERE study = :study")[0][0])

    def beat(self, worker: str) -> None:
        """Notes, by the database's clock, that a worker is alive."""
        changed = self._write(
            "UPDATE chop_workers SET beat = CURRENT_TIMESTAMP "
            "WHERE study = :study AND worker = :worker",
            worker=worker,
        )
        if not changed:
            self._write(
                "INSERT INTO chop_workers (study, worker, beat) "
                "VALUES (:study, :worker, CURRENT_TIMESTAMP)",
                worker=worker,
            )

    def leave(self, worker: str) -> None:
        """Forgets a worker that has ended."""
        self._write(
            "DELETE FROM chop_workers WHERE study = :study AND worker = :worker", worker=worker
        )

    def beat_ages(self) -> Mapping[str, float]:
        """Worker -> seconds since its last beat, by the database's clock."""
        seconds = (
            "CAST(strftime('%s', CURRENT_TIMESTAMP) AS FLOAT) - strftime('%s', beat)"
            if self.engine.dialect.name == "sqlite"
            else "EXTRACT(EPOCH FROM CURRENT_TIMESTAMP::timestamp - beat)"
        )
        rows = self._rows(f"SELECT worker, {seconds} FROM chop_workers WHERE study = :study")
        return {worker: float(age) for worker, age in rows}

    def _rows(self, statement: str, **values: Any) -> list[Any]:
        import sqlalchemy as sa

        statement = statement.format(here="study = :study AND config = :config")
        with self.engine.connect() as connection:
            return list(connection.execute(sa.text(statement), {"study": self.study, **values}))

    def _write(self, statement: str, **values: Any) -> bool:
        """Runs one statement in a transaction of its own; True when it changed a row."""
        import sqlalchemy as sa

        statement = statement.format(here="study = :study AND config = :config")
        with self.engine.begin() as connection:
            result = connection.execute(sa.text(statement), {"study": self.study, **values})
            return bool(result.rowcount)


TAKER = "taker "
"""Begins the name of an attribute by which a worker says that it is about to take a trial."""


def begin_trial(study: Study, worker: str) -> int:
    """Takes a waiting trial, or makes one; who runs it is written before anything else.

    Optuna's `ask` writes attributes only after the trial is there: a worker killed in between
    leaves a trial that is nobody's. On SQLite two workers can take the same waiting trial at once:
    the claim of its configuration tells which of them measures it.

    Args:
        study: the trials as they are read here are what its sampler sees.
        worker: who takes it.
    Returns: the trial's id in the storage.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState, create_trial

    storage, running = study._storage, TrialState.RUNNING
    study._thread_local.cached_all_trials = known = study.get_trials(deepcopy=False)
    for trial in (trial for trial in known if trial.state == TrialState.WAITING):
        with contextlib.suppress(UpdateFinishedTrialError):
            storage.set_trial_user_attr(trial._trial_id, TAKER + worker, True)
            if storage.set_trial_state_values(trial._trial_id, running):
                storage.set_trial_user_attr(trial._trial_id, "worker", worker)
                return trial._trial_id
    template = create_trial(state=running, user_attrs={"worker": worker})
    return storage.create_new_trial(study._study_id, template_trial=template)


def leave_to_others(study: Study, trial_id: int, worker: str) -> None:
    """Leaves a trial that two workers have taken to the other one."""
    storage = study._storage
    number = storage.get_trial_number_from_id(trial_id)
    attrs = study.get_trials(deepcopy=False)[number].user_attrs
    others = [name for name in attrs if name.startswith(TAKER) and name != TAKER + worker]
    if others and attrs.get("worker") == worker:
        storage.set_trial_user_attr(trial_id, "worker", others[0].removeprefix(TAKER))


def workers_of(trial: FrozenTrial) -> list[str]:
    """Who runs a trial: its worker; until that is written, those of whom one has taken it."""
    if "worker" in trial.user_attrs:
        return [trial.user_attrs["worker"]]
    return [name.removeprefix(TAKER) for name in trial.user_attrs if name.startswith(TAKER)]
