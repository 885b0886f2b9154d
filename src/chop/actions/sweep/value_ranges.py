"""Ranges of a model's weights, biases and inputs, and the integer bits that they need."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chop import passes
from chop.formats import Integer
from chop.ir.graph import MaseGraph
from chop.ir.layers import list_layers
from chop.quantization.named_operators import present_operators
from chop.report.charts.chart import Histogram
from chop.report.charts.value_grids import MAX_LAYERS, EvenGrid, value_grid_charts
from chop.report.measured import MeasuredTable
from chop.report.report import Writer, figure_files
from chop.train import calibration_batches
from chop.workloads.workload import Workload

BINS = 128
OPERANDS = {"weight": "weight", "bias": "bias", "data_in_0": "input"}
"""Name of a tensor in tables, by its name in the statistics."""
STATISTICS: Mapping[str, Any] = {"range_min_max": {"abs": True}, "histogram": {"bins": BINS}}
NAME = "ranges"
"""Base name of the files."""


@dataclass(frozen=True)
class ValueRange:
    """Range of one tensor of a layer.

    Attributes:
        layer: path of the layer.
        operand: `weight`, `bias` or `input`.
        largest: largest magnitude.
        histogram: histogram of the values.
    """

    layer: str
    operand: str
    largest: float
    histogram: Histogram

    @property
    def integer_bits(self) -> int:
        """Fewest integer bits, including the sign, that hold the largest magnitude in both signs.

        The range of m integer bits is -2^(m-1) to below 2^(m-1).
        """
        return max(1, math.frexp(self.largest)[1] + 1)


def value_ranges(
    mg: MaseGraph, operators: Sequence[str], workload: Workload, rows: int
) -> list[ValueRange]:
    """Measures weights, biases and inputs of the layers of `operators`, in the graph's order.

    Args:
        mg: the float graph, unchanged.
        operators: names; those that the graph lacks are ignored.
        workload: source of the training rows for inputs.
        rows: number of training rows.
    Raises:
        ConfigError: if the graph has none of the operators.
    """
    names = present_operators(mg, operators)
    paths = {
        node.name: layer.path
        for layer in list_layers(mg, lambda row, _: row.name in names)
        for node in layer.nodes
    }
    targets = {f"target_{kind}_nodes": list(paths) for kind in ("weight", "activation")}
    statistics = {f"{kind}_statistics": STATISTICS for kind in ("weight", "activation")}
    batches = calibration_batches(mg.model, workload.train, rows=rows)
    settings = {"by": "name", **targets, **statistics, "input_generator": batches, "quiet": True}
    _, info = passes.profile_statistics_analysis_pass(mg.sharing_copy(), settings)
    return [
        _get_range(paths[name], OPERANDS[tensor], statistics)
        for name, sides in info["statistics"].items()
        for tensor, statistics in sides["args"].items()
        if tensor in OPERANDS
    ]


def _get_range(layer: str, operand: str, statistics: Mapping[str, Mapping[str, Any]]) -> ValueRange:
    counts, edges = (statistics["histogram"][key].tolist() for key in ("counts", "edges"))
    histogram = Histogram(f"{layer} {operand}", tuple(counts), edges[0], edges[-1])
    return ValueRange(layer, operand, statistics["range_min_max"]["max"].item(), histogram)


def table_of_ranges(ranges: Sequence[ValueRange], workload: Workload) -> MeasuredTable:
    """Returns the table of the largest magnitudes by layer."""
    rows: dict[str, dict[str, Any]] = {}
    empty = {
        column: None
        for operand in OPERANDS.values()
        for column in (f"largest {operand}", f"{operand} bits")
    }
    for each in ranges:
        row = rows.setdefault(each.layer, {"layer": each.layer, **empty})
        column, bits = f"largest {each.operand}", f"{each.operand} bits"
        if row[column] is None or row[column] < each.largest:  # a layer may be called twice
            row |= {column: each.largest, bits: each.integer_bits}
    number = dataclasses.replace(workload.task.metric, is_share=False)
    columns = {column: number for column in empty if column.startswith("largest")}
    title = f"{workload.title}: largest magnitudes, and the integer bits they need"
    return MeasuredTable(title, list(rows.values()), columns)


def figures_of_ranges(
    ranges: Sequence[ValueRange], formats: Mapping[str, Integer], title: str
) -> dict[str, Writer]:
    """Returns histograms of weights and inputs with the values of some formats.

    They are `ranges` (.svg, .png), or `ranges-1` ... if the layers need several figures.

    Args:
        ranges: from `value_ranges`.
        formats: by label, the first on top.
        title: title of the figure.
    """
    grids = [_get_grid(label, number_format) for label, number_format in formats.items()]
    layers: dict[str, dict[str, Histogram]] = {}
    for each in ranges:
        layers.setdefault(each.layer, {}).setdefault(each.operand, each.histogram)
    pairs = [[each["weight"], each["input"]] for each in layers.values() if "input" in each]
    pages = [pairs[first : first + MAX_LAYERS] for first in range(0, len(pairs), MAX_LAYERS)]
    files: dict[str, Writer] = {}
    for number, page in enumerate(pages, 1):
        name = NAME if len(pages) == 1 else f"{NAME}-{number}"
        files |= figure_files(name, value_grid_charts, page, grids, title=title)
    return files


def _get_grid(label: str, number_format: Integer) -> EvenGrid:
    assert isinstance(number_format.frac_width, int)
    step = 2.0**-number_format.frac_width
    low, high = (code * step for code in number_format.code_range)
    return EvenGrid(label, low, high, step)
