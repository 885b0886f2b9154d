import xml.etree.ElementTree as ElementTree

import pytest

from chop.errors import ConfigError
from chop.report.charts.best_so_far import compute_spread
from chop.report.charts.search import Cloud, importance_charts
from chop.report.plots import plot_best_so_far, plot_front, plot_importances


def test_runs_hold_their_best_until_they_find_a_better(tmp_path):
    runs = [[(1, 0.5), (2, 0.5), (4, 0.8)], [(2, 0.6), (3, 0.9)]]
    counts, columns = compute_spread(runs)
    assert counts == [2, 3, 4]
    assert columns == [[0.5, 0.6], [0.5, 0.9], [0.8, 0.9]]
    assert compute_spread([[(3, 1.0)]]) == ([3], [[1.0]])


def test_runs_without_trials_are_left_out(tmp_path):
    curves = {"tpe": [[(1, 0.5), (2, 0.7)], [(1, 0.4)]], "random": [[(1, 0.6)], []], "gp": [[]]}
    text = plot_best_so_far(tmp_path / "a.svg", curves, ylabel="loss", title="").read_text()
    ElementTree.fromstring(text)
    assert all(f"<!-- {name} -->" in text for name in ("tpe", "random", "loss (%)"))
    assert "<!-- gp -->" not in text
    with pytest.raises(ConfigError, match="at least one run"):
        plot_best_so_far(tmp_path / "none.svg", {"tpe": [[]]}, ylabel="accuracy", title="")
    assert not (tmp_path / "none.svg").exists()


def test_a_front_has_a_panel_for_each_number(tmp_path):
    points = [(4.0, 0.9), (2.0, 0.5), (6.0, 0.7), (3.0, float("nan")), (float("inf"), 0.9)]
    clouds = [Cloud("bits", points, points[:2], 5.0), Cloud("bytes", points, points[:2])]
    text = plot_front(tmp_path / "front.svg", clouds, ylabel="accuracy", title="Lab").read_text()
    ElementTree.fromstring(text)
    for label in ("bits", "bytes", "front", "budget: bits 5", "accuracy (%)", "Lab"):
        assert f"<!-- {label} -->" in text
    assert text.count("<!-- front -->") == 1 and "nan" not in text.lower()
    with pytest.raises(ConfigError, match="at least one objective in addition"):
        plot_front(tmp_path / "none.svg", [], ylabel="accuracy", title="")


def test_importances_are_drawn_in_order(tmp_path):
    shares = {"fc1": 0.7, "fc0": 0.3}
    text = plot_importances(tmp_path / "i.svg", shares, title="Lab").read_text()
    ElementTree.fromstring(text)
    assert text.index("<!-- fc1 -->") < text.index("<!-- fc0 -->")
    assert "<!-- importance (%) -->" in text
    errors = {"fc1": 0.4, "fc0": 0.1}
    text = plot_importances(tmp_path / "e.svg", shares, errors, title="Lab").read_text()
    assert "<!-- importance (%), with 95 % interval -->" in text
    (chart,) = importance_charts(shares, errors, title="Lab")
    ends = [(bar.low, bar.high) for bar in chart.bars]
    assert ends == [(0.0, 1.0), (pytest.approx(0.104, abs=1e-4), pytest.approx(0.496, abs=1e-4))]
    many = {f"choice {i}": 1 / 40 for i in range(40)}
    text = plot_importances(tmp_path / "many.svg", many, title="Lab").read_text()
    assert "<!-- 11 others together -->" in text and "<!-- choice 29 -->" not in text
    with pytest.raises(ConfigError, match="at least one choice"):
        plot_importances(tmp_path / "none.svg", {}, title="")
