"""Replacement of the operators of a graph by quantized ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from chop.base.notices import warn_once
from chop.captured.nodes.writes import written_by
from chop.captured.padding.masks import MASKS_AHEAD
from chop.formats import QuantSpec
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.nn.quantized import (
    QuantCall,
    QuantContext,
    QuantInPlaceCall,
    QuantizedOperator,
    QuantScores,
)
from chop.nn.quantized.computed import warn_about_plain_weights, why_computed
from chop.nn.quantized.replicas import keep_ranges_local
from chop.quantization.masked_nodes import masked_nodes
from chop.quantization.masks_ahead import MasksAhead, first_mask, hand_masks


def quantize_nodes(mg: MaseGraph, chosen: Mapping[fx.Node, QuantSpec]) -> None:
    """Quantizes nodes of a graph in place, with their metadata.

    Calls of the same module share the quantized module.
    """
    computed = {str(n.target): why_computed(mg.get_module(n)) for n in chosen}
    twins: dict[str, QuantizedOperator] = {}
    masked, ahead = masked_nodes(mg), MasksAhead(mg)
    shared = {str(node.target) for node in masked if node.op == "call_module"}
    for node, spec in chosen.items():
        # A module that several nodes call is replaced once.
        twin = twins.get(str(node.target)) if node.op == "call_module" else None
        twin = twin or _quantized_twin(mg, node, spec)
        if isinstance(twin, QuantCall):
            twin = _call_with_masks(mg, node, twin, ahead)
            selects = bool(mg.operator(node).selector)
            twin.meets_masks = selects or MASKS_AHEAD in node.kwargs or node in masked
        elif type(twin).meets_masks:
            twin.meets_masks = node in masked or str(node.target) in shared
        mg.replace(node, twin)
        twins[str(node.target)] = twin
        record_formats(node, twin)
    keep_ranges_local(mg.model)
    warn_about_plain_weights("quantize_transform_pass", computed)


def _call_with_masks(mg: MaseGraph, node: fx.Node, twin: QuantCall, ahead: MasksAhead) -> QuantCall:
    """Replaces a quantized call that computes scores or reads weights of keys by one with masks.

    The node gets the later masks of its scores as an argument. Other calls are returned unchanged.
    """
    if MASKS_AHEAD not in node.kwargs:
        _hand_masks(node, twin, ahead)
    if not mg.operator(node).is_product_of_activations or type(twin) is not QuantCall:
        return twin
    if MASKS_AHEAD in node.kwargs:
        return QuantScores(twin.function, twin.arguments, twin.spec)
    first = node.args[0] if node.args else node.kwargs.get(next(iter(twin.arguments)))
    if ahead.are_weights(first):
        return QuantContext(twin.function, twin.arguments, twin.spec)
    return twin


def _hand_masks(node: fx.Node, twin: QuantCall, ahead: MasksAhead) -> None:
    """Passes the masks of scores to a node. Warns if scales would depend on hidden scores."""
    masks = ahead.of(node)
    late, reason = hand_masks(node, masks), "that cannot be computed earlier"
    way_out = "compute the mask from sizes instead of scores, or use scaled_dot_product_attention"
    mask = first_mask(late)
    if not masks:
        mask, reader = ahead.whole_reader(node)
        reason = f"that '{reader}' reads unmasked"
        way_out = f"let '{reader}' read masked scores, or choose a format without scales"
    if mask is not None and any(follows_data(twin.spec, name) for name, _ in twin.spec.items()):
        warn_once(
            f"quantize: '{node.name}' computes scores that '{mask.name}' hides later and {reason}, "
            f"so that hidden scores count in its scales; {way_out}."
        )


def follows_data(spec: QuantSpec, operand: str) -> bool:
    """Returns true if the step size of an operand depends on the rounded numbers."""
    number_format = spec.number_format(operand)
    if number_format.is_identity:
        return False
    layout = number_format.layout() if number_format.is_fitted else None
    return (
        spec.learns(operand)
        or layout is None
        or layout != layout.fitted(torch.ones(1))
        or (layout.scaling is not None)
    )


def _quantized_twin(mg: MaseGraph, node: fx.Node, spec: QuantSpec) -> QuantizedOperator:
    """Returns the quantized module for the function or module that a node calls."""
    row, module = mg.operator(node), mg.get_module(node)
    if isinstance(module, QuantizedOperator):
        return module.with_spec(spec)
    if module is not None and row.quantized is not None:
        return row.quantized.from_float(module, spec)
    if row.twin is not None:
        return row.twin(config=spec)
    function = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
    cls = QuantInPlaceCall if written_by(node) else QuantCall
    return cls(function, row.call_arguments(node), spec)  # type: ignore[arg-type]
