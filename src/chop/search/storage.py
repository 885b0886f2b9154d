"""Database engines of storages (SQLite, PostgreSQL) and their error messages.

Optuna's `JournalStorage` was measured as an alternative (`benchmarks/search_storage.py`). It does
not claim configurations, so two workers measured 60 of 200 twice, a killed worker's trial stays in
the running state, and the next writer waits 30 s for its lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files import atomic_new_file
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import open_regular
from chop.base.files.temporary import scratch_folder
from chop.base.installed import require
from chop.base.tables import printable
from chop.errors import CheckpointError, ChopError, UnavailableError, WriteError
from chop.runs import read_manifest
from chop.search.location import FILE_NAME, MEMORY, list_secrets, storage_file, without_password

if TYPE_CHECKING:
    import sqlalchemy as sa

LOCK_SECONDS = 60
"""Seconds that a writer waits for the lock of a SQLite file."""
MAX_BYTES = 2**26
"""Maximum size of a text in a SQLite file."""
OTHERS = (
    "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') "
    "OR sql LIKE 'CREATE VIRTUAL%'"
)
NAMES_A_FILE = bytes.fromhex("d9d505f920a163d7")
"""Marker at the end of a rollback journal that names a super-journal of several databases."""
CONNECT_SECONDS = 10
"""Seconds to wait for a server."""
STUDIES = "chop_studies"
CLAIMS = "chop_claims"
"""Table of the earlier layout, which stored trials in Optuna's tables."""
DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ")
UNREADABLE = (ValueError, LookupError, TypeError)
"""Exceptions raised by corrupt rows: invalid text, invalid JSON, missing entries."""
NO_TEXT = "Could not decode to UTF-8"
"""Start of the corresponding sqlite3 message, which has no error code."""
UNWRITABLE = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")


def open_engine(url: str, *, create: bool = True, read_only: bool = False) -> sa.Engine:
    """Opens a storage without creating tables.

    A new SQLite file appears atomically with its header, so that an empty file is never valid.

    Args:
        url: URL from `storage_url`.
        create: creates a missing SQLite file. If False, a missing file is an error.
        read_only: opens a snapshot without write access: an in-memory copy of a SQLite file, or a
            read-only session of a server.
    Raises:
        UnavailableError: if the file or server is missing, refuses access, or has no search tables,
            or a driver is missing.
        WriteError: if the file cannot be created.
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

    require("a PostgreSQL storage", "psycopg", extra="postgres")
    given = sa.make_url(url).query
    options = {"connect_timeout": given.get("connect_timeout", CONNECT_SECONDS)}
    if read_only:
        options["options"] = f"{given.get('options', '')} -c default_transaction_read_only=on"
    return sa.create_engine(url, pool_pre_ping=True, connect_args=options)


def _file_engine(file: Path, create: bool, read_only: bool) -> sa.Engine:
    import sqlalchemy as sa

    file = Path(os.path.realpath(file))  # SQLite's log is next to the target of a link
    _check_file(file, create)
    if read_only:
        return _memory_engine(_copy_in_memory(file))
    engine = sa.create_engine("sqlite://", creator=lambda: _connect(file), poolclass=sa.QueuePool)
    _refuse_another_file(engine, file)
    return engine


def _in_memory() -> sqlite3.Connection:
    return _bounded(sqlite3.connect(":memory:", check_same_thread=False))


def _bounded(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Limits the size of texts in rows and expressions of a file."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
    return connection


def _memory_engine(connection: sqlite3.Connection) -> sa.Engine:
    """Returns an engine for the single connection of an in-memory database."""
    import sqlalchemy as sa

    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=sa.StaticPool)
    # Python warns of connections that are garbage collected while open.
    weakref.finalize(engine, connection.close)
    return engine


def _connect(file: Path) -> sqlite3.Connection:
    """Connects to an existing file."""
    uri = f"{file.as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, check_same_thread=False)
    with _closed_on_error(_bounded(connection)):
        # With write-ahead logging, this setting survives a killed process. A machine that loses
        # power may lose the last trials, but never the file.
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
    """Checks that a file exists and is not empty, and creates it if requested."""
    name = _quoted(file)
    logs = [log for log in _logs(file) if _is_log(log)]
    if not file.exists():  # checked after its logs, which another worker may create meanwhile
        is_beside = (file.parent.parent / FILE_NAME).exists()  # of the study in this folder
        if not create and not is_beside and (kind := _kind_of_run(file)):
            raise UnavailableError(
                f"{_quoted(file.parent)} is from chop {kind}: expected the output folder of a chop "
                "search, or its storage."
            )
        if not create:
            raise UnavailableError(f"no search found in {name}.")
        if logs:
            raise UnavailableError(
                f"storage {name} does not exist, but its log {_quoted(logs[0])} does: restore the "
                "file, or delete the log to start a new search."
            )
        _make_file(file)
    if not file.is_file():
        raise UnavailableError(f"storage {name} is a folder, device or pipe, expected a file.")
    if not file.stat().st_size:
        raise UnavailableError(
            f"storage {name} is empty (0 bytes) and has no search: restore it from a copy, "
            "or delete it to start a new search."
        )


def _is_log(path: Path) -> bool:
    """Returns whether a log file exists.

    SQLite reads logs together with the database, even through links. It also deletes the file named
    at the end of a rollback journal (super-journal), which searches never use.

    Raises:
        UnavailableError: if the log is a link or not a regular file, or names another file.
    """
    with (
        library_errors(path, error=UnavailableError),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open_regular(path, "artifact", follow_links=False) as log,
    ):
        log.seek(max(os.fstat(log.fileno()).st_size - len(NAMES_A_FILE), 0))
        if log.read() == NAMES_A_FILE:
            raise UnavailableError(
                f"{_quoted(path)} names another file, unlike logs of a search: delete it."
            )
        return True
    return False


def _check_tables(engine: sa.Engine, url: str) -> None:
    """Rejects databases of other programs; a server may also contain other tables."""
    import sqlalchemy as sa

    if storage_file(url):
        with engine.connect() as connection:
            others = connection.execute(sa.text(OTHERS)).scalars().all()
        if others:  # a view may have infinitely many rows
            raise UnavailableError(
                f"storage {without_password(url)} has views, triggers or virtual tables, which "
                f"searches do not create ({printable(', '.join(others))[:60]}): choose another "
                "folder or file."
            )
    tables = sa.inspect(engine).get_table_names()
    if CLAIMS in tables:
        whose = "an earlier version of chop, which kept trials in other tables"
    elif tables and STUDIES not in tables and storage_file(url):
        whose = "another program"
    else:
        return
    raise UnavailableError(
        f"storage {without_password(url)} belongs to {whose}: choose another folder, "
        "file or database."
    )


def _logs(file: Path) -> list[Path]:
    """Returns the log files of a SQLite database."""
    return [Path(f"{file}-wal"), Path(f"{file}-journal")]


def _make_file(file: Path) -> None:
    """Creates a SQLite file atomically; of several workers, one creates it."""
    try:
        with atomic_new_file(file) as fresh:
            try:
                with contextlib.closing(sqlite3.connect(fresh)) as connection:
                    # Write-ahead logging lets readers and a writer work at the same time.
                    connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.Error:
                for remaining in (*_logs(fresh), Path(f"{fresh}-shm")):
                    remaining.unlink(missing_ok=True)
                raise
    except (OSError, sqlite3.Error) as error:
        cause = error.__cause__ if isinstance(error, WriteError) else error
        reason = getattr(cause, "strerror", None) or cause
        raise WriteError(
            f"storage {_quoted(file)} cannot be created: {reason}; choose another folder."
        ) from None


def _copy_in_memory(file: Path) -> sqlite3.Connection:
    """Copies a database with its log into memory, without writing if needed.

    SQLite has to create files next to a database in write-ahead mode to read it. If it cannot, the
    database and its log are first copied to a temporary folder.
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
    """Copies the database, then its log, and repeats if a writer changed them meanwhile."""
    copy, log = folder / file.name, _logs(file)[0]
    while True:
        # Between the two copies, a checkpoint may move pages from the log into the database. The
        # modification time shows it.
        before = file.stat().st_mtime_ns
        shutil.copyfile(file, copy)
        _logs(copy)[0].unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(log, _logs(copy)[0])
        if file.stat().st_mtime_ns == before:
            return copy


def _refuse_another_file(engine: sa.Engine, file: Path) -> None:
    """Rejects a file that was replaced, because SQLite would keep writing to the deleted one."""
    import sqlalchemy as sa

    opened = file.stat().st_ino

    @sa.event.listens_for(engine, "do_connect")
    @sa.event.listens_for(engine, "checkout")
    def check_there(*connecting: Any) -> None:
        if not file.exists() or file.stat().st_ino != opened:
            raise UnavailableError(
                f"storage {_quoted(file)} was moved, deleted or replaced while it was in use: put "
                "it back and run the same search again."
            )


@contextlib.contextmanager
def open_for_reading(url: str, *, begun: bool = True) -> Iterator[sa.Engine]:
    """Opens a read-only snapshot of a storage as a context manager; see `storage_errors`.

    Args:
        url: URL from `storage_url`.
        begun: see `storage_errors`.
    Raises:
        UnavailableError: if the storage does not exist or cannot be used.
    """
    engine = open_engine(url, create=False, read_only=True)
    try:
        with storage_errors(url, begun=begun):
            yield engine
    finally:
        engine.dispose()


@contextlib.contextmanager
def storage_errors(url: str, *, begun: bool = True) -> Iterator[None]:
    """Context manager that turns storage failures into one-sentence errors without passwords.

    Args:
        url: URL from `storage_url`.
        begun: True if the study exists, so that finished trials are safe unless the file is
            corrupt. False while a storage is opened or read, where unreadable content means a
            corrupt file.
    Raises:
        UnavailableError: if the file or server cannot be used.
        WriteError: if the file cannot be written: disk full or read-only.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        # Chained exceptions may quote the URL.
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
    name = f"storage '{without_password(url)}'"
    is_unreadable = isinstance(error, UNREADABLE) and storage_file(url) is not None
    if kind.startswith(DAMAGED) or is_unreadable or reason.startswith(NO_TEXT):
        file = storage_file(url)
        if file is not None and file.name != FILE_NAME and _kind_of_run(file):
            return UnavailableError(
                f"{name} is no search: expected {FILE_NAME}, or the folder {_quoted(file.parent)}."
            )
        return UnavailableError(
            f"{name} is no search or is damaged ({reason[:60]}): restore it from a copy, or choose "
            "another file or folder for a new search."
        )
    safe = ". Finished trials are safe" if begun else ""
    if kind.startswith(UNWRITABLE):
        return WriteError(
            f"{name} cannot be written: {reason}; free some space or make it writable, then run "
            f"the same search again{safe}."
        )
    again = f"{safe}. When it is available, run the same search or `chop search resume`"
    return UnavailableError(f"{name} cannot be used: {reason}{again if begun else ''}.")


def _kind_of_run(file: Path) -> str:
    """Returns the command whose output folder a file is in, or ""."""
    with contextlib.suppress(CheckpointError):
        return read_manifest(file.parent).kind
    return ""


def _reason(url: str, error: BaseException) -> str:
    """Returns the first line of a driver's error without secrets."""
    message = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    text = message.splitlines()[0]
    if text.startswith("invalid connection option"):  # it may quote a part of a password
        text = "unknown PostgreSQL option; write & in a password as %26"
    for secret in list_secrets(url):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return printable(text).rstrip(".")


def _quoted(file: Path) -> str:
    return f"'{printable(str(file))}'"
