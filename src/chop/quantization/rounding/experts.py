"""Expert layers as one linear layer per expert, with the rows routed to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from chop.captured.padding.masks import KEY_PADDING, MASK
from chop.formats import NumberFormat
from chop.ir.graph import MaseGraph
from chop.ir.rows import Measured, check_finite, counted_rows
from chop.nn.quantized import QuantLinear
from chop.nn.quantized.masks import MASK as WEIGHT_MASK
from chop.nn.quantized.running import RANGE_NAMES
from chop.nn.quantized.state import SCALE_NAMES
from chop.private.modules import own_buffers, own_parameters

Sample = tuple[Tensor, Tensor | None]
"""Rows of a batch, (S, I), and their weights, (S,); None for equal weights."""


def has_experts(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns true if a node calls a layer of several experts."""
    weight = mg.operator(node).weight
    return node.op == "call_module" and weight is not None and weight.has_experts


def is_cut_by_experts(number_format: NumberFormat) -> bool:
    """Returns true if a format rounds an expert's matrix alone exactly like within all experts."""
    layout = number_format.layout()
    return layout is not None and (
        layout.scaling is None or (layout.levels is None and layout.groups.is_row_separable(2))
    )


def layer_of_expert(layer: Any, number: int) -> QuantLinear:
    """Returns the linear layer of one expert, as a view into the layer of all.

    Args:
        layer: a `QuantExpertLinear`.
        number: number of the expert.
    """
    rows = slice(number * layer.out_features, (number + 1) * layer.out_features)
    made = QuantLinear.__new__(QuantLinear)
    nn.Module.__init__(made)
    made.in_features, made.out_features = layer.in_features, layer.out_features
    made.spec = layer.spec.with_quantizers(data_in=layer.input_format(number))
    weight = layer.weight.detach()[rows]
    own_parameters(made).update(weight=nn.Parameter(weight, layer.weight.requires_grad), bias=None)
    for name in (SCALE_NAMES[operand] for operand in layer.spec.lsq_operands):
        scales = own_parameters(layer).get(name)
        if scales is not None:  # one for all, or as many for each expert
            own = scales if len(scales) == 1 else scales.view(layer.num_experts, -1)[number]
            own_parameters(made)[name] = nn.Parameter(own.detach(), scales.requires_grad)
    ranges = {name: x for name, x in own_buffers(layer).items() if name in RANGE_NAMES.values()}
    own_buffers(made).update(ranges)
    if layer.is_pruned:
        own_buffers(made)[WEIGHT_MASK] = layer.weight_mask[rows]
    return made.train(layer.training)


def _counted_rows_of_experts(node: fx.Node, x: Tensor, batch: Mapping[str, Any]) -> Tensor | None:
    """Returns a boolean (S,), False for rows of padding tokens; None if there is no mask.

    Args:
        node: node that computes the rows.
        x: (S, I), each token once per expert that it is routed to, in order.
        batch: inputs of the graph by name.
    """
    sizes = {
        given.numel()
        for name, given in batch.items()
        if isinstance(given, Tensor) and given.dim() == 2 and name.endswith((MASK, KEY_PADDING))
    }
    for size in sizes:
        if size and len(x) and len(x) % size == 0:
            times = len(x) // size
            counted = counted_rows(node, x[::times], batch)
            if counted is not None:
                return counted.repeat_interleave(times)
    return None


def counted_rows_by_layer(
    mg: MaseGraph, node: fx.Node, x: Tensor, batch: Mapping[str, Any]
) -> Tensor | None:
    """Returns `counted_rows` of a node's result, including layers of several experts."""
    counting = _counted_rows_of_experts if has_experts(mg, node) else counted_rows
    return counting(node, x, batch)


def weighed_samples(
    source: fx.Node,
    values: Iterable[Tensor],
    batches: Sequence[Mapping[str, Any]],
    weights: Sequence[Tensor] | None,
    measured: Measured,
    has_experts: bool,
) -> Iterator[Sample]:
    """Yields the input of a layer and its row weights for each batch.

    Args:
        source: node that the layer reads.
        values: values of the node, for each batch.
        batches: inputs of the graph by name.
        weights: row weights for each batch; None for equal weights.
        measured: name of the layer, for messages.
        has_experts: true if the layer has several experts.

    Raises:
        ConfigError: if a row that counts is not finite.
    """
    counting = _counted_rows_of_experts if has_experts else counted_rows
    for number, (x, batch) in enumerate(zip(values, batches, strict=True)):
        counted = counting(source, x, batch)
        check_finite(x, counted, batch, number, measured)
        alike = None if counted is None else counted.float()
        yield x, alike if weights is None else weights[number]


def samples_of_experts(
    samples: Sequence[Sample], experts: Sequence[Tensor], count: int
) -> Iterator[list[Sample]]:
    """Yields for each expert its rows of each batch that count.

    Args:
        samples: samples of each batch.
        experts: expert of each row, (S,), for each batch.
        count: number of experts.
    """
    for number in range(count):
        rows = []
        for (x, weights), expert in zip(samples, experts, strict=True):
            taken = expert == number if weights is None else (expert == number) & (weights > 0)
            rows.append((x[taken], None if weights is None else weights[taken]))
        yield rows


def rows_in(samples: Sequence[Sample]) -> int:
    """Returns the number of rows."""
    return sum(len(x) for x, _ in samples)


def few_rows(rows: int, inputs: int) -> str | None:
    """Returns the reason that an expert has too few rows for fitting; None if it has enough."""
    if rows >= inputs:
        return None
    return f"it got {rows} rows, fewer than its {inputs} inputs"
