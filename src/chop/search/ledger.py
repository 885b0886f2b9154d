"""Trial storage: one row per trial, claimed exactly once, and the heartbeats of workers.

A claim of a configuration is one INSERT of its row, under a unique key and the next number, which
only a process that knows all rows before it can give. What a worker that is gone has left, another
takes over by one UPDATE of the row's worker; its end is one UPDATE that holds only while the worker
has the row. So of any number of workers exactly one measures a configuration, and its result is
written once, on SQLite and on PostgreSQL alike.
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
"""In the place of a worker: one that met an error has left the trial to the next."""
RECONNECT_SECONDS = 60.0
"""How long a server that went away is waited for."""
RECONNECT_PAUSE = 0.5
MOST_OPEN = 500
"""Rows that are read again one by one: a statement takes so many numbers, and not many more."""


@dataclass(frozen=True)
class Row:
    """One trial as it is stored.

    Attributes:
        number: in the study, in the order in which trials were begun or queued.
        key: of the configuration that it claims; None of a trial that measures nothing: its
            configuration cannot be, or was measured before.
        outcome: one of `chop.search.result.OUTCOMES`.
        worker: who runs it, or has run it.
        begun: how often it was begun: more than once after kills.
        errors: how often the measure ended by an error that stopped its search.
        document: JSON of `config`, and of what `optuna_study.build_document` adds at its end.
    """

    number: int
    key: str | None
    outcome: str
    worker: str
    begun: int
    errors: int
    document: str

    @cached_property
    def noted(self) -> dict[str, Any]:
        """The document as it was before it became JSON."""
        return _parse(self.document, f"trial {self.number}")

    @property
    def is_finished(self) -> bool:
        """True when nothing about the trial can change."""
        return self.outcome not in (WAITING, RUNNING)

    @cached_property
    def record(self) -> TrialRecord:
        """The trial as `Result` takes it.

        Raises:
            ValueError: the row is damaged.
        """
        noted = self.noted
        self._check(noted)
        return TrialRecord(
            self.number,
            self.outcome,
            noted["config"],
            self.key or "",
            noted.get("values", {}),
            noted.get("seconds"),
            noted.get("note", ""),
            self.begun,
        )

    def _check(self, noted: dict[str, Any]) -> None:
        """Raises ValueError where an entry is none that a search writes."""
        numbers = (*dict(noted.get("values", {})).values(), *noted.get("told", ()))
        config = noted["config"]
        if (
            self.outcome not in OUTCOMES
            or not all(isinstance(number, int | float) for number in numbers)
            or not isinstance(config, dict)
            or not all(isinstance(text, str) for text in config.values())
            or not isinstance(noted.get("seconds", 0.0), int | float | None)
            or not isinstance(noted.get("note", ""), str)
        ):
            raise ValueError(f"trial {self.number} has an entry that no search writes")


def _row(number: int, key: str | None, outcome: str, *others: Any) -> Row:
    """A stored row, its outcome by the name of now."""
    return Row(number, key, outcome, *others)


COLUMNS = "number, config, outcome, worker, begun, errors, document"
INSERT = (
    f"INSERT INTO chop_trials (study, {COLUMNS}) VALUES (:study, :number, :key, :outcome, :worker, "
    ":begun, :errors, :document)"
)
DOCUMENT = "UPDATE chop_trials SET document = :document WHERE study = :study AND number = :number"
MINE = "study = :study AND number = :number AND worker = :worker AND outcome = 'running'"


def _parse(text: str, what: str) -> dict[str, Any]:
    """A document of the storage."""
    try:
        found: dict[str, Any] = parse_json(text)
    except ConfigError as error:
        raise CheckpointError(f"the storage of the search is broken: {what}: {error}.") from None
    return found


class Ledger:
    """The rows of one study, and this process's copy of them.

    Args:
        engine: an open storage.
        study: the study's name.

    Attributes:
        rows: as they were at the last `sync`, by number.
        by_key: number of the row that has claimed a configuration, by its key.
        open: numbers of the rows that wait or run.
    """

    def __init__(self, engine: sa.Engine, study: str) -> None:
        self.engine, self.study = engine, study
        self.rows: list[Row] = []
        self.by_key: dict[str, int] = {}
        self.open: set[int] = set()

    def begin(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """What the study was begun with: `document`, where this is its beginning."""
        from sqlalchemy.exc import IntegrityError

        with suppress(IntegrityError):  # it was begun
            self._write(
                "INSERT INTO chop_studies (study, document) VALUES (:study, :document)",
                document=json.dumps(document),
            )
        return self.document()

    def document(self) -> dict[str, Any]:
        """What is known of the study; empty where there is none of that name."""
        rows = self._read("SELECT document FROM chop_studies WHERE study = :study")
        return _parse(rows[0][0], f"search '{self.study}'") if rows else {}

    def note(self, name: str, value: Any) -> None:
        """Adds an entry to what is known of the study."""
        self._write(
            "UPDATE chop_studies SET document = :document WHERE study = :study",
            document=json.dumps(self.document() | {name: value}),
        )

    def sync(self) -> list[Row]:
        """Reads the rows that were added, and those that were not finished at the last call."""
        import sqlalchemy as sa

        statement = sa.text(
            f"SELECT {COLUMNS} FROM chop_trials WHERE study = :study "
            "AND (number >= :next OR number IN :open) ORDER BY number"
        ).bindparams(sa.bindparam("open", expanding=True))
        values = {"next": len(self.rows), "open": sorted(self.open)}
        if len(self.open) > MOST_OPEN:
            values = {"next": min(self.open), "open": []}
        found = [_row(*row) for row in self._read(statement, **values)]
        for row in found:
            self._put(row)
        return found

    def _put(self, row: Row) -> None:
        self.rows[row.number : row.number + 1] = [row]
        if row.key is not None:
            self.by_key[row.key] = row.number
        (self.open.discard if row.is_finished else self.open.add)(row.number)

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """The trials as records, as they were at the last `sync`."""
        return tuple(row.record for row in self.rows)

    def unfinished(self, outcome: str) -> list[Row]:
        """The rows that are `WAITING`, or those that are `RUNNING`."""
        return [self.rows[n] for n in sorted(self.open) if self.rows[n].outcome == outcome]

    def claim(self, key: str, document: Mapping[str, Any], worker: str, limit: int) -> Row | None:
        """Claims a configuration, while fewer than `limit` are claimed or queued.

        Args:
            key: of the configuration.
            document: with the `config`.
            worker: who will measure it.
            limit: how many configurations may be claimed in all.
        Returns: the row of the configuration, which may wait, or be another worker's; None when
            the limit is reached.
        """
        self._insert(key, RUNNING, worker, document, limit)
        return self.rows[self.by_key[key]] if key in self.by_key else None

    def claim_row(self, row: Row, worker: str, limit: float = math.inf) -> Row | None:
        """Claims a queued trial, or a running one of a dead worker.

        Returns: None where another worker was faster, or the queued one is beyond the limit.
        """
        is_queued = row.outcome == WAITING
        if is_queued and sum(number < row.number for number in self.by_key.values()) >= limit:
            return None
        self._write(
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
        """The row, where the worker has it.

        It is read, since a connection may break after the server has done its work.
        """
        self.sync()
        stored = self.rows[row.number]
        return stored if stored.worker == worker else None

    def report(self, row: Row, worker: str, document: Mapping[str, Any]) -> None:
        """Lets other workers see how far a running trial is."""
        self._write(
            f"UPDATE chop_trials SET document = :document WHERE {MINE}",
            number=row.number,
            worker=worker,
            document=json.dumps(document),
        )

    def finish(self, row: Row, worker: str, outcome: str, document: Mapping[str, Any]) -> bool:
        """Writes the end of a trial, once; False where it is no longer this worker's."""
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
        return is_written or self._mine(row, worker) is not None

    def release(self, row: Row, worker: str, *, errors: int) -> None:
        """Releases a running trial for other workers of the study."""
        self._write(
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
        tell: Callable[[], Mapping[str, Any]] | None = None,
    ) -> int | None:
        """Adds a trial that measured nothing.

        Args:
            outcome: outcome of the trial.
            document: with the `config`.
            number: number of the trial. None: the next free one.
            tell: makes the document of the row instead, once nobody else can have the number.
        Returns: its number; None where another worker's trial has the one that was asked for.
        """
        added = self._insert(None, outcome, NO_WORKER, document, number=number, tell=tell)
        return None if number not in (None, added) else added

    def queue(self, key: str, config: Config) -> None:
        """Adds a trial that waits, unless its configuration is known."""
        self._insert(key, WAITING, NO_WORKER, {"config": dict(config)})

    def _insert(
        self,
        key: str | None,
        outcome: str,
        worker: str,
        document: Mapping[str, Any],
        limit: float = math.inf,
        number: int | None = None,
        tell: Callable[[], Mapping[str, Any]] | None = None,
    ) -> int:
        """Adds a row, unless its key is known, the limit of keys reached, or its number taken.

        Returns: the number of the row, where it was added.
        """
        import sqlalchemy as sa
        from sqlalchemy.exc import IntegrityError

        # Once: a transaction may be done again.
        told = functools.cache(lambda: json.dumps(tell())) if tell is not None else None

        def insert(connection: sa.Connection) -> Row:
            values = {"study": self.study, **asdict(row)}
            connection.execute(sa.text(INSERT), values)
            if told is None:
                return row
            values["document"] = told()
            connection.execute(sa.text(DOCUMENT), values)
            return replace(row, document=values["document"])

        text = json.dumps(document)
        while key is None or (key not in self.by_key and len(self.by_key) < limit):
            if number not in (None, len(self.rows)):
                break
            row = Row(len(self.rows), key, outcome, worker, 1, 0, text)
            with suppress(IntegrityError):
                self._put(self._transact(insert))
                return row.number
            self.sync()  # another worker has added this number, or this key
        return len(self.rows)

    def heartbeat(self, worker: str) -> None:
        """Counts one more sign of life of a worker."""
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
        """How many signs of life each worker has given."""
        rows = self._read("SELECT worker, beat FROM chop_workers WHERE study = :study")
        return {worker: int(beat) for worker, beat in rows}

    def _write(self, statement: str, **values: Any) -> bool:
        """Runs one statement in a transaction of its own; True when it changed a row."""
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
        """Runs a transaction; a server that went away is waited for.

        A broken connection may leave a transaction done or not: every `work` may be done again.
        """
        from sqlalchemy.exc import OperationalError

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
    """Makes the tables where they are missing."""
    import sqlalchemy as sa
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    def make() -> None:
        with engine.begin() as connection:
            for statement in TABLES:
                connection.execute(sa.text(statement))

    try:
        make()
    except (IntegrityError, ProgrammingError):  # PostgreSQL: another worker makes them now
        make()


def studies(engine: sa.Engine) -> list[str]:
    """The names of the studies in a storage."""
    import sqlalchemy as sa

    if not sa.inspect(engine).has_table("chop_studies"):
        return []
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT study FROM chop_studies ORDER BY study"))
        return [name for (name,) in found]
