"""Storage URLs and study names: parsing, validation, redaction of secrets."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, unquote_plus

from chop.base.tables import printable
from chop.errors import ConfigError

MEMORY = "memory"
"""Storage of a search that lives and dies with its process: for trials of milliseconds."""
FILE_NAME = "search.db"
FILE_URL = re.compile(r"sqlite:///(?P<file>(?!:memory:)[^?#]+)")
SERVERS = ("postgresql", "postgres", "postgresql+psycopg")
SERVER_URL = re.compile(
    r"postgresql\+psycopg://(?:(?P<user>[^:/?&=#@]*)(?::(?P<password>[^@]*))?@)?"
    r"(?P<place>(?:\[[^]/?#@]*\]|[^:/?#@]*)(?::\d+)?(?:/[^?#@]*)?)"
    r"(?:\?(?P<options>[^=&#@]+=[^&#@]*(?:&[^=&#@]+=[^&#@]*)*))?"
)
"""What is written otherwise, parsers may read as it was not meant: a password as a host."""
SHOWN_OPTIONS = ("host", "port", "dbname", "user", "sslmode", "connect_timeout")
"""Options of a URL that may be printed; any other may be a secret."""
STUDY_NAME = re.compile(rf"(?!\.| |{FILE_NAME})[\w\-.,+=() ]+(?<![. ])")
MAX_NAME_BYTES = 200


def check_study_name(name: str) -> str:
    """The name, where it can be a study's: one line that can be a folder's name.

    Raises:
        ConfigError: it has other characters than letters, digits, spaces and `-_.,+=()`, begins
            with a dot or `search.db`, begins or ends with a space, ends with a dot, or is empty or
            longer than 200 bytes.
    """
    size = len(name.encode(errors="replace"))
    if not STUDY_NAME.fullmatch(name) or size > MAX_NAME_BYTES:
        raise ConfigError(
            f"name of a study: expected letters, digits, spaces and -_.,+=(), at most "
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
    if storage is None:
        if out is None:
            raise ConfigError("a search needs an `out` folder, or `storage`, to keep its trials.")
        return _file_url(Path(out) / FILE_NAME)
    given = storage.strip()  # a URL out of a file ends with its line
    kind = given.partition(":")[0].lower()
    if given == MEMORY:
        return MEMORY
    if kind in SERVERS:
        return _server_url(given)
    if kind == "sqlite":
        found = FILE_URL.fullmatch(given)
        if found is None:
            raise ConfigError(
                "storage: expected sqlite:///FILE, with ? and # of the file's name as %3F and %23; "
                f"'{MEMORY}' keeps nothing."
            )
        return _file_url(Path(unquote(found["file"])))
    if "://" in given:
        raise ConfigError(
            f"storage of kind '{kind if kind.isalnum() else '...'}': expected postgresql://..., "
            f"sqlite:///FILE, a file or '{MEMORY}'."
        )
    if not given:
        raise ConfigError("storage: got an empty text (is a variable not set?).")
    return _file_url(Path(storage))


def _file_url(path: Path) -> str:
    """The URL of a file, or of the one in a folder."""
    path = path.expanduser().absolute()
    try:
        return f"sqlite:///{quote(str(path / FILE_NAME if path.is_dir() else path))}"
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or "expected a path that is UTF-8"
        raise ConfigError(f"storage '{printable(str(path)[:60])}': {reason}.") from None


def _server_url(given: str) -> str:
    """Prints nothing of a URL that cannot be read: it may be a password."""
    url = f"postgresql+psycopg://{given.partition('://')[2]}"
    found = SERVER_URL.fullmatch(url)
    if found is None or not (found["place"] or found["options"]):
        raise ConfigError(
            "storage: this PostgreSQL URL cannot be read; expected "
            "postgresql://USER@HOST:PORT/DATABASE, where @ : / ? # & of names and passwords are "
            "written %40 %3A %2F %3F %23 %26."
        )
    return url


def storage_file(url: str) -> Path | None:
    """The SQLite file of a URL from `storage_url`; None of a server or of memory."""
    found = FILE_URL.fullmatch(url)
    return None if found is None else Path(unquote(found["file"]))


def without_password(url: str) -> str:
    """A URL from `storage_url` as it may be printed, and as commands take it; a file as a path.

    Secrets are left out, as they are where a file has them.
    """
    if url == MEMORY:
        return MEMORY
    if file := storage_file(url):
        return printable(str(file))
    found = SERVER_URL.fullmatch(url)
    if found is None:
        return "postgresql://..."
    user = "" if found["user"] is None else f"{found['user']}@"
    shown = "&".join(f"{k}={v}" for k, v in _options(found) if k in SHOWN_OPTIONS)
    return printable(f"postgresql://{user}{found['place']}{'?' if shown else ''}{shown}")


def list_secrets(url: str) -> list[str]:
    """Passwords, and what else of a URL from `storage_url` is never printed."""
    found = SERVER_URL.fullmatch(url)
    if found is None:
        return []
    options = [unquote_plus(value) for key, value in _options(found) if key not in SHOWN_OPTIONS]
    return [text for text in (unquote(found["password"] or ""), *options) if text]


def _options(found: re.Match[str]) -> list[tuple[str, str]]:
    pairs = (option.partition("=") for option in (found["options"] or "").split("&"))
    return [(key, value) for key, _, value in pairs]
