from pathlib import Path

import pytest


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are put together and not painted: their files are there, and empty."""
    import matplotlib.figure

    def touch(figure: object, path: str | Path, **options: object) -> None:
        Path(path).touch()

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", touch)
