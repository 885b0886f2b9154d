"""Database engines of storages (SQLite, PostgreSQL), and their errors in one sentence.

Optuna's `JournalStorage` was measured in their place (`benchmarks/search_storage.py`): it claims no
configuration, so that two workers measured 60 of 200 again, a killed worker's trial stays running,
and the next writer waits 30 s for its lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files import atomic_new_file
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import open_regular
from chop.base.files.temporary import scratch_folder
from chop.base.tables import printable
from chop.errors import ChopError, UnavailableError, WriteError
from chop.search.location import MEMORY, list_secrets, storage_file, without_password

if TYPE_CHECKING:
    import sqlalchemy as sa

LOCK_SECONDS = 60
"""How long a writer waits for another one of the same SQLite file."""
MOST_BYTES = 2**26
"""Most bytes of a text in a SQLite file."""
OTHERS = (
    "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') "
    "OR sql LIKE 'CREATE VIRTUAL%'"
)
NAMES_A_FILE = bytes.fromhex("d9d505f920a163d7")
"""End of a rollback log that names the common log of several databases."""
CONNECT_SECONDS = 10
"""How long a server is waited for."""
STUDIES = "chop_studies"
CLAIMS = "chop_claims"
"""A table of the earlier layout, which kept trials in Optuna's tables."""
DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ")
UNREADABLE = (ValueError, LookupError, TypeError)
"""What a row raises whose bytes were changed: it is no text, no JSON, or lacks entries."""
NO_TEXT = "Could not decode to UTF-8"
"""Begins what Python's sqlite3 says of the same, without a code."""
UNWRITABLE = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")


def open_engine(url: str, *, create: bool = True, read_only: bool = False) -> sa.Engine:
    """Opens a storage; the caller makes its tables.

    A new SQLite file appears with its header or not at all, so that one of 0 bytes is never ours.

    Args:
        url: from `storage_url`.
        create: False: a SQLite file that is not there is an error.
        read_only: the storage as it is now, also where nothing can be written: of a SQLite file a
            copy in memory, of a server a session that cannot write.
    Raises:
        UnavailableError: the file or server is not there, refuses, or is none of ours; a driver
            is missing.
        WriteError: the file cannot be made.
    """
    if url == MEMORY:
        return _memory_engine(_in_memory())
    file = storage_file(url)
    with storage_errors(url, begun=False):
        if file is None:
            engine = _server_engine(url, read_only)
        else:
            engine = _file_engine(file, create and not read_only, read_only)
        try:
            _check_tables(engine, url)
        except BaseException:
            engine.dispose()
            raise
    return engine


def _server_engine(url: str, read_only: bool) -> sa.Engine:
    import sqlalchemy as sa

    if find_spec("psycopg") is None:
        raise UnavailableError("PostgreSQL needs a driver: pip install 'mase-chop[postgres]'.")
    given = sa.make_url(url).query
    options = {"connect_timeout": given.get("connect_timeout", CONNECT_SECONDS)}
    if read_only:
        options["options"] = f"{given.get('options', '')} -c default_transaction_read_only=on"
    return sa.create_engine(url, pool_pre_ping=True, connect_args=options)


def _file_engine(file: Path, create: bool, read_only: bool) -> sa.Engine:
    import sqlalchemy as sa

    file = Path(os.path.realpath(file))  # SQLite keeps its log beside the file that a link means
    _check_file(file, create)
    if read_only:
        return _memory_engine(_copy_in_memory(file))
    engine = sa.create_engine("sqlite://", creator=lambda: _connect(file), poolclass=sa.QueuePool)
    _refuse_another_file(engine, file)
    return engine


def _in_memory() -> sqlite3.Connection:
    return _bounded(sqlite3.connect(":memory:", check_same_thread=False))


def _bounded(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Bounds the texts that rows of a file have, or that its expressions make."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    return connection


def _memory_engine(connection: sqlite3.Connection) -> sa.Engine:
    """An engine of the one connection that a database in memory has, closed with the engine.

    Nobody has to dispose of what is in memory: it is gone with the last reference to it. Python
    warns of connections that are collected open.
    """
    import sqlalchemy as sa

    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=sa.StaticPool)
    weakref.finalize(engine, connection.close)
    return engine


def _connect(file: Path) -> sqlite3.Connection:
    """A connection to a file that is there.

    With write-ahead logging synchronous=NORMAL survives a killed process; a machine that loses
    power may lose the last trials, never the file.
    """
    uri = f"{file.as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, check_same_thread=False)
    with _closed_on_error(_bounded(connection)):
        connection.execute("PRAGMA synchronous=NORMAL")
    return connection


@contextlib.contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _check_file(file: Path, create: bool) -> None:
    """Makes sure that a file is there, and not empty."""
    shown = _shown(file)
    logs = [log for log in _logs(file) if _is_log(log)]
    if not file.exists():  # looked at after its logs, which another worker may make meanwhile
        if not create:
            raise UnavailableError(f"there is no search in {shown}.")
        if logs:
            raise UnavailableError(
                f"storage {shown} is gone, but its log {_shown(logs[0])} is there: put the file "
                "back, or delete the log to begin anew."
            )
        _make_file(file)
    if not file.is_file():
        raise UnavailableError(f"storage {shown} is a folder, device or pipe, expected a file.")
    if not file.stat().st_size:
        raise UnavailableError(
            f"storage {shown} is empty (0 bytes), which no search leaves: restore it from a copy, "
            "or delete it to begin anew."
        )


def _is_log(path: Path) -> bool:
    """Returns whether a log is there.

    SQLite reads it together with the file, through links. It also deletes a file that the end of a
    rollback log names: the common log of several databases, which no search has.

    Raises:
        UnavailableError: the log is a link or no file, or names another one.
    """
    with (
        library_errors(path, error=UnavailableError),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open_regular(path, "artifact", follow_links=False) as log,
    ):
        log.seek(max(os.fstat(log.fileno()).st_size - len(NAMES_A_FILE), 0))
        if log.read() == NAMES_A_FILE:
            raise UnavailableError(
                f"{_shown(path)} names another file, which no log of a search does: delete it."
            )
        return True
    return False


def _check_tables(engine: sa.Engine, url: str) -> None:
    """Refuses a database of another program; on a server others may have their tables too."""
    import sqlalchemy as sa

    if storage_file(url):
        with engine.connect() as connection:
            others = connection.execute(sa.text(OTHERS)).scalars().all()
        if others:  # a view may have rows without end
            raise UnavailableError(
                f"storage {without_password(url)} has views, triggers or virtual tables, which no "
                f"search makes ({printable(', '.join(others))[:60]}): name another folder or file."
            )
    tables = sa.inspect(engine).get_table_names()
    if CLAIMS in tables:
        whose = "an earlier version of chop, which kept trials in other tables"
    elif tables and STUDIES not in tables and storage_file(url):
        whose = "another program"
    else:
        return
    raise UnavailableError(
        f"storage {without_password(url)} is of {whose}: name another folder, file or database."
    )


def _logs(file: Path) -> list[Path]:
    """Where SQLite keeps what it has not yet written to the file itself."""
    return [Path(f"{file}-wal"), Path(f"{file}-journal")]


def _make_file(file: Path) -> None:
    """Makes a SQLite file in one step; of several workers one makes it, and the others see it.

    With write-ahead logging: readers and a writer do not wait for one another.
    """
    try:
        with atomic_new_file(file) as fresh:
            try:
                with contextlib.closing(sqlite3.connect(fresh)) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.Error:
                for left in (*_logs(fresh), Path(f"{fresh}-shm")):
                    left.unlink(missing_ok=True)
                raise
    except (OSError, sqlite3.Error) as error:
        cause = error.__cause__ if isinstance(error, WriteError) else error
        reason = getattr(cause, "strerror", None) or cause
        raise WriteError(
            f"storage {_shown(file)} cannot be made: {reason}; choose another folder."
        ) from None


def _copy_in_memory(file: Path) -> sqlite3.Connection:
    """The database as it is now, its log included, read without writing where that must be.

    To read a database in write-ahead mode SQLite has to make files beside it; where it cannot, the
    file and its log are copied to a temporary folder first.
    """
    try:
        return _loaded(file)
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(UNWRITABLE):
            raise
        with scratch_folder("search") as folder:
            return _loaded(_copied_with_log(file, folder))


def _loaded(file: Path) -> sqlite3.Connection:
    memory = _in_memory()
    with _closed_on_error(memory), contextlib.closing(_connect(file)) as source:
        source.execute("SELECT COUNT(*) FROM sqlite_master")  # `backup` waits for locks forever
        source.backup(memory)
    return memory


def _copied_with_log(file: Path, folder: Path) -> Path:
    """Copies both, the file first, and again while a writer moves the log into it meanwhile."""
    copy, log = folder / file.name, _logs(file)[0]
    while True:
        before = file.stat().st_mtime_ns
        shutil.copyfile(file, copy)
        _logs(copy)[0].unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(log, _logs(copy)[0])
        if file.stat().st_mtime_ns == before:
            return copy


def _refuse_another_file(engine: sa.Engine, file: Path) -> None:
    """SQLite writes on to a file that was deleted, where nobody will ever read it."""
    import sqlalchemy as sa

    opened = file.stat().st_ino

    @sa.event.listens_for(engine, "do_connect")
    @sa.event.listens_for(engine, "checkout")
    def check_there(*connecting: Any) -> None:
        if not file.exists() or file.stat().st_ino != opened:
            raise UnavailableError(
                f"storage {_shown(file)} was moved, deleted or replaced while it was in use: put "
                "it back and run the same search again."
            )


@contextlib.contextmanager
def open_for_reading(url: str, *, begun: bool = True) -> Iterator[sa.Engine]:
    """A storage as it is now, to be read, and closed after; see `storage_errors`.

    Args:
        url: from `storage_url`.
        begun: see `storage_errors`.
    Raises:
        UnavailableError: the storage is not there, or cannot be used.
    """
    engine = open_engine(url, create=False, read_only=True)
    try:
        with storage_errors(url, begun=begun):
            yield engine
    finally:
        engine.dispose()


@contextlib.contextmanager
def storage_errors(url: str, *, begun: bool = True) -> Iterator[None]:
    """Inside, a storage that fails raises one sentence, without passwords.

    Args:
        url: from `storage_url`.
        begun: the study is in the storage: what was finished is safe unless the file is damaged.
            False: a storage is opened or read, and nothing else is done: what cannot be read there
            is damaged.
    Raises:
        UnavailableError: the file or server cannot be used (any more).
        WriteError: the file cannot be written: no space left, or read-only.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        # What is chained may quote the URL.
        raise _storage_error(url, error.orig or error, begun) from None
    except ChopError:
        raise
    except (sqlite3.Error, OSError, *UNREADABLE) as error:
        if begun:
            raise
        raise _storage_error(url, error, begun) from None


def _storage_error(url: str, error: BaseException, begun: bool) -> ChopError:
    reason = _reason(url, error)
    kind = str(getattr(error, "sqlite_errorname", ""))
    shown = f"storage '{without_password(url)}'"
    is_unreadable = isinstance(error, UNREADABLE) and storage_file(url) is not None
    if kind.startswith(DAMAGED) or is_unreadable or reason.startswith(NO_TEXT):
        return UnavailableError(
            f"{shown} is damaged ({reason[:60]}): restore it from a copy, or name another file or "
            "folder to begin anew."
        )
    safe = "; finished trials are safe" if begun else ""
    if kind.startswith(UNWRITABLE):
        return WriteError(
            f"{shown} cannot be written: {reason}; free some space or make it writable, then run "
            f"the same search again{safe}."
        )
    again = f"{safe}; when it is back, run the same search again or `chop search resume`"
    return UnavailableError(f"{shown} cannot be used: {reason}{again if begun else ''}.")


def _reason(url: str, error: BaseException) -> str:
    """The first line of a driver's error, without what must not be printed."""
    said = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    text = said.splitlines()[0]
    if text.startswith("invalid connection option"):  # it quotes what may be half a password
        text = "an option is none that PostgreSQL knows; & in a password is written %26"
    for secret in list_secrets(url):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return printable(text).rstrip(".")


def _shown(file: Path) -> str:
    return f"'{printable(str(file))}'"
