from dataclasses import dataclass

import pytest

from chop.bench import Interval
from chop.errors import ConfigError
from chop.report.plots import plot_ratios


@dataclass(frozen=True)
class Timed:
    name: str
    ratio: Interval


def test_variants_are_named_and_drawn_with_their_bounds(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    monkeypatch.setattr(Axes, "errorbar", lambda self, x, y, xerr, **style: drawn.append((x, xerr)))
    variants = [
        Timed("eager", Interval(1.0, 1.0, 1.0)),
        Timed("compiled", Interval(1.3, 1.2, 1.5)),
        Timed("by time", Interval(2.0)),
    ]
    path = plot_ratios(tmp_path / "ratios.svg", variants, "BERT, batch 1")
    text = path.read_text()
    assert all(f"<!-- {v.name} -->" in text for v in variants)
    assert "<!-- BERT, batch 1 -->" in text
    assert [x for x, _ in drawn] == [1.0, 1.3]
    assert drawn[1][1] == [[pytest.approx(0.1)], [pytest.approx(0.2)]]


def test_nothing_cannot_be_drawn(tmp_path):
    with pytest.raises(ConfigError, match="at least one variant"):
        plot_ratios(tmp_path / "none.svg", [], "nothing")
    assert list(tmp_path.iterdir()) == []
