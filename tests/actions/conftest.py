import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run_files import file_rows, recorded

TOY = "search toy"
"""A job that tests define."""
JOBS = ("bench", "compress", "emit", "evaluate", "export", "lower", "prune", "search", "shard")
JOBS += ("sweep",)


@pytest.fixture(scope="session", name="_seen", autouse=True)
def _files_of_runs() -> Iterator[list[tuple[str, str]]]:
    """What finished runs of the session have written, of module fixtures too."""
    with recorded() as seen:
        yield seen


@pytest.fixture(autouse=True)
def _files_are_on_the_page(_seen: list[tuple[str, str]]) -> Iterator[None]:
    """Each file that a job has written is in the table of `docs/run-files.md`."""
    yield
    files = {(kind, path) for kind, path in _seen if kind.startswith(JOBS) and kind != TOY}
    _seen.clear()
    rows = file_rows() if files else []
    lost = [each for each in sorted(files) if not any(row.has(*each) for row in rows)]
    assert lost == [], "docs/run-files.md has no row of these"


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are put together and not painted: their files are there, and empty."""
    import matplotlib.figure

    def touch(figure: object, path: str | Path, **options: object) -> None:
        Path(path).touch()

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", touch)


@pytest.fixture(scope="session")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A verified circuit, and its result; not to be changed."""
    from chop.actions.emit.job import emit
    from chop.actions.emit.settings import EmitConfig
    from tests.actions.emit.circuits import SETTINGS, workload

    out = tmp_path_factory.mktemp("emit") / "points"
    return out, emit(EmitConfig(out=out, **SETTINGS), workload())


@pytest.fixture
def copied(emitted: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of its folder, to be changed."""
    return shutil.copytree(emitted[0], tmp_path / "copy")
