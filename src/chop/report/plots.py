"""Plots of measured rows, each one call and one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from chop.files import replacing

Point = tuple[float, float]


def plot_accuracy_against_bits(
    path: str | Path,
    curves: Mapping[str, Sequence[Point]],
    baseline: float,
    chance: float | None = None,
    title: str = "Accuracy against width",
) -> Path:
    """Draws one line per entry of `curves` and the float accuracy as a dashed line.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        curves: label -> (average bits per parameter, accuracy from 0 to 1) points.
        baseline: accuracy of the float model.
        chance: accuracy of a guess, dotted; None leaves it out.
        title: above the plot.
    Returns: `path`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.axhline(100 * baseline, color="black", linestyle="--", linewidth=1, label="float")
    if chance is not None:
        axes.axhline(100 * chance, color="grey", linestyle=":", linewidth=1, label="chance")
    for (label, points), marker in zip(curves.items(), "osD^vP*X" * len(curves), strict=False):
        bits, accuracy = zip(*sorted(points), strict=True)
        axes.plot(bits, [100 * value for value in accuracy], marker=marker, label=label)
    axes.set(xlabel="average bits per parameter", ylabel="accuracy (%)", title=title)
    axes.set_ylim(0, 103)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    path = Path(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip("."), dpi=160)
    return path
