"""Lowering of a quantized graph to integer arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from chop.errors import ConfigError
from chop.integer.attention import lower_attention
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
from chop.nn.integer import Decode, Encode, IntegerOptions

WHERE = "lower_to_integer_transform_pass"


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
    if any(isinstance(module, Encode | Decode) for module in mg.model.modules()):
        raise ConfigError(f"{WHERE}: the graph is an integer graph already; use it as it is.")
    refuse_hooks(hooked_modules(mg), WHERE, "an integer graph")
    inputs = {str(node.target) for node in mg.nodes if node.op == "placeholder"}
    example = {name: value for name, value in example.items() if name in inputs}
    refuse_nested(example, WHERE)
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
    lowering = GraphLowering(mg, folded, grids, options, lower_attention)
    try:
        lowering.run()
    except ConfigError as error:
        raise ConfigError(f"{WHERE}: {error}") from error
    lowering.builder.note_examples(example)
    lowering.builder.install(_fixed_sizes(example, folded), WHERE)
    for node in mg.nodes:
        node.meta["mase"] = MaseMetadata(node)
    annotate(mg, example, with_values=is_run)
    return Lowered(mg, lowering.steps)


def _fixed_sizes(example: Mapping[str, Any], folded: Folded) -> dict[str, tuple[int | None, ...]]:
    """Returns the fixed input sizes; the first is variable if the graph does not depend on it."""
    tensors = {name: value for name, value in example.items() if isinstance(value, Tensor)}
    free = 0 if folded.reads_sizes else 1
    return {name: (*[None] * free, *x.shape[free:])[: x.dim()] for name, x in tensors.items()}
