"""Optuna view of a search: live in its dashboard, or as a database of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from chop.base.files import atomic_file
from chop.errors import ChopError, ConfigError, UnavailableError
from chop.search.reading import find_storage, read_ledger, study_names

if TYPE_CHECKING:
    from optuna.storages import InMemoryStorage

    from chop.search.optuna_study import InMemoryStudy

FOLLOW_SECONDS = 3.0
"""Seconds between two refreshes of a running search."""


class _Follower:
    """Studies of a storage, kept up to date in Optuna's memory.

    Args:
        storage: output folder, file or URL of searches.
        name: of the study; None takes all.

    Attributes:
        memory: Optuna's storage; what is written to it is not kept.
    """

    def __init__(self, storage: str, name: str | None = None) -> None:
        from optuna.storages import InMemoryStorage

        self.url, self.name = find_storage(storage, name)
        self.memory: InMemoryStorage = InMemoryStorage()
        self._mirrors: dict[str, InMemoryStudy] = {}

    def refresh(self) -> None:
        """Copies the trials that were started, reported or finished since the last refresh.

        Raises:
            UnavailableError: the storage is not there (any more).
            ConfigError: it has no study of that name.
        """
        from optuna.pruners import NopPruner

        from chop.search.optuna_study import InMemoryStudy

        for name in [self.name] if self.name else study_names(self.url):
            noted, ledger = read_ledger(self.url, name)
            if name not in self._mirrors:
                space, goals = noted["space"], noted["goals"]
                self._mirrors[name] = InMemoryStudy(
                    name, space, goals, "text", NopPruner(), self.memory
                )
            self._mirrors[name].follow(ledger.rows)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Context in which a thread refreshes the studies every `FOLLOW_SECONDS`."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(FOLLOW_SECONDS):
                # A server may come back; a study may be deleted in the dashboard.
                with suppress(ChopError, KeyError):
                    self.refresh()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def serve_dashboard(
    storage: str, name: str | None = None, host: str = "127.0.0.1", port: int = 8080
) -> None:
    """Serves Optuna's dashboard of a search, running or not, until it is interrupted.

    Args:
        storage: output folder, file or URL of searches.
        name: of the study; None shows all of the storage.
        host: address to listen on; the dashboard asks nobody for a password.
        port: of that address.
    Raises:
        UnavailableError: optuna-dashboard is not installed, the storage is not there, or the port
            is taken.
    """
    run_server = _server()
    follower = _Follower(storage, name)
    follower.refresh()
    Console().print(
        f"dashboard: http://{host}:{port} (stop it with Ctrl-C)", highlight=False, markup=False
    )
    try:
        with follower.following():
            run_server(follower.memory, host=host, port=port)
    except OSError as error:
        if isinstance(error, ChopError):
            raise
        reason = error.strerror or error
        raise UnavailableError(f"{host}:{port}: {reason}; give another by --port.") from None


def _server() -> Callable[..., None]:
    try:
        from optuna_dashboard import run_server
    except ImportError:
        raise UnavailableError(
            "the dashboard is not installed: pip install 'mase-chop[dashboard]'."
        ) from None
    server: Callable[..., None] = run_server
    return server


def export_study(storage: str, path: Path, name: str | None = None) -> int:
    """Writes a study as an ordinary Optuna database, which Optuna's own tools open.

    Args:
        storage: output folder, file or URL of a search.
        path: a SQLite file that is not there yet.
        name: of the study; None where the storage has one.
    Returns: how many trials it has.
    Raises:
        ConfigError: the file is there.
    """
    import optuna
    import sqlalchemy as sa

    from chop.search.optuna_study import quiet

    if path.exists():
        raise ConfigError(f"'{path}' is there already: name a new file.")
    noted, _ = read_ledger(storage, name)
    follower = _Follower(noted["url"], noted["name"])
    follower.refresh()
    with atomic_file(path) as temporary, quiet():
        url = sa.URL.create("sqlite", database=str(temporary)).render_as_string()
        target = optuna.storages.RDBStorage(url)
        try:
            optuna.copy_study(
                from_study_name=noted["name"], from_storage=follower.memory, to_storage=target
            )
        finally:
            target.remove_session()
            target.engine.dispose()
    return len(optuna.load_study(study_name=noted["name"], storage=follower.memory).trials)
