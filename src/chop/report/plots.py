"""Plotting functions that draw charts into files, one for each chart maker."""

from __future__ import annotations

from chop.report.charts.accuracy import accuracy_charts
from chop.report.charts.best_so_far import best_so_far_charts
from chop.report.charts.evaluation import divergence_charts, score_charts
from chop.report.charts.heat_map import heat_map_charts, layer_map_charts
from chop.report.charts.plans import plan_charts
from chop.report.charts.ratios import ratio_charts
from chop.report.charts.search import front_charts, importance_charts
from chop.report.charts.value_grids import value_grid_charts
from chop.report.figures.draw import plotted

plot_accuracy = plotted(accuracy_charts)
plot_best_so_far = plotted(best_so_far_charts)
plot_divergences = plotted(divergence_charts)
plot_front = plotted(front_charts)
plot_heat_map = plotted(heat_map_charts)
plot_importances = plotted(importance_charts)
plot_layer_map = plotted(layer_map_charts)
plot_plans = plotted(plan_charts)
plot_ratios = plotted(ratio_charts)
plot_scores = plotted(score_charts)
plot_value_grids = plotted(value_grid_charts)
