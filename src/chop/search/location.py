"""Storage URLs and study names: parsing, validation, redaction of secrets."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, unquote_plus

from chop.base.tables import printable
from chop.errors import ConfigError

MEMORY = "memory"
"""Storage in memory, which ends with the process; for trials of milliseconds."""
FILE_NAME = "search.db"
FILE_URL = re.compile(r"sqlite:///(?P<file>(?!:memory:)[^?#]+)")
SERVERS = ("postgresql", "postgres", "postgresql+psycopg")
SERVER_URL = re.compile(
    r"postgresql\+psycopg://(?:(?P<user>[^:/?&=#@]*)(?::(?P<password>[^@]*))?@)?"
    r"(?P<place>(?:\[[^]/?#@]*\]|[^:/?#@]*)(?::\d+)?(?:/[^?#@]*)?)"
    r"(?:\?(?P<options>[^=&#@]+=[^&#@]*(?:&[^=&#@]+=[^&#@]*)*))?"
)
"""Strict pattern of server URLs. A looser parser could take a password for a host name."""
PRINTABLE_OPTIONS = ("host", "port", "dbname", "user", "sslmode", "connect_timeout")
"""URL options that may be printed; others may be secrets."""
STUDY_NAME = re.compile(rf"(?!\.| |{FILE_NAME})[\w\-.,+=() ]+(?<![. ])")
MAX_NAME_BYTES = 200


def check_study_name(name: str) -> str:
    """Returns a valid study name, which must also be usable as a folder name.

    Raises:
        ConfigError: if the name has characters other than letters, digits, spaces and `-_.,+=()`,
            begins with a dot or `search.db`, begins or ends with a space, ends with a dot, or is
            empty or longer than 200 bytes.
    """
    size = len(name.encode(errors="replace"))
    if not STUDY_NAME.fullmatch(name) or size > MAX_NAME_BYTES:
        raise ConfigError(
            "name of a study: expected letters, digits, spaces and -_.,+=(), at most "
            f"{MAX_NAME_BYTES} bytes, no dot or space at an end and not '{FILE_NAME}', because it "
            f"also names a folder; got '{printable(name[:MAX_NAME_BYTES])}'."
        )
    return name


def storage_url(storage: str | None, out: Path | None) -> str:
    """Returns the URL of a storage, with absolute file paths.

    Args:
        storage: None for a SQLite file in `out`; "memory"; `sqlite:///FILE`; `postgresql://...`;
            the path of a SQLite file, or of the folder that has a `search.db`.
        out: output folder, or None.
    Raises:
        ConfigError: if no storage is given, its kind is unknown, or its URL is malformed.
    """
    if storage is None:
        if out is None:
            raise ConfigError("a search needs an `out` folder, or `storage`, to store its trials.")
        return _file_url(Path(out) / FILE_NAME)
    given = storage.strip()  # a URL read from a file may end with a line break
    kind = given.partition(":")[0].lower()
    if given == MEMORY:
        return MEMORY
    if kind in SERVERS:
        return _server_url(given)
    if kind == "sqlite":
        match = FILE_URL.fullmatch(given)
        if match is None:
            raise ConfigError(
                "storage: expected sqlite:///FILE, with ? and # of the file's name as %3F and %23; "
                f"'{MEMORY}' stores nothing."
            )
        return _file_url(Path(unquote(match["file"])))
    if "://" in given:
        raise ConfigError(
            f"storage of kind '{kind if kind.isalnum() else '...'}': expected postgresql://..., "
            f"sqlite:///FILE, a file or '{MEMORY}'."
        )
    if not given:
        raise ConfigError("storage: got an empty text; is a variable not set?")
    return _file_url(Path(storage))


def _file_url(path: Path) -> str:
    """Returns the URL of a database file, or of `search.db` in a folder."""
    path = path.expanduser().absolute()
    try:
        return f"sqlite:///{quote(str(path / FILE_NAME if path.is_dir() else path))}"
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or "expected a UTF-8 path"
        raise ConfigError(f"storage '{printable(str(path)[:60])}': {reason}.") from None


def _server_url(given: str) -> str:
    """Checks a server URL. Errors do not print it, because it may contain a password."""
    url = f"postgresql+psycopg://{given.partition('://')[2]}"
    match = SERVER_URL.fullmatch(url)
    if match is None or not (match["place"] or match["options"]):
        raise ConfigError(
            "storage: this PostgreSQL URL cannot be read; expected "
            "postgresql://USER@HOST:PORT/DATABASE, where @ : / ? # & of names and passwords are "
            "written %40 %3A %2F %3F %23 %26."
        )
    return url


def storage_file(url: str) -> Path | None:
    """Returns the SQLite file of a URL from `storage_url`, or None for a server or memory."""
    match = FILE_URL.fullmatch(url)
    return None if match is None else Path(unquote(match["file"]))


def without_password(url: str) -> str:
    """Returns a storage URL without secrets, in the form that commands accept.

    Secrets stored in a file are omitted as well.
    """
    if url == MEMORY:
        return MEMORY
    if file := storage_file(url):
        return printable(str(file))
    match = SERVER_URL.fullmatch(url)
    if match is None:
        return "postgresql://..."
    user = "" if match["user"] is None else f"{match['user']}@"
    options = "&".join(f"{k}={v}" for k, v in _options(match) if k in PRINTABLE_OPTIONS)
    return printable(f"postgresql://{user}{match['place']}{'?' if options else ''}{options}")


def list_secrets(url: str) -> list[str]:
    """Returns passwords and other secrets of a URL from `storage_url`."""
    match = SERVER_URL.fullmatch(url)
    if match is None:
        return []
    options = [
        # In a query, + stands for a space.
        unquote_plus(value)
        for key, value in _options(match)
        if key not in PRINTABLE_OPTIONS
    ]
    return [text for text in (unquote(match["password"] or ""), *options) if text]


def _options(match: re.Match[str]) -> list[tuple[str, str]]:
    pairs = (option.partition("=") for option in (match["options"] or "").split("&"))
    return [(key, value) for key, _, value in pairs]
