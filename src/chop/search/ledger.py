"""Trial storage with one row per trial, exactly-once claims, and worker heartbeats.

A claim inserts a row with a unique key and the next number, which only a process that knows all
earlier rows can give. A worker takes over a lost trial by one UPDATE of the row's worker. It
finishes a trial by one UPDATE that only succeeds while it owns the row. Among any number of
workers, exactly one therefore measures a configuration, and its result is written once, on SQLite
and on PostgreSQL.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from chop.base.files.documents import parse_json
from chop.errors import CheckpointError, ConfigError
from chop.search.result import OUTCOMES, TrialRecord
from chop.search.space import Config

if TYPE_CHECKING:
    import sqlalchemy as sa

T = TypeVar("T")

TABLES = (
    "CREATE TABLE IF NOT EXISTS chop_studies (study VARCHAR(255) PRIMARY KEY, "
    "document TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS chop_trials (study VARCHAR(255) NOT NULL, "
    "number INTEGER NOT NULL, config VARCHAR(64), outcome VARCHAR(16) NOT NULL, "
    "worker VARCHAR(255) NOT NULL, begun INTEGER NOT NULL, errors INTEGER NOT NULL, "
    "document TEXT NOT NULL, PRIMARY KEY (study, number), UNIQUE (study, config))",
    "CREATE TABLE IF NOT EXISTS chop_workers (study VARCHAR(255) NOT NULL, "
    "worker VARCHAR(255) NOT NULL, beat INTEGER NOT NULL, PRIMARY KEY (study, worker))",
)
WAITING, RUNNING = "waiting", "running"
NO_WORKER = ""
"""Value of the worker column for a trial released after an error."""
RECONNECT_SECONDS = 60.0
"""Seconds to wait for a lost database server."""
RECONNECT_PAUSE = 0.5
MAX_OPEN_ROWS = 500
"""Maximum number of unfinished rows read one by one, because statements limit their parameters."""


@dataclass(frozen=True)
class Row:
    """Stored trial.

    Attributes:
        number: number in the study, in the order in which trials were started or queued.
        key: key of the claimed configuration. None for trials without a measurement: infeasible or
            already measured configurations.
        outcome: one of `chop.search.result.OUTCOMES`.
        worker: worker that runs or ran it.
        begun: number of starts, more than one after kills.
        errors: number of times the objective raised an error that stopped the search.
        document: JSON with `config` and, once finished, the content of
            `optuna_study.build_document`.
    """

    number: int
    key: str | None
    outcome: str
    worker: str
    begun: int
    errors: int
    document: str

    @cached_property
    def parsed(self) -> dict[str, Any]:
        """Parsed document."""
        return _parse(self.document, f"trial {self.number}")

    @property
    def is_finished(self) -> bool:
        """True if the trial can no longer change."""
        return self.outcome not in (WAITING, RUNNING)

    @cached_property
    def record(self) -> TrialRecord:
        """Trial as a record of `Result`.

        Raises:
            ValueError: if the row is corrupt.
        """
        parsed = self.parsed
        self._check(parsed)
        return TrialRecord(
            self.number,
            self.outcome,
            parsed["config"],
            self.key or "",
            parsed.get("values", {}),
            parsed.get("seconds"),
            parsed.get("note", ""),
            self.begun,
        )

    def _check(self, parsed: dict[str, Any]) -> None:
        """Raises ValueError for entries that no search writes."""
        numbers = (*dict(parsed.get("values", {})).values(), *parsed.get("told", ()))
        config = parsed["config"]
        if (
            self.outcome not in OUTCOMES
            or not all(isinstance(number, int | float) for number in numbers)
            or not isinstance(config, dict)
            or not all(isinstance(text, str) for text in config.values())
            or not isinstance(parsed.get("seconds", 0.0), int | float | None)
            or not isinstance(parsed.get("note", ""), str)
        ):
            raise ValueError(f"trial {self.number} has an entry that no search writes")


def _row(number: int, key: str | None, outcome: str, *others: Any) -> Row:
    """Returns a stored row."""
    return Row(number, key, outcome, *others)


COLUMNS = "number, config, outcome, worker, begun, errors, document"
INSERT = (
    f"INSERT INTO chop_trials (study, {COLUMNS}) VALUES (:study, :number, :key, :outcome, :worker, "
    ":begun, :errors, :document)"
)
DOCUMENT = "UPDATE chop_trials SET document = :document WHERE study = :study AND number = :number"
MINE = "study = :study AND number = :number AND worker = :worker AND outcome = 'running'"


def _parse(text: str, what: str) -> dict[str, Any]:
    """Parses a document of the storage."""
    try:
        document: dict[str, Any] = parse_json(text)
    except ConfigError as error:
        raise CheckpointError(f"the storage of the search is broken: {what}: {error}.") from None
    return document


class Ledger:
    """Rows of one study, with a local copy.

    Args:
        engine: engine of an open storage.
        study: name of the study.

    Attributes:
        rows: rows by number, as of the last `sync`.
        by_key: key -> number of the row that claimed the configuration.
        open: numbers of waiting and running rows.
    """

    def __init__(self, engine: sa.Engine, study: str) -> None:
        self.engine, self.study = engine, study
        self.rows: list[Row] = []
        self.by_key: dict[str, int] = {}
        self.open: set[int] = set()

    def begin(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Creates the study with `document` if it is new, and returns its stored document."""
        from sqlalchemy.exc import IntegrityError

        with suppress(IntegrityError):  # the study exists
            self._write(
                "INSERT INTO chop_studies (study, document) VALUES (:study, :document)",
                document=json.dumps(document),
            )
        return self.document()

    def document(self) -> dict[str, Any]:
        """Returns the study's document, or {} if there is no such study."""
        rows = self._read("SELECT document FROM chop_studies WHERE study = :study")
        return _parse(rows[0][0], f"search '{self.study}'") if rows else {}

    def set_entry(self, name: str, value: Any) -> None:
        """Adds an entry to the study's document."""
        self._write(
            "UPDATE chop_studies SET document = :document WHERE study = :study",
            document=json.dumps(self.document() | {name: value}),
        )

    def sync(self) -> list[Row]:
        """Reads rows added since the last call, and rows that were unfinished then."""
        import sqlalchemy as sa

        statement = sa.text(
            f"SELECT {COLUMNS} FROM chop_trials WHERE study = :study "
            "AND (number >= :next OR number IN :open) ORDER BY number"
        ).bindparams(sa.bindparam("open", expanding=True))
        values = {"next": len(self.rows), "open": sorted(self.open)}
        # A range instead of single numbers rereads some finished rows in one statement.
        if len(self.open) > MAX_OPEN_ROWS:
            values = {"next": min(self.open), "open": []}
        changed = [_row(*row) for row in self._read(statement, **values)]
        for row in changed:
            self._put(row)
        return changed

    def _put(self, row: Row) -> None:
        # Replaces a known row, or appends the next one.
        self.rows[row.number : row.number + 1] = [row]
        if row.key is not None:
            self.by_key[row.key] = row.number
        (self.open.discard if row.is_finished else self.open.add)(row.number)

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """Trials as records, as of the last `sync`."""
        return tuple(row.record for row in self.rows)

    def unfinished(self, outcome: str) -> list[Row]:
        """Returns rows with the outcome `WAITING` or `RUNNING`."""
        return [self.rows[n] for n in sorted(self.open) if self.rows[n].outcome == outcome]

    def claim(self, key: str, document: Mapping[str, Any], worker: str, limit: int) -> Row | None:
        """Claims a configuration unless `limit` configurations are already claimed or queued.

        Args:
            key: key of the configuration.
            document: document with the `config`.
            worker: worker that will measure it.
            limit: maximum number of claimed configurations.
        Returns: the row of the configuration, which may be waiting or another worker's. None if the
            limit is reached.
        """
        self._insert(key, RUNNING, worker, document, limit)
        return self.rows[self.by_key[key]] if key in self.by_key else None

    def claim_row(self, row: Row, worker: str, limit: float = math.inf) -> Row | None:
        """Claims a queued trial, or a running trial of a dead worker.

        Returns: the claimed row, or None if another worker was faster or the limit is reached.
        """
        is_queued = row.outcome == WAITING
        # Trials are queued without a limit, so that the limit applies when they are started.
        if is_queued and sum(number < row.number for number in self.by_key.values()) >= limit:
            return None
        self._write(
            # Compare and swap: no row matches if another worker has changed it since it was read.
            "UPDATE chop_trials SET worker = :worker, outcome = 'running', begun = begun + :more "
            "WHERE study = :study AND number = :number AND worker = :before "
            "AND outcome = :outcome",
            worker=worker,
            number=row.number,
            more=0 if is_queued else 1,
            before=row.worker,
            outcome=row.outcome,
        )
        return self._mine(row, worker)

    def _mine(self, row: Row, worker: str) -> Row | None:
        """Reads a row back and returns it if the worker owns it.

        Reading is needed because a connection may break after the server has committed.
        """
        self.sync()
        stored = self.rows[row.number]
        return stored if stored.worker == worker else None

    def report(self, row: Row, worker: str, document: Mapping[str, Any]) -> None:
        """Stores intermediate values of a running trial for other workers."""
        self._write(
            f"UPDATE chop_trials SET document = :document WHERE {MINE}",
            number=row.number,
            worker=worker,
            document=json.dumps(document),
        )

    def finish(self, row: Row, worker: str, outcome: str, document: Mapping[str, Any]) -> bool:
        """Finishes a trial once; returns False if the worker no longer owns it."""
        text = json.dumps(document)
        is_written = self._write(
            f"UPDATE chop_trials SET outcome = :outcome, document = :document WHERE {MINE}",
            number=row.number,
            worker=worker,
            outcome=outcome,
            document=text,
        )
        if is_written:
            known = self.rows[row.number]
            self._put(replace(known, worker=worker, outcome=outcome, document=text))
        # If the connection broke after the commit, only the row shows the update.
        return is_written or self._mine(row, worker) is not None

    def release(self, row: Row, worker: str, *, errors: int) -> None:
        """Releases a running trial so that other workers can claim it."""
        self._write(
            # Without a worker, a running trial counts as lost, so that other workers recover it.
            f"UPDATE chop_trials SET worker = '', errors = errors + :errors WHERE {MINE}",
            number=row.number,
            worker=worker,
            errors=errors,
        )

    def add(
        self,
        outcome: str,
        document: Mapping[str, Any],
        number: int | None = None,
        make_document: Callable[[], Mapping[str, Any]] | None = None,
    ) -> int | None:
        """Adds a trial without a measurement.

        Args:
            outcome: outcome of the trial.
            document: document with the `config`.
            number: number of the trial. None: the next free one.
            make_document: creates the document of the row, after its number is reserved.
        Returns: its number, or None if another worker's trial has the requested number.
        """
        added = self._insert(
            None, outcome, NO_WORKER, document, number=number, make_document=make_document
        )
        return None if number not in (None, added) else added

    def queue(self, key: str, config: Config) -> None:
        """Queues a configuration unless it is known."""
        self._insert(key, WAITING, NO_WORKER, {"config": dict(config)})

    def _insert(
        self,
        key: str | None,
        outcome: str,
        worker: str,
        document: Mapping[str, Any],
        limit: float = math.inf,
        number: int | None = None,
        make_document: Callable[[], Mapping[str, Any]] | None = None,
    ) -> int:
        """Adds a row unless its key is known, the key limit is reached, or its number is taken.

        Returns: the number of the added row, or the number of rows if none was added.
        """
        import sqlalchemy as sa
        from sqlalchemy.exc import IntegrityError

        # Cached, because a transaction may be repeated.
        make_json = (
            functools.cache(lambda: json.dumps(make_document()))
            if make_document is not None
            else None
        )

        def insert(connection: sa.Connection) -> Row:
            values = {"study": self.study, **asdict(row)}
            connection.execute(sa.text(INSERT), values)
            if make_json is None:
                return row
            values["document"] = make_json()
            connection.execute(sa.text(DOCUMENT), values)
            return replace(row, document=values["document"])

        text = json.dumps(document)
        while key is None or (key not in self.by_key and len(self.by_key) < limit):
            if number not in (None, len(self.rows)):
                break
            # Keys and numbers are unique in the table: of several workers, one inserts this row.
            row = Row(len(self.rows), key, outcome, worker, 1, 0, text)
            with suppress(IntegrityError):
                self._put(self._transact(insert))
                return row.number
            self.sync()  # another worker has added this number or key
        return len(self.rows)

    def heartbeat(self, worker: str) -> None:
        """Increments the heartbeat count of a worker."""
        if not self._write(
            "UPDATE chop_workers SET beat = beat + 1 WHERE study = :study AND worker = :worker",
            worker=worker,
        ):
            self._write(
                "INSERT INTO chop_workers (study, worker, beat) VALUES (:study, :worker, 1)",
                worker=worker,
            )

    def remove_worker(self, worker: str) -> None:
        """Removes a worker that has ended."""
        self._write(
            "DELETE FROM chop_workers WHERE study = :study AND worker = :worker", worker=worker
        )

    def heartbeats(self) -> dict[str, int]:
        """Returns the heartbeat count of each worker."""
        rows = self._read("SELECT worker, beat FROM chop_workers WHERE study = :study")
        return {worker: int(beat) for worker, beat in rows}

    def _write(self, statement: str, **values: Any) -> bool:
        """Runs one statement in its own transaction; returns True if it changed a row."""
        import sqlalchemy as sa

        values["study"] = self.study
        return self._transact(lambda c: bool(c.execute(sa.text(statement), values).rowcount))

    def _read(self, statement: Any, **values: Any) -> list[Any]:
        import sqlalchemy as sa

        if isinstance(statement, str):
            statement = sa.text(statement)
        values["study"] = self.study
        return self._transact(lambda connection: list(connection.execute(statement, values)))

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        """Runs a transaction and waits for a lost server.

        A broken connection may leave a transaction committed or not, so `work` must be repeatable.
        """
        from sqlalchemy.exc import OperationalError

        # SQLite waits for its lock itself.
        patience = 0.0 if self.engine.dialect.name == "sqlite" else RECONNECT_SECONDS
        deadline = time.monotonic() + patience
        while True:
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except OperationalError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RECONNECT_PAUSE)


def make_tables(engine: sa.Engine) -> None:
    """Creates missing tables."""
    import sqlalchemy as sa
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    def make() -> None:
        with engine.begin() as connection:
            for statement in TABLES:
                connection.execute(sa.text(statement))

    try:
        make()
    except (IntegrityError, ProgrammingError):  # PostgreSQL: another worker is creating them
        make()


def studies(engine: sa.Engine) -> list[str]:
    """Returns the names of the studies in a storage."""
    import sqlalchemy as sa

    if not sa.inspect(engine).has_table("chop_studies"):
        return []
    with engine.connect() as connection:
        names = connection.execute(sa.text("SELECT study FROM chop_studies ORDER BY study"))
        return [name for (name,) in names]
