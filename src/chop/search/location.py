"""What a storage and a study are called, and what of that may be printed."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from chop.errors import ConfigError
from chop.tables import printable

if TYPE_CHECKING:
    import sqlalchemy as sa

MEMORY = "memory"
"""Storage of a search that lives and dies with its process: for trials of milliseconds."""
FILE_NAME = "search.db"
POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
USER_PART = re.compile(r"[^:]*://([^:/]*)(?::[^@]*)?@")
"""Begins a URL; its group is the user's name as it is written."""
EXPECTED_URL = "expected postgresql://USER@HOST:PORT/DATABASE"
SHOWN_OPTIONS = ("host", "port", "dbname", "user", "sslmode", "connect_timeout")
"""Options of a URL that may be printed; any other may be a secret."""
MAX_NAME_BYTES = 200


def check_study_name(name: str) -> str:
    """The name, where it can be a study's: one line that can be a folder's name.

    Raises:
        ConfigError: it has other characters than letters, digits, spaces and `-_.,+=`, begins with
            a dot or `search.db`, begins or ends with a space, ends with a dot, or is empty or
            longer than 200 bytes.
    """
    fits = all(c.isalnum() or c in "-_.,+= " for c in name) and name == name.strip(" ").rstrip(".")
    size = len(name.encode(errors="replace"))
    if not fits or name.startswith((".", FILE_NAME)) or not 0 < size <= MAX_NAME_BYTES:
        raise ConfigError(
            f"name of a study: expected letters, digits, spaces and -_.,+=, at most "
            f"{MAX_NAME_BYTES} bytes, no dot or space at an end and not '{FILE_NAME}', for it "
            f"names a folder too; got '{printable(name[:MAX_NAME_BYTES])}'."
        )
    return name


def storage_url(storage: str | None, out: Path | None) -> str:
    """The URL of a storage as people name it; that of a file is absolute.

    Args:
        storage: None for a SQLite file in `out`; "memory"; `sqlite:///FILE`; `postgresql://...`;
            the path of a SQLite file, or of the folder that has a `search.db`.
        out: the output folder.
    Raises:
        ConfigError: neither names a storage, it is of another kind, or its URL is malformed.
    """
    if storage is None and out is None:
        raise ConfigError("a search needs an `out` folder, or `storage`, to keep its trials.")
    if storage is None:
        return _file_url(Path(out or ".") / FILE_NAME)
    given = storage.strip()  # a URL out of a file ends with its line
    if given == MEMORY:
        return MEMORY
    kind = given.partition(":")[0].lower()
    if kind in POSTGRESQL:
        url = f"postgresql+psycopg://{given.partition('://')[2]}"
        _check_server_url(url)
        return url
    if kind == "sqlite":
        return _file_url(_file_of(given))
    if "://" in given:
        raise ConfigError(
            f"storage of kind '{kind if kind.isalnum() else '...'}': expected postgresql://..., "
            f"sqlite:///FILE, a file or '{MEMORY}'."
        )
    if not given:
        raise ConfigError("storage: got an empty text (is a variable not set?).")
    path = Path(storage).expanduser()
    try:
        return _file_url(path / FILE_NAME if path.is_dir() else path)
    except OSError as error:
        raise ConfigError(f"storage '{printable(storage[:60])}...': {error.strerror}.") from None


def _file_url(file: Path) -> str:
    import sqlalchemy as sa

    try:
        return sa.URL.create("sqlite", database=str(file.absolute())).render_as_string()
    except UnicodeEncodeError:
        name = printable(str(file))
        raise ConfigError(f"storage '{name}': expected a path that is UTF-8.") from None


def _file_of(url: str) -> Path:
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except Exception:  # a port that is no number, and what else parsers raise
        parsed = sa.URL.create("sqlite")
    if not parsed.database or parsed.database == ":memory:" or parsed.host or parsed.query:
        raise ConfigError(
            "storage: expected sqlite:///FILE, with ? and # of the file's name as %3F and %23; "
            f"'{MEMORY}' keeps nothing."
        )
    return Path(parsed.database).expanduser()


def _check_server_url(url: str) -> None:
    """Refuses what a parser would read otherwise than it was meant; prints nothing of it."""
    parsed = _parsed(url)
    if parsed is None:
        raise ConfigError(
            f"storage: this PostgreSQL URL cannot be read; {EXPECTED_URL}, where @ : / ? # & of "
            "names and passwords are written %40 %3A %2F %3F %23 %26."
        )
    if not (parsed.host or parsed.database or parsed.query.get("host")):
        raise ConfigError(
            f"storage: this PostgreSQL URL names no host and no database; {EXPECTED_URL}."
        )
    if any(isinstance(value, tuple) and key != "host" for key, value in parsed.query.items()):
        raise ConfigError("storage: an option of this PostgreSQL URL is given twice.")
    known = _server_options()
    wrong = next((key for key in parsed.query if known and key not in known), None)
    if wrong is not None:
        near = get_close_matches(wrong, known, 1)
        raise ConfigError(
            "storage: an option of this PostgreSQL URL is none that PostgreSQL knows"
            + (f", did you mean {near[0]}?" if near else "; & in a password is written %26.")
        )


def _parsed(url: str) -> sa.URL | None:
    """A server's URL in parts; None where it is malformed, or would be read as it was not meant."""
    import sqlalchemy as sa

    user = USER_PART.match(url)
    name, rest = (user[1], url[user.end() :]) if user else ("", url.partition("://")[2])
    place, _, options = rest.partition("?")
    pairs = [option for option in options.split("&") if option]
    if set(name) & set("?&=#@") or set(place) & set("@#") or not all("=" in p for p in pairs):
        return None
    try:
        parsed = sa.make_url(url)
    except Exception:  # a port that is no number, and what else parsers raise
        return None
    return parsed if parsed.port is None or 0 < parsed.port < 65536 else None


def _server_options() -> list[str]:
    """Names of PostgreSQL's connection parameters; none where its driver is not installed."""
    if find_spec("psycopg") is None:
        return []
    from psycopg import pq

    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


def storage_file(url: str) -> Path | None:
    """The SQLite file of a URL from `storage_url`; None of a server or of memory."""
    import sqlalchemy as sa

    database = sa.make_url(url).database if url.startswith("sqlite") else None
    return None if database is None else Path(database)


def without_password(url: str) -> str:
    """A URL from `storage_url` as it may be printed, and as commands take it; a file as a path."""
    if url == MEMORY:
        return MEMORY
    if url.startswith("sqlite"):
        return printable(str(storage_file(url)))
    parsed = _parsed(url)
    if parsed is None:
        return f"{url.partition('://')[0]}://..."
    query = {k: v if k in SHOWN_OPTIONS else "***" for k, v in parsed.query.items()}
    shown = parsed.set(drivername="postgresql", query=query)
    return printable(shown.render_as_string(hide_password=True).replace("%2A%2A%2A", "***"))


def secrets_of(url: str) -> list[str]:
    """Passwords, and what else of a URL from `storage_url` is never printed."""
    parsed = None if url == MEMORY or url.startswith("sqlite") else _parsed(url)
    if parsed is None:
        return []
    options = [str(value) for key, value in parsed.query.items() if key not in SHOWN_OPTIONS]
    return [text for text in (str(parsed.password or ""), *options) if text]
