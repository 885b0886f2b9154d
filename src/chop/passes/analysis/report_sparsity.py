"""Counts of zeros in weights and activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from chop.base.tables import print_table
from chop.ir.batches import Batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.pruning.sparsity import ZeroCount, activation_zeros, total, weight_zeros

WHERE = "report_sparsity_analysis_pass"


@dataclass(frozen=True)
class SparsityConfig:
    """Settings of `report_sparsity_analysis_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; without them activations are
            not measured.
        quiet: suppresses the table.
    """

    batches: Batches | None = field(default=None, repr=False)
    quiet: bool = False


@graph_pass(config=SparsityConfig)
def report_sparsity_analysis_pass(mg: MaseGraph, config: SparsityConfig) -> dict[str, Any]:
    """Counts exact zeros in matrices, filters and embedding tables, and in real-valued results.

    Biases and the parameters of norms are excluded. With `batches` the model runs in eval mode, and
    its mode is restored.

    Returns:
        weights: one dict per parameter: `parameter` (its dotted path, the first one if shared),
            `elements`, `hidden` (masked elements), `zeros` (masked, or stored as zero) and `share`
            (zeros of elements).
        activations: one dict per result: `node`, `operator`, `elements`, `zeros` and `share`.
        weight_sparsity: share of zeros in all the weights.
        activation_sparsity: share of zeros in all the results; None without `batches`.

    Raises:
        ConfigError: if `batches` is empty, or an item is not a mapping.
    """
    weights = weight_zeros(mg)
    rows = [{"parameter": k, **_row(n, hidden=masked)} for k, (n, masked) in weights.items()]
    results = {} if config.batches is None else _results(mg, config.batches)
    activations = [
        {"node": node.name, "operator": mg.operator(node).name, **_row(count)}
        for node, count in results.items()
    ]
    if not config.quiet:
        print_table("Zeros in weights", _as_text(rows))
        print_table("Zeros in activations", _as_text(activations))
    return {
        "weights": rows,
        "activations": activations,
        "weight_sparsity": total(count for count, _ in weights.values()).share,
        "activation_sparsity": None if config.batches is None else total(results.values()).share,
    }


def _results(mg: MaseGraph, batches: Batches) -> dict[fx.Node, ZeroCount]:
    return activation_zeros(mg, select_inputs(mg, batches, f"{WHERE}.batches"))


def _row(count: ZeroCount, **more: int) -> dict[str, Any]:
    return {"elements": count.elements, **more, "zeros": count.zeros, "share": count.share}


def _as_text(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "share": f"{row['share']:.1%}"} for row in rows]
