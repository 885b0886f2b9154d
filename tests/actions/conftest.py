from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run_files import file_rows, recorded

TOY = "search toy"
"""A job that tests define."""
JOBS = ("bench", "compress", "emit", "evaluate", "export", "lower", "search", "shard", "sweep")


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
