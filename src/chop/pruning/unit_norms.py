"""Activations of units (channels, heads), measured where the next layers read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.captured.padding.hidden import zeroed
from chop.captured.state.preserve_state import preserve_state
from chop.ir.batches import observe_batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer
from chop.ir.rows import Measured, check_finite
from chop.nn.sparsity import ScoreInputs
from chop.pruning.channel_dependencies import ChannelTrace
from chop.pruning.saliency import WHERE


def gather_unit_norms(
    mg: MaseGraph,
    units: Sequence[tuple[ChannelTrace, Sequence[Layer]]],
    score_inputs: Mapping[str, ScoreInputs],
    batches: Iterable[Mapping[str, Any]] | None,
) -> None:
    """Sets `unit_norms` of each layer: the Euclidean norm of its units, summed over tokens.

    The inputs of layers that sum over the units are measured, which follow activation functions,
    gates and attention. Padding does not count. The model runs in eval mode; its mode is restored.

    Args:
        mg: graph.
        units: traces of the units, each with the layers that compute them.
        score_inputs: score inputs of each layer, by path.
        batches: inputs of the model by name, one mapping per batch.

    Raises:
        ConfigError: there is no batch, or a batch causes NaN or infinite values.
    """
    totals = [torch.zeros(trace.units, dtype=torch.float64) for trace, _ in units]
    readings: defaultdict[fx.Node, list[tuple[Tensor, int]]] = defaultdict(list)
    for total, (trace, _) in zip(totals, units, strict=True):
        for source, place in trace.readers:
            readings[source].append((total, place.dim))
    given = list(select_inputs(mg, () if batches is None else batches, WHERE))

    def visit(number: int, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        for total, dim in readings.get(node, ()):
            x = zeroed(result)
            check_finite(x, None, given[number], number, Measured(WHERE, node.name))
            total += _norms(x, dim, len(total))

    with preserve_state(mg.model):
        mg.model.eval()
        observe_batches(mg, given, visit)
    for total, (_, layers) in zip(totals, units, strict=True):
        for layer in layers:
            size, axis = layer.weight.shape, layer.axes.outputs
            shape = [-1 if dim == axis else 1 for dim in range(layer.weight.dim())]
            share = size[axis] / layer.weight.numel()
            norms = (total * share).repeat_interleave(size[axis] // len(total)).view(shape)
            score_inputs[layer.path].unit_norms = norms.to(layer.weight.device)


def _norms(x: Tensor, dim: int, units: int) -> Tensor:
    """Returns the Euclidean norm of each unit along `dim`, summed over the other dimensions."""
    rows = x.double().movedim(dim, 0).flatten(1).unflatten(0, (units, -1))
    norms: Tensor = rows.square().sum(1).sqrt().sum(1)
    return norms.cpu()
