"""Optuna views of a search: live dashboard, or export as an Optuna database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from chop.base.files import atomic_file
from chop.base.installed import how_to_get
from chop.errors import ChopError, ConfigError, UnavailableError
from chop.search.reading import find_storage, read_ledger, study_names

if TYPE_CHECKING:
    from optuna.storages import InMemoryStorage

    from chop.search.optuna_study import InMemoryStudy

FOLLOW_SECONDS = 3.0
"""Seconds between refreshes of a running search."""


class _Follower:
    """Live copy of a storage's studies in an in-memory Optuna storage.

    Args:
        storage: output folder, file or URL of searches.
        name: name of a study. None for all studies.

    Attributes:
        memory: in-memory Optuna storage. Changes made to it are discarded.
    """

    def __init__(self, storage: str, name: str | None = None) -> None:
        from optuna.storages import InMemoryStorage

        self.url, self.name = find_storage(storage, name)
        self.memory: InMemoryStorage = InMemoryStorage()
        self._mirrors: dict[str, InMemoryStudy] = {}

    def refresh(self) -> None:
        """Copies trials that were started, reported or finished since the last refresh.

        Raises:
            UnavailableError: if the storage does not exist or was removed.
            ConfigError: if the storage has no study of that name.
        """
        from optuna.pruners import NopPruner

        from chop.search.optuna_study import InMemoryStudy

        for name in [self.name] if self.name else study_names(self.url):
            stored, ledger = read_ledger(self.url, name)
            if name not in self._mirrors:
                space, goals = stored["space"], stored["goals"]
                self._mirrors[name] = InMemoryStudy(
                    name, space, goals, "text", NopPruner(), self.memory
                )
            self._mirrors[name].follow(ledger.rows)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Context manager with a thread that refreshes the studies every `FOLLOW_SECONDS`."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(FOLLOW_SECONDS):
                # A server may recover, and the dashboard can delete a study.
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
    """Serves Optuna's dashboard for a finished or running search until interrupted.

    Args:
        storage: output folder, file or URL of searches.
        name: name of a study. None for all studies.
        host: address to listen on. The dashboard has no password.
        port: port to listen on.
    Raises:
        UnavailableError: if optuna-dashboard is not installed, the storage does not exist, or the
            port is in use.
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
        raise UnavailableError(
            f"{host}:{port}: {reason}; choose another port with --port."
        ) from None


def _server() -> Callable[..., None]:
    try:
        from optuna_dashboard import run_server
    except ImportError:
        raise UnavailableError(
            f"the dashboard is not installed: {how_to_get('dashboard')}."
        ) from None
    server: Callable[..., None] = run_server
    return server


def export_study(storage: str, path: Path, name: str | None = None) -> int:
    """Exports a study as an Optuna database for Optuna's own tools.

    Args:
        storage: output folder, file or URL of a search.
        path: new SQLite file.
        name: name of the study. None if the storage has a single one.
    Returns: the number of exported trials.
    Raises:
        ConfigError: if the file exists.
    """
    import optuna
    import sqlalchemy as sa

    from chop.search.optuna_study import quiet

    if path.exists():
        raise ConfigError(f"'{path}' already exists: choose a new file.")
    stored, _ = read_ledger(storage, name)
    follower = _Follower(stored["url"], stored["name"])
    follower.refresh()
    with atomic_file(path) as temporary, quiet():
        url = sa.URL.create("sqlite", database=str(temporary)).render_as_string()
        target = optuna.storages.RDBStorage(url)
        try:
            optuna.copy_study(
                from_study_name=stored["name"], from_storage=follower.memory, to_storage=target
            )
        finally:
            target.remove_session()
            target.engine.dispose()
    return len(optuna.load_study(study_name=stored["name"], storage=follower.memory).trials)
