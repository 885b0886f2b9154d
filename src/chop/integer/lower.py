"""Lowering of a quantized graph to integer arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from chop.base.notices import warn_each_time
from chop.errors import ConfigError, enumerate_names
from chop.integer.attention import lower_attention
from chop.integer.decoding import START, StepLowering, add_start, token_steps
from chop.integer.folding import Folded, drop_empty_fills, fold
from chop.integer.grids import Grids
from chop.integer.lowering import GraphLowering
from chop.integer.refusals import refusals
from chop.integer.steps import Step
from chop.integer.suggestions import suggest_changes
from chop.integer.writes import thread_writes
from chop.ir.annotate import annotate
from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata
from chop.ir.settled import hooked_modules, missing_forms, refuse_hooks, refuse_nested
from chop.nn.integer import Decode, Encode, IntegerOperator, IntegerOptions

WHERE = "lower_to_integer_transform_pass"
FEWER_BITS = 3
"""Bits that a loadable number may have less than in its circuit without a warning."""


@dataclass(frozen=True)
class Lowered:
    """An integer graph.

    Attributes:
        mg: the graph, with the inputs and outputs of the quantized graph.
        steps: its operators in execution order.
    """

    mg: MaseGraph
    steps: Sequence[Step]


def lower(
    mg: MaseGraph,
    example: Mapping[str, Any],
    grids: Grids,
    options: IntegerOptions,
    is_run: bool = False,
) -> Lowered:
    """Lowers a quantized graph to integers.

    Args:
        mg: a graph from `settled_copy`; it is changed. The steps' references call its old modules.
        example: inputs by name. Sizes are fixed if the graph computes with them. All sizes except
            the first of each input are always fixed.
        grids: grids of its operands.
        options: widths inside operators.
        is_run: annotates nodes by running the example, which is faster than fake tensors for an
            example with few rows.
    Raises:
        ConfigError: if operators or formats have no integer form (the message lists all of them),
            modules have forward hooks, or written memory is read under another name.
    """
    example = _checked_inputs(mg, example)
    folded = _folded(mg, example, grids)
    lowering = GraphLowering(mg, folded, grids, options, lower_attention)
    return _lowered(lowering, example, is_run)


def lower_step(
    mg: MaseGraph, example: Mapping[str, Any], grids: Grids, options: IntegerOptions
) -> Lowered:
    """Lowers one step of a quantized decoder to integers, see `chop.integer.decoding`.

    Args:
        mg: as in `lower`.
        example: whole sequences by name, integers (sequences, tokens). The cache has room for as
            many tokens.
        grids: as in `lower`.
        options: as in `lower`.
    Raises:
        ConfigError: as `lower`, or if the model is not a decoder that reads earlier tokens by
            causal attention only.
    """
    example = _checked_inputs(mg, example)
    if grids.windows:
        raise ConfigError(
            f"{WHERE}: decode: expected formats with one fixed scale per tensor, such as integer "
            "or scale_integer, got blocks with shared exponents; choose another format."
        )
    try:
        steps = token_steps(example)
    except ConfigError as error:
        raise ConfigError(f"{WHERE}: {error}") from error
    start = add_start(mg, steps)
    (tokens, *_) = example.values()
    whole = _folded(mg, {**example, START: steps[START].view(tokens.shape)}, grids)
    folded = fold(mg, steps)
    lowering = StepLowering(mg, folded, grids, options, lower_attention, whole, start)
    return _lowered(lowering, steps, is_run=False)


def _checked_inputs(mg: MaseGraph, example: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs that the graph has, after checks of the graph."""
    if any(isinstance(module, Encode | Decode) for module in mg.model.modules()):
        raise ConfigError(f"{WHERE}: the graph is an integer graph already; use it as it is.")
    refuse_hooks(hooked_modules(mg), WHERE, "an integer graph")
    example = _graph_inputs(mg.fx_graph, example)
    refuse_nested(example, WHERE)
    return example


def _graph_inputs(graph: fx.Graph, example: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the inputs that a graph has."""
    inputs = {str(node.target) for node in graph.nodes if node.op == "placeholder"}
    return {name: value for name, value in example.items() if name in inputs}


def _folded(mg: MaseGraph, example: Mapping[str, Any], grids: Grids) -> Folded:
    """Returns the values of a graph without writes, all of whose operators have integer forms."""
    folded = fold(mg, example)
    try:
        folded = fold(mg, example) if thread_writes(mg, folded) else folded
        folded = fold(mg, example) if drop_empty_fills(mg, folded) else folded
    except ConfigError as error:
        raise ConfigError(f"{WHERE}: {error}") from error
    refused = refusals(mg, folded, grids)
    if refused:
        missing = [refusal.text for refusal in refused]
        suggestion = "; ".join(suggest_changes(mg, refused))
        raise ConfigError(missing_forms(WHERE, "there is no integer form", missing, suggestion))
    return folded


def _lowered(lowering: GraphLowering, example: Mapping[str, Any], is_run: bool) -> Lowered:
    """Builds the integer graph, and puts it in place of the quantized one."""
    mg = lowering.mg
    try:
        lowering.run()
    except ConfigError as error:
        raise ConfigError(f"{WHERE}: {error}") from error
    example = _graph_inputs(lowering.builder.graph, example)
    lowering.builder.note_examples(example)
    lowering.builder.install(_fixed_sizes(example, lowering.folded), WHERE)
    for node in mg.nodes:
        node.meta["mase"] = MaseMetadata(node)
    annotate(mg, example, with_values=is_run)
    return Lowered(mg, lowering.steps)


def _fixed_sizes(example: Mapping[str, Any], folded: Folded) -> dict[str, tuple[int | None, ...]]:
    """Returns the fixed input sizes; the first is variable if the graph does not depend on it."""
    tensors = {name: value for name, value in example.items() if isinstance(value, Tensor)}
    free = 0 if folded.reads_sizes else 1
    return {name: (*[None] * free, *x.shape[free:])[: x.dim()] for name, x in tensors.items()}


def warn_about_lost_bits(mg: MaseGraph, circuit: Mapping[str, nn.Module]) -> None:
    """Warns if scales, norms or slopes are far smaller than those that a circuit was emitted with.

    A circuit emitted for them would have another shift, and would not round them to fewer bits.

    Args:
        mg: an integer graph.
        circuit: operators of the circuit by path, see `IntegerOptions`.
    """
    coarse = []
    for path, operator in mg.model.named_modules():
        like = circuit.get(path)
        if not (isinstance(operator, IntegerOperator) and isinstance(like, type(operator))):
            continue
        if operator.is_loadable and (name := operator.circuit_numbers):
            numbers = getattr(operator, name), getattr(like, name)
            own, bits = (int(each.abs().max()).bit_length() for each in numbers)
            if own <= bits - FEWER_BITS:
                coarse.append(f"{path}.{name} ({own} bits instead of {bits})")
    if coarse:
        warn_each_time(
            "These numbers are far smaller than those of the circuit, and are rounded to fewer "
            f"bits: {enumerate_names(coarse, 4)}. Compare the accuracy, or emit a circuit for this "
            "model.",
            UserWarning,
        )
