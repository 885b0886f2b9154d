"""SQLite connections in tests: a warning of open ones under every Python, and Optuna's storages."""

from __future__ import annotations

import sqlite3
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

_connect = sqlite3.connect


class WarningConnection(sqlite3.Connection):
    """A connection that warns where it is collected open, as those of Python 3.13 do."""

    def __del__(self) -> None:
        try:
            self.total_changes  # noqa: B018
        except sqlite3.ProgrammingError:
            return
        text = f"unclosed database in {self!r}"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)


def warn_of_open_connections() -> None:
    """Lets older Pythons warn too: a test that leaves a connection open fails under each."""
    if sys.version_info < (3, 13):
        # The second is that of SQLAlchemy.
        sqlite3.connect = sqlite3.dbapi2.connect = _connect_with_warning  # type: ignore[assignment]


def _connect_with_warning(*place: Any, **settings: Any) -> sqlite3.Connection:
    return _connect(*place, **{"factory": WarningConnection, **settings})


@contextmanager
def optuna_storage(file: Path) -> Iterator[RDBStorage]:
    """Optuna's storage of a SQLite file, which Optuna itself leaves open.

    Args:
        file: of any name.
    """
    import optuna
    import sqlalchemy as sa

    url = sa.URL.create("sqlite", database=str(file)).render_as_string()
    storage = optuna.storages.RDBStorage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()
