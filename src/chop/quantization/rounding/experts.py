"""Layers of several experts as a layer for each, with the rows that go to it."""

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
"""Rows of a batch, (S, I), and what they count, (S,); None: alike."""


def has_experts(mg: MaseGraph, node: fx.Node) -> bool:
    """Whether a node calls a layer of several experts."""
    weight = mg.operator(node).weight
    return node.op == "call_module" and weight is not None and weight.has_experts


def is_cut_by_experts(number_format: NumberFormat) -> bool:
    """Whether a format rounds the matrix of an expert as it does within that of all experts."""
    layout = number_format.layout()
    return layout is not None and (
        layout.scaling is None or (layout.levels is None and layout.groups.is_row_separable(2))
    )


def layer_of_expert(layer: Any, number: int) -> QuantLinear:
    """The linear layer of one expert, in the memory of the layer of all.

    Args:
        layer: a `QuantExpertLinear`.
        number: of the expert.
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
    """Boolean (S,), False where a row is of a token that is padding; None where no mask tells.

    Args:
        node: what gives the rows.
        x: (S, I): each token once for each of its experts, in order.
        batch: the inputs of the graph by name.
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
    """`counted_rows` of what a node gives, layers of several experts included."""
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
    """What a layer reads on each batch, and what its rows count.

    Args:
        source: the node that the layer reads.
        values: of it, for each batch.
        batches: the inputs of the graph by name.
        weights: of the rows, for each batch; None: those that count are alike.
        measured: the layer, for messages.
        has_experts: whether the layer has several experts.

    Raises:
        ConfigError: a row that counts is not finite.
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
    """For each expert, its rows of each batch that count.

    Args:
        samples: of each batch.
        experts: of each batch, the expert of each row, (S,).
        count: of experts.
    """
    for number in range(count):
        found = []
        for (x, weights), expert in zip(samples, experts, strict=True):
            taken = expert == number if weights is None else (expert == number) & (weights > 0)
            found.append((x[taken], None if weights is None else weights[taken]))
        yield found


def rows_in(samples: Sequence[Sample]) -> int:
    """How many rows there are."""
    return sum(len(x) for x, _ in samples)


def few_rows(rows: int, inputs: int) -> str | None:
    """Why nothing is fitted to the rows of an expert; None where they are enough."""
    if rows >= inputs:
        return None
    return f"it saw {rows} rows, fewer than its {inputs} inputs"
