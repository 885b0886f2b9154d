"""Quantization as the jobs do it: one format for the chosen operators, or one for each layer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from chop import passes
from chop.errors import check_known
from chop.formats import NumberFormat, QuantSpec, parse_format_string
from chop.formats.base import INPUT_OPERANDS, OPERANDS
from chop.formats.recipe import Recipe
from chop.ir.graph import MaseGraph
from chop.quantization.float_calls import leave_calls_of_forwards
from chop.quantization.named_operators import present_operators
from chop.quantization.selection import QuantizeConfig
from chop.train.calibration import calibrated, calibration_batches
from chop.workloads.workload import Workload


class Method(NamedTuple):
    """Method of rounding.

    Attributes:
        title: name in tables.
        skipped: state of the layers that it does not work on.
        summary: effect on a model, for help.
        writes_weights: it writes rounded weights; others change float weights ahead of rounding.
        is_by_block: it can work with one block of a decoder in memory.
    """

    title: str
    skipped: str
    summary: str
    writes_weights: bool = False
    is_by_block: bool = True


METHODS = {
    "smoothquant": Method("SmoothQuant", "unsmoothed", "ranges move from inputs to weights"),
    "awq": Method("AWQ", "unscaled", "weights of large inputs are scaled up"),
    "rotate": Method(
        "rotated",
        "unrotated",
        "Hadamard matrices rotate what layers read; needs no rows",
        is_by_block=False,
    ),
    "gptq": Method(
        "GPTQ", "at the nearest number", "weights make up for one another's errors", True
    ),
    "learned_rounding": Method(
        "learned rounding", "alone", "roundings follow gradients of each block's error", True
    ),
}
"""Methods of rounding, in the order in which they are applied; all but one see training rows."""
ROUNDING = frozenset(name for name, method in METHODS.items() if method.writes_weights)
BY_BLOCK = tuple(name for name, method in METHODS.items() if method.is_by_block)

OnSkipped = Callable[[str, Mapping[str, str]], object]
"""Takes a method, and why it left layers alone by the name of node or path."""
LayerFormats = Mapping[str, Mapping[str, str]]
"""Path of a layer -> operand -> format as people type it."""


def quantize_after_training(
    mg: MaseGraph,
    number_format: NumberFormat,
    operators: Sequence[str],
    workload: Workload,
    calibration_rows: int,
    methods: Sequence[str] = (),
    inplace: bool = False,
    leaves_calls: bool = False,
    recipe: Recipe | None = None,
    operands: Sequence[str] = INPUT_OPERANDS,
    rotation: str = "group",
    on_skipped: OnSkipped = lambda *_: None,
) -> MaseGraph:
    """A graph with data, weights and biases of `operators` in one format.

    Args:
        mg: the float graph; it stays as it is unless `inplace`.
        number_format: fractions that wait for data are calibrated on training rows.
        operators: those that the graph lacks are passed over.
        workload: gives the rows.
        calibration_rows: how many.
        methods: of `METHODS`, which write weights; without any, these are rounded to nearest.
        inplace: changes the graph that is given.
        leaves_calls: see `chop.quantization.float_calls`.
        recipe: other formats of some weights, and what stays float. None: there are none.
        operands: those of the three that have the format; the others stay float.
        rotation: what `rotate` rotates: see `CompressConfig`.
        on_skipped: receives the layers that each method skips, for `describe_skipped`.
    Raises:
        ConfigError: the graph has none of the operators, a pattern of the recipe matches nothing,
            or a method cannot keep the scales of the format.
    """
    spec = {"config": QuantSpec().with_quantizers(**dict.fromkeys(operands, number_format))}
    rules = dict.fromkeys(present_operators(mg, operators), spec)
    sees_rows = any(name != "rotate" for name in methods)
    rows = calibration_batches(mg.model, workload.train, rows=calibration_rows) if sees_rows else ()
    batches = list(rows)
    if "smoothquant" in methods:
        mg, info = passes.smoothquant_transform_pass(mg, {"batches": batches}, inplace=inplace)
        on_skipped("smoothquant", info["skipped"])
    if "awq" in methods:
        settings = {"batches": batches, "weight": number_format}
        mg, info = passes.awq_transform_pass(mg, settings, inplace=inplace)
        on_skipped("awq", info["skipped"])
    if "rotate" in methods:
        block = _group_size(number_format) if rotation == "group" else None
        settings = {"merge": rotation == "merged", "block": block}
        mg, info = passes.rotate_transform_pass(mg, settings, inplace=inplace)
        on_skipped("rotate", info["skipped"])
    settings = {"by": "type", **rules, **(recipe or Recipe()).plain()}
    mg, _ = passes.quantize_transform_pass(mg, settings, inplace=inplace)
    if leaves_calls:
        leave_calls_of_forwards(mg, "chop compress")
    mg = calibrated(mg, workload.train, calibration_rows)
    if "learned_rounding" in methods:
        settings = {"batches": batches, "start": "gptq" if "gptq" in methods else "nearest"}
        mg, info = passes.learned_rounding_transform_pass(mg, settings, inplace=True)
        on_skipped("learned_rounding", info["skipped"])
    elif "gptq" in methods:
        mg, info = passes.gptq_transform_pass(mg, {"batches": batches}, inplace=True)
        on_skipped("gptq", info["skipped"])
    return mg


def _group_size(number_format: NumberFormat) -> int | None:
    """How many values share a scale; None where the tensor decides."""
    layout = number_format.layout()
    size = math.inf if layout is None else layout.groups.nominal_size
    return int(size) if 1 < size < math.inf else None


def method_title(methods: Sequence[str]) -> str:
    """What rounding by these methods is called in tables: `PTQ`, `AWQ+GPTQ` ..."""
    return "+".join(row.title for name, row in METHODS.items() if name in methods) or "PTQ"


def describe_skipped(mg: MaseGraph, skipped: Mapping[str, Mapping[str, str]]) -> str | None:
    """A sentence for each method on the layers that it left alone; None where there are none.

    Args:
        mg: the graph that was quantized.
        skipped: by method, why by the name of node or path, as `OnSkipped` takes it.
    """
    paths = {node.name: str(node.target) for node in mg.nodes if node.op == "call_module"}
    texts = []
    for method, reasons in skipped.items():
        layers: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            node, *expert = name.partition("[")
            alike = re.sub(r"saw \d+ rows, fewer", "saw fewer rows", reason)
            layers.setdefault(alike, []).append("".join([paths.get(node, node), *expert]))
        groups = [f"{_first_and_last(names)}: {reason}" for reason, names in layers.items()]
        if groups:
            row = METHODS[method]
            texts.append(f"{row.title} left {row.skipped} {'; '.join(groups)}.")
    return " ".join(texts) or None


def _first_and_last(names: Sequence[str]) -> str:
    if len(names) < 3:
        return " and ".join(names)
    return f"{len(names)} ({names[0]} ... {names[-1]})"


def quantize_layers(
    mg: MaseGraph, layers: LayerFormats, workload: Workload, calibration_rows: int
) -> MaseGraph:
    """A graph with formats of its own for each layer that is named.

    Args:
        mg: the float graph; it stays as it is.
        layers: pattern of module paths (or node name) -> operand -> format as people type it;
            operands left out stay float.
        workload: gives the rows that fractions are calibrated on.
        calibration_rows: how many.
    Raises:
        ConfigError: the graph has no such layer, or an operand or format is unknown.
    """
    rules = {path: {"config": layer_spec(path, formats)} for path, formats in layers.items()}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "name", **rules})
    return calibrated(quantized, workload.train, calibration_rows)


def check_recipe(mg: MaseGraph, operators: Sequence[str], recipe: Recipe) -> None:
    """Raises ConfigError where a pattern of a recipe matches no layer of these operators."""
    rules = dict.fromkeys(present_operators(mg, operators), QuantSpec())
    QuantizeConfig("type", rules, recipe=recipe, where="chop compress").select(mg)


def layer_spec(path: str, formats: Mapping[str, str]) -> QuantSpec:
    """The formats of one layer, from format strings by operand.

    Raises:
        ConfigError: an operand or format is unknown.
    """
    for operand in formats:
        check_known(operand, OPERANDS, f"layers['{path}']: unknown operand")
    chosen: dict[str, Any] = {name: parse_format_string(text) for name, text in formats.items()}
    return QuantSpec(**chosen)
