"""Counts zeros: in weights, and in what really flows through the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from chop.ir.batches import observe_nodes, select_inputs
from chop.ir.graph import MaseGraph
from chop.ir.parameters import masked_weights
from chop.nn.packed import PackedOperator
from chop.nn.sparsity import masked_of
from chop.passes.base import graph_pass
from chop.tables import print_table

WHERE = "report_sparsity_analysis_pass"


@dataclass(frozen=True)
class SparsityConfig:
    """Settings of `report_sparsity_analysis_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; without them activations are
            not looked at.
        quiet: prints no table.
    """

    batches: Iterable[Mapping[str, Any]] | None = field(default=None, repr=False)
    quiet: bool = False


@dataclass(frozen=True)
class WeightRow:
    """Zeros of one parameter.

    Attributes:
        parameter: its dotted path; a shared one has the first.
        elements: how many it has.
        hidden: how many of them a mask hides.
        zeros: how many are exactly zero to the operator: hidden, or stored as zero.
        share: zeros of elements.
    """

    parameter: str
    elements: int
    hidden: int
    zeros: int
    share: float


@dataclass(frozen=True)
class ActivationRow:
    """Zeros in the result of one node, over all batches."""

    node: str
    operator: str
    elements: int
    zeros: int
    share: float


@graph_pass(config=SparsityConfig)
def report_sparsity_analysis_pass(mg: MaseGraph, config: SparsityConfig) -> dict[str, Any]:
    """Tables of exact zeros in matrices, filters and tables, and in results of real numbers.

    Biases and the parameters of norms are left out. With `batches` the model runs in eval mode and
    is left as it was.

    Returns:
        weights: one dict per parameter, see `WeightRow`.
        activations: one dict per result, see `ActivationRow`.
        weight_sparsity: share of zeros in all the weights.
        activation_sparsity: share of zeros in all the results; None without `batches`.

    Raises:
        ConfigError: `batches` is empty, or something in it is no mapping.
    """
    weights = weight_rows(mg)
    activations = [] if config.batches is None else activation_rows(mg, config.batches)
    if not config.quiet:
        print_table("Zeros in weights", _as_text(weights))
        print_table("Zeros in activations", _as_text(activations))
    return {
        "weights": [dataclasses.asdict(row) for row in weights],
        "activations": [dataclasses.asdict(row) for row in activations],
        "weight_sparsity": _share(weights),
        "activation_sparsity": None if config.batches is None else _share(activations),
    }


def weight_rows(mg: MaseGraph) -> list[WeightRow]:
    """A row per parameter of two dimensions or more, packed ones last."""
    masks = masked_weights(mg)
    rows = [
        _weight_row(name, parameter, masks.get(id(parameter)))
        for name, parameter in mg.model.named_parameters()
        if parameter.dim() > 1
    ]
    packed = [item for item in mg.model.named_modules() if isinstance(item[1], PackedOperator)]
    return rows + [
        _weight_row(f"{path}.weight", module.weight, masked_of(module))
        for path, module in packed
        if module.weight.dim() > 1
    ]


def _weight_row(name: str, parameter: Tensor, hidden: Tensor | None) -> WeightRow:
    zero = parameter.detach() == 0
    count = 0
    if hidden is not None:
        count = int(hidden.sum())
        zero |= hidden
    zeros = int(zero.sum())
    return WeightRow(name, zero.numel(), count, zeros, zeros / max(zero.numel(), 1))


def activation_rows(mg: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> list[ActivationRow]:
    """A row per call whose result is one tensor of real numbers, in the order of the graph."""
    counts: dict[fx.Node, tuple[int, int]] = {}

    def count(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        if node.op.startswith("call_") and isinstance(result, Tensor):
            if not result.is_floating_point():
                return
            zeros, elements = counts.get(node, (0, 0))
            counts[node] = zeros + int((result == 0).sum()), elements + result.numel()

    observe_nodes(mg, select_inputs(mg, batches, f"{WHERE}.batches"), count)
    return [
        ActivationRow(node.name, mg.operator(node).name, elements, zeros, zeros / max(elements, 1))
        for node, (zeros, elements) in counts.items()
    ]


def _share(rows: Sequence[WeightRow | ActivationRow]) -> float:
    return sum(row.zeros for row in rows) / max(sum(row.elements for row in rows), 1)


def _as_text(rows: Sequence[WeightRow | ActivationRow]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(row), "share": f"{row.share:.1%}"} for row in rows]
