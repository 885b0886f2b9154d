"""Figures that are drawn and not saved."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg


@pytest.fixture
def seen(monkeypatch):
    """The figures that are saved, laid out."""
    figures = []

    def keep(figure, path):
        FigureCanvasAgg(figure).draw()
        figures.append(figure)
        return path

    monkeypatch.setattr("chop.report.figures.draw.save_figure", keep)
    return figures
