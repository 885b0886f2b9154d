"""Post-training quantization of a graph: one format for chosen operators, or one per layer."""

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
        skipped: description of layers that it skips.
        summary: effect on a model, for help.
        writes_weights: writes rounded weights; others change float weights before rounding.
        is_by_block: can work with one block of a decoder in memory.
    """

    title: str
    skipped: str
    summary: str
    writes_weights: bool = False
    is_by_block: bool = True


METHODS = {
    "smoothquant": Method("SmoothQuant", "unsmoothed", "moves outliers from inputs to weights"),
    "awq": Method("AWQ", "unscaled", "scales up weights of large inputs"),
    "rotate": Method(
        "rotated",
        "unrotated",
        "rotates inputs of layers by Hadamard matrices; needs no rows",
        is_by_block=False,
    ),
    "gptq": Method(
        "GPTQ", "at the nearest number", "later weights compensate errors of earlier ones", True
    ),
    "learned_rounding": Method(
        "learned rounding", "alone", "learns rounding directions from each block's error", True
    ),
}
"""Methods of rounding in the order of application; all except rotate need training rows."""
ROUNDING = frozenset(name for name, method in METHODS.items() if method.writes_weights)
BY_BLOCK = tuple(name for name, method in METHODS.items() if method.is_by_block)

OnSkipped = Callable[[str, Mapping[str, str]], object]
"""Callback with a method, and the reasons for skipped layers by node name or path."""
LayerFormats = Mapping[str, Mapping[str, str]]
"""Format string by operand, by path of a layer."""


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
    """Quantizes data, weights and biases of `operators` to one format.

    Args:
        mg: the float graph, unchanged unless `inplace`.
        number_format: fractions that wait for data are calibrated on training rows.
        operators: names; those that the graph lacks are ignored.
        workload: source of the rows.
        calibration_rows: number of rows.
        methods: keys of `METHODS`. Default: weights are rounded to nearest.
        inplace: change the given graph.
        leaves_calls: see `chop.quantization.float_calls`.
        recipe: exceptions: other formats of some weights, and modules that stay float.
        operands: operands in the format; the others stay float.
        rotation: channels that `rotate` rotates, see `CompressConfig`.
        on_skipped: receives the layers that each method skips, for `describe_skipped`.
    Raises:
        ConfigError: if the graph has none of the operators, a pattern of the recipe matches
            nothing, or a method cannot keep the scales of the format.
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
    """Returns the number of values that share a scale; None if the tensor determines it."""
    layout = number_format.layout()
    size = math.inf if layout is None else layout.groups.nominal_size
    return int(size) if 1 < size < math.inf else None


def method_title(methods: Sequence[str]) -> str:
    """Returns the name of rounding methods in tables: `PTQ`, `AWQ+GPTQ` ..."""
    return "+".join(row.title for name, row in METHODS.items() if name in methods) or "PTQ"


def describe_skipped(mg: MaseGraph, skipped: Mapping[str, Mapping[str, str]]) -> str | None:
    """Describes the layers that each method skipped, in a sentence per method; None if none did.

    Args:
        mg: the quantized graph.
        skipped: by method, the reasons by node name or path, see `OnSkipped`.
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
            texts.append(f"{row.title} left these layers {row.skipped}: {'; '.join(groups)}.")
    return " ".join(texts) or None


def _first_and_last(names: Sequence[str]) -> str:
    if len(names) < 3:
        return " and ".join(names)
    return f"{len(names)} ({names[0]} ... {names[-1]})"


def quantize_layers(
    mg: MaseGraph, layers: LayerFormats, workload: Workload, calibration_rows: int
) -> MaseGraph:
    """Quantizes each named layer to its own formats.

    Args:
        mg: the float graph, unchanged.
        layers: format strings by operand, by pattern of module paths or node name; other operands
            stay float.
        workload: source of the calibration rows.
        calibration_rows: number of rows.
    Raises:
        ConfigError: if the graph has no such layer, or an operand or format is unknown.
    """
    rules = {path: {"config": layer_spec(path, formats)} for path, formats in layers.items()}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "name", **rules})
    return calibrated(quantized, workload.train, calibration_rows)


def check_recipe(mg: MaseGraph, operators: Sequence[str], recipe: Recipe) -> None:
    """Raises ConfigError if a pattern of a recipe matches no layer of these operators."""
    rules = dict.fromkeys(present_operators(mg, operators), QuantSpec())
    QuantizeConfig("type", rules, recipe=recipe, where="chop compress").select(mg)


def layer_spec(path: str, formats: Mapping[str, str]) -> QuantSpec:
    """Returns the formats of one layer from format strings by operand.

    Raises:
        ConfigError: if an operand or format is unknown.
    """
    for operand in formats:
        check_known(operand, OPERANDS, f"layers['{path}']: unknown operand")
    chosen: dict[str, Any] = {name: parse_format_string(text) for name, text in formats.items()}
    return QuantSpec(**chosen)
