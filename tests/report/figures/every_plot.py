"""Draws each plot of the project as .svg, .png and .pdf into a folder: `every_plot.py FOLDER`."""

import sys
from pathlib import Path
from types import SimpleNamespace

from chop.report.charts.accuracy import Curve
from chop.report.charts.chart import Histogram
from chop.report.charts.evaluation import TaskShares
from chop.report.charts.search import Cloud
from chop.report.charts.value_grids import EvenGrid
from chop.report.plots import (
    plot_accuracy,
    plot_best_so_far,
    plot_divergences,
    plot_front,
    plot_heat_map,
    plot_importances,
    plot_layer_map,
    plot_plans,
    plot_ratios,
    plot_scores,
    plot_value_grids,
)


def draw(folder, suffix):
    def path(name):
        return folder / f"{name}{suffix}"

    runs = {label: [[(1, 0.5), (3, 0.8)], [(1, 0.4)]] for label in {"tpe", "random", "gp"}}
    runs = dict(sorted(runs.items()))
    plot_best_so_far(path("best"), runs, ylabel="a", title="T", baselines={"float": 0.9})
    points = [(4.0, 0.9), (2.0, 0.5)]
    plot_front(path("front"), [Cloud("bits", points, points, 5)], ylabel="a", title="T")
    plot_importances(path("importances"), {"fc1": 0.7, "fc0": 0.3}, title="T")
    ranges = {4.0: (0.85, 0.95)}
    curves = [Curve("PTQ", points, dashed=True), Curve("QAT", points, ranges=ranges)]
    told = {"xlabel": "bits", "title": "T", "marks": {"needed": 3}}
    plot_accuracy(path("accuracy"), curves, {"float": 0.9}, **told)
    layer = [Histogram("fc1 weight", (1, 9, 0), -1.0, 2.0)]
    plot_value_grids(path("grids"), [layer], [EvenGrid("8.5", -4, 3.97, 0.03)], title="T")
    plot_heat_map(path("heat"), {(4, 2): 0.1, (8, 2): 0.5}, xlabel="w", ylabel="f", title="T")
    cells = {("fc1", "4"): 0.1, ("fc2", "4"): 2.0}
    plot_layer_map(path("layers"), cells, xlabel="bits", measure="kl", title="T", log=True)
    ratio = SimpleNamespace(median=1.3, low=1.2, high=1.5, spans_one=False, is_known=True)
    plot_ratios(path("ratios"), [SimpleNamespace(name="compiled", ratio=ratio)], "T")
    plot_divergences(path("divergences"), [0.0, 1e-3, 0.2, float("inf")], "T")
    plan = {"plan": "replicated", "seconds": 0.01, "kept_bytes": 5e6, "peak_bytes": 7e6}
    plot_plans(path("plans"), [plan], "T", 6_000_000)
    plot_scores(path("scores"), [TaskShares("acc", (0.5, 0.1), (0.6, None))], "T")


if __name__ == "__main__":
    for suffix in (".svg", ".png", ".pdf"):
        draw(Path(sys.argv[1]), suffix)
