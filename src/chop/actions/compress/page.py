"""Report page of a compression: tiles, layer table, histograms and graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from chop.actions.bench.latency import find_fastest, speed_tiles
from chop.actions.compress.sensitivity import about_sensitivity
from chop.captured.padding.hidden import following, visible_rows
from chop.errors import ChopError
from chop.formats import NumberFormat, parse_format_string
from chop.ir.graph import MaseGraph
from chop.ir.parameters import StoredParameter, stored_parameters
from chop.nn.packed.encoding import parts_of_rows
from chop.nn.quantized import QuantizedOperator
from chop.private.torch_api import without_dispatch_modes
from chop.report.charts.chart import Chart, Histogram, Histograms
from chop.report.charts.graph import graph_chart
from chop.report.format_legend import format_legend
from chop.report.report import Cell, Table, Tile
from chop.runs import Outcome
from chop.statistics.intervals import LEVEL_TEXT
from chop.train.feed import module_mode

if TYPE_CHECKING:
    from chop.actions.compress.table import Candidate
    from chop.workloads.workload import Workload

MOST_PANELS = 12
BINS = 48
SAMPLED = 2**16
"""Approximate number of weights in a layer's histogram, taken from its first rows."""
MOST_VALUES = 100
"""Maximum number of values of a format that are marked one by one."""


def build_tiles(
    result: Mapping[str, Any], saved: Candidate, exact: Candidate, workload: Workload
) -> list[Tile]:
    """Returns tiles with metric, bits, file size and speed of the saved model against float."""
    metric = workload.task.metric
    mine, reference = saved.scores["test"], exact.scores["test"]
    size, whole = (result[name]["model.pt"] for name in ("saved_bytes", "float_bytes"))
    counted = saved.tested_on(workload).replace(" on", ",")
    about = f"float {metric.format_value(reference.value)}{counted}"
    interval = f" ({LEVEL_TEXT} interval)" if mine.interval or not saved.is_judged else ""
    tiles = [
        Tile(f"{metric.name}{interval}", Cell(mine.value, mine.format_cell(metric)), about),
        Tile("bits per weight", Cell.of(saved.row.bits, ".2f"), f"float {exact.row.bits:.0f}"),
        Tile(
            "weights file",
            Cell(size, f"{size / 1000:,.1f} kB"),
            f"{whole / size:.1f}x smaller than float",
        ),
    ]
    return [*tiles, *speed_tiles(result["speed"])]


def summarize_outcome(
    saved: Candidate, exact: Candidate, size_bytes: int, workload: Workload
) -> Outcome:
    """Returns the numbers for a list of runs: saved model and float on test rows."""
    metric = workload.task.metric
    return Outcome(
        data=workload.dataset,
        metric=metric.name,
        value=saved.row.test,
        reference=exact.row.test,
        is_share=metric.is_share,
        bits=saved.row.bits,
        size_bytes=size_bytes,
    )


def list_warnings(result: Mapping[str, Any], saved: Candidate) -> list[str]:
    """Returns warnings about the results: poor fits, weights left in float, slowness."""
    texts = [text for text in (saved.row.poor_fit, saved.row.unreached) if text]
    best = find_fastest(result["speed"])
    if best is not None and not best.is_faster:
        texts.append("The saved model is not faster than float on this machine.")
    return texts


def layer_table(result: Mapping[str, Any], mg: MaseGraph) -> Table:
    """Returns the table of weight errors and operand formats by layer.

    Args:
        result: result of the job.
        mg: the quantized graph, weights not packed.
    """
    formats = {row["layer"]: row for row in result["formats"]}
    bits, about = bit_width(mg), result.get("sensitivity")
    rows = []
    for row in result["layers"]:
        name, chosen = row["layer"], formats.get(row["layer"], {})
        rows.append(
            {
                "layer": name,
                "weight": row["format"],
                "input": _label(chosen.get("data_in")),
                "bias": _label(chosen.get("bias")),
                "weights": Cell.of(row["weights"], ","),
                "bits": Cell.of(bits[name], ".2f") if name in bits else None,
                "rounded to zero": Cell.of(row["share_rounded_to_zero"], ".1%"),
                "clipped": Cell.of(row["share_saturated"], ".1%"),
                "SQNR (dB)": _sqnr(row["weight_error"]),
                **({"sensitivity": _sensitivity(row)} if about else {}),
            }
        )
    shaded = ("bits", "rounded to zero", "clipped", "SQNR (dB)", "sensitivity")
    title = "Weights and formats by layer"
    if about:
        title += f"; {about_sensitivity(about['metric'], about['rows'])}"
    return Table(title, rows, shaded=shaded)


def _label(text: str | None) -> str | None:
    """Returns the label of a format; texts that `parse_format_string` cannot read stay."""
    try:
        return text and parse_format_string(text).label
    except ChopError:
        return text


def legend_tables(texts: Iterable[str], mg: MaseGraph) -> list[Table]:
    """Returns tables that explain the names of the measured and the saved formats.

    Args:
        texts: measured formats, readable by `parse_format_string`.
        mg: the quantized graph.
    """
    specs = (m.spec for m in mg.model.modules() if isinstance(m, QuantizedOperator))
    stored = [fmt for spec in specs for _, fmt in spec.items() if isinstance(fmt, NumberFormat)]
    table = format_legend([*map(parse_format_string, texts), *stored])
    return [] if table is None else [table]


def _sensitivity(row: Mapping[str, Any]) -> Cell | None:
    value = row["sensitivity"]
    return None if value is None else Cell.of(value, ".2e")


def _sqnr(error: float) -> Cell | None:
    """Returns the signal-to-quantization-noise ratio of a relative squared error; None for 0.

    >>> str(_sqnr(0.001))
    '30.0'
    """
    return Cell.of(-10 * math.log10(error), ".1f") if error > 0 else None


def bit_width(mg: MaseGraph) -> dict[str, float]:
    """Returns the bits per weight of each layer as stored, scales included."""
    return {
        each.name.removesuffix(".weight"): each.bits
        for each in stored_parameters(mg)
        if each.operand == "weight"
    }


def charts_of_model(
    rows: Sequence[Mapping[str, Any]], mg: MaseGraph, batch: Mapping[str, torch.Tensor]
) -> list[Chart]:
    """Returns histograms of weights and inputs with the values of their formats, and the graph.

    Args:
        rows: weight errors of each layer, see `layer_rows`.
        mg: the quantized graph, weights not packed.
        batch: input rows for the histograms of inputs.
    """
    bits = bit_width(mg)
    numbers = {
        row["layer"]: {
            "bits": bits.get(row["layer"], math.nan),
            "weights": row["weights"],
            "share rounded to zero": row["share_rounded_to_zero"],
            "share clipped": row["share_saturated"],
            "relative squared error": row["weight_error"],
        }
        for row in rows
    }
    worst = sorted(rows, key=lambda row: -row["weight_error"])[:MOST_PANELS]
    chosen = {row["layer"] for row in worst}
    # In the order of the model, as everywhere on the page.
    layers = [row["layer"] for row in rows if row["layer"] in chosen]
    histograms = [_build_histograms(mg, layers), _input_histograms(mg, layers, batch)]
    return [*(each for each in histograms if each.panels), graph_chart(mg, numbers)]


def _build_histograms(mg: MaseGraph, layers: Sequence[str]) -> Histograms:
    """Returns histograms of the weights of some layers, with the values they are rounded to."""
    weights = {each.name: each for each in stored_parameters(mg) if each.packed is None}
    panels = [_panel(layer, weights.get(f"{layer}.weight")) for layer in layers]
    title = (
        "Weights of each layer (large layers: at least their first rows), above the values that "
        "they are rounded to"
    )
    if len(panels) == MOST_PANELS:
        title += f": the {MOST_PANELS} layers whose weights change most"
    return Histograms(title, tuple(panel for panel in panels if panel is not None))


def _panel(layer: str, parameter: StoredParameter | None) -> Histogram | None:
    if parameter is None:
        return None
    return _counted(layer, parameter.value.detach(), parameter.format)


def _input_histograms(
    mg: MaseGraph, layers: Sequence[str], batch: Mapping[str, torch.Tensor]
) -> Histograms:
    """Returns histograms of the rounded inputs of some layers."""
    modules = dict(mg.model.named_modules(remove_duplicate=False))
    formats = {
        layer: module.spec.data_in
        for layer in layers
        # A weight that is a parameter of the model itself has no module.
        if isinstance(module := modules.get(layer), QuantizedOperator)
        and isinstance(module.spec.data_in, NumberFormat)
        and not module.spec.data_in.is_identity
    }
    read = _read_by(mg, {layer: modules[layer] for layer in formats}, batch) if formats else {}
    panels = [_counted(layer, x, formats[layer]) for layer, x in read.items()]
    count = len(next(iter(batch.values())))
    title = (
        f"Inputs of the same layers in their last call, on {count} training "
        f"row{'s' * (count > 1)}, above the values that they are rounded to"
    )
    return Histograms(title, tuple(panel for panel in panels if panel is not None))


@torch.inference_mode()
def _read_by(
    mg: MaseGraph, modules: Mapping[str, QuantizedOperator], batch: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns first rows of each module's first input in its last call, without padding rows."""
    inputs_by_layer: dict[str, torch.Tensor] = {}

    def keep(layer: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].is_floating_point():
            rows = visible_rows(inputs[0].detach())
            with without_dispatch_modes():
                # A copy, as a view would hold the memory of all rows until the end of the call.
                inputs_by_layer[layer] = _first_rows(
                    rows, modules[layer].spec.number_format("data_in")
                ).clone()

    hooks = [each.register_forward_pre_hook(partial(keep, n)) for n, each in modules.items()]
    try:
        with module_mode(mg.model, training=False), following(mg.model, batch) as arguments:
            mg.model(**arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: inputs_by_layer[layer] for layer in modules if layer in inputs_by_layer}


def _first_rows(x: torch.Tensor, number_format: NumberFormat) -> torch.Tensor:
    """Returns about `SAMPLED` numbers, cut so that they round as in the whole tensor."""
    return x.split(parts_of_rows(number_format, x, SAMPLED))[0] if x.numel() else x


def _counted(layer: str, weight: torch.Tensor, number_format: NumberFormat) -> Histogram | None:
    """Returns the histogram of a tensor's first rows; None if all its numbers are equal."""
    if weight.numel() == 0:
        return None
    rows = _first_rows(weight, number_format).float().cpu()
    low, high = float(rows.min()), float(rows.max())
    if not math.isfinite(low) or not math.isfinite(high) or low == high:
        return None
    counts = torch.histc(rows, BINS, low, high)
    values = number_format(rows).unique()
    values = values[(values >= low) & (values <= high)]
    covered = (number_format.label,) * (len(values) > MOST_VALUES)
    if covered:
        values = torch.stack([values[0], values[-1]])
    grids = {number_format.label: tuple(values.tolist())}
    return Histogram(layer, tuple(counts.tolist()), low, high, grids, covered)
