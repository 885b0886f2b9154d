"""AWQ of experts: scales between the two layers of each, from the tokens that it saw.

The second layer of an expert reads the product of what its gate lets through and half of the first
layer's results. Rows of that half are divided, and columns of the second layer multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.formats import NumberFormat
from chop.ir.batches import Runs
from chop.ir.graph import MaseGraph
from chop.ir.ownership import Ownership
from chop.ir.rows import Measured
from chop.nn.quantized.masks import stored_weights
from chop.quantization.folding.check import FoldCheck
from chop.quantization.folding.folding import representable_in, why_infeasible
from chop.quantization.folding.scale_search import Found, search_scale
from chop.quantization.rounding.experts import (
    few_rows,
    has_experts,
    is_cut_by_experts,
    rows_in,
    samples_of_experts,
    weighed_samples,
)
from chop.quantization.rounding.row_weights import RowWeights, second_moments


@dataclass(frozen=True)
class ExpertSite:
    """The two layers of experts between which scales can move.

    Attributes:
        up: the first layer's node.
        value: what the second one reads.
        down: its node.
    """

    up: fx.Node
    value: fx.Node
    down: fx.Node

    @property
    def source(self) -> fx.Node:
        """The first layer's node."""
        return self.up

    @property
    def readers(self) -> list[fx.Node]:
        """The second layer's node."""
        return [self.down]

    def region(self) -> list[fx.Node]:
        """The nodes from the first layer to the second one, in order."""
        after, before = {self.up}, {self.down}
        nodes = [*self.up.graph.nodes]
        nodes = nodes[nodes.index(self.up) : nodes.index(self.down) + 1]
        for node in nodes:
            after |= {node} if after & set(node.all_input_nodes) else set()
        for node in reversed(nodes):
            before |= {node} if before & set(node.users) else set()
        return [node for node in nodes if node in after & before]

    def names(self, number: int) -> tuple[str, str]:
        """Paths of the two layers of an expert, `path[3]`."""
        return f"{self.up.target}[{number}]", f"{self.down.target}[{number}]"

    def parts(self, mg: MaseGraph, number: int) -> tuple[list[Tensor], list[Tensor]]:
        """What is multiplied for an expert, (outputs, inputs) each, and what is divided by rows."""
        up: Any = mg.module_of(self.up)
        down: Any = mg.module_of(self.down)
        rows = slice(number * down.out_features, (number + 1) * down.out_features)
        multiplied = [x.detach()[rows] for x in stored_weights(down)]
        half = slice(down.in_features, up.out_features)
        divided = [
            x.detach().view(up.num_experts, up.out_features, -1)[number, half]
            for x in stored_weights(up)
        ]
        divided += [] if up.bias is None else [up.bias.detach()[number, half]]
        return multiplied, divided


def find_expert_sites(
    mg: MaseGraph, weight: NumberFormat
) -> tuple[list[ExpertSite], dict[str, str]]:
    """The layers of experts that can be scaled, and reasons by node why others cannot.

    Args:
        mg: the graph.
        weight: the format that weights are going to have.
    """
    owned, sites, skipped = Ownership(mg), list[ExpertSite](), dict[str, str]()
    for node in filter(lambda node: has_experts(mg, node), mg.nodes):
        up = _up(mg, node)
        if up is None:
            skipped[node.name] = "its experts read no product of half of another layer's results"
            continue
        if not is_cut_by_experts(weight):
            skipped[node.name] = "scales of its format are of all experts"
            continue
        reasons = [why_infeasible(mg, each, owned) for each in (node, up)]
        reason = next((text for text in reasons if text is not None), None)
        if reason is None:
            sites.append(ExpertSite(up, node.all_input_nodes[0], node))
        else:
            skipped[node.name] = reason
    for site in sites:
        skipped[site.up.name] = "a router and all experts read its inputs"
    return sites, skipped


def _up(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """The layer whose second half of results is a factor of what a layer of experts reads."""
    value = node.all_input_nodes[0]
    if not mg.operator(value).is_bilinear or [*value.users] != [node]:
        return None
    for half in value.all_input_nodes:
        halves = half.all_input_nodes[0] if half.all_input_nodes else half
        up = halves.all_input_nodes[0] if halves.all_input_nodes else halves
        is_half = mg.operator(half).name == "getitem" and half.args[1] == 1
        is_half &= _cuts_in_two(mg, halves) and has_experts(mg, up)
        is_alone = [[*x.users] for x in (half, up)] == [[value], [halves]]
        if is_half and is_alone and up.all_input_nodes[1] is node.all_input_nodes[1]:
            return up
    return None


def _cuts_in_two(mg: MaseGraph, node: fx.Node) -> bool:
    axis = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else None)
    parts = node.kwargs.get("chunks", node.args[1] if len(node.args) > 1 else None)
    return mg.operator(node).name == "chunk" and (parts, axis) == (2, -1)


def choose_for_experts(
    mg: MaseGraph,
    site: ExpertSite,
    runs: Runs,
    batches: Sequence[Mapping[str, Any]],
    weights: RowWeights,
    search: tuple[NumberFormat, int],
    where: str,
) -> tuple[dict[int, Found], dict[int, str]]:
    """What is chosen for each expert, and why for others nothing is.

    Args:
        mg: the graph.
        site: from `find_expert_sites`.
        runs: values of nodes on each batch.
        batches: the inputs.
        weights: what each row counts; empty: alike.
        search: the format, and the exponents to try.
        where: what was given, for messages.
    """
    down: Any = mg.module_of(site.down)
    samples = list(
        weighed_samples(
            site.value,
            (values[site.value] for values in runs),
            batches,
            weights.get(site.down),
            Measured(where, str(site.down.target)),
            has_experts=True,
        )
    )
    experts = [values[site.down.all_input_nodes[1]] for values in runs]
    found, few = dict[int, Found](), dict[int, str]()
    for number, own in enumerate(samples_of_experts(samples, experts, down.num_experts)):
        reason = few_rows(rows_in(own), down.in_features)
        if reason is not None:
            few[number] = reason
            continue
        multiplied, divided = site.parts(mg, number)
        hessian = second_moments((x[None], w) for x, w in own)[0].double()
        inputs = torch.cat([x for x, _ in own])
        one = search_scale([(multiplied[0], hessian)], inputs, *search)
        parts = [(x, 1, one.scale) for x in multiplied] + [(x, 0, 1 / one.scale) for x in divided]
        scale = representable_in(one.scale, one.largest, parts)
        found[number] = one._replace(scale=scale)
    return found, few


def why_experts_change(
    check: FoldCheck, site: ExpertSite, chosen: Mapping[int, Found], count: int
) -> str | None:
    """Why experts would not compute what they do; None where they do.

    Args:
        check: has noted the site.
        site: from `find_expert_sites`.
        chosen: by expert.
        count: of batches.
    """
    down: Any = check.mg.module_of(site.down)
    ones = {"dtype": torch.float64, "device": down.weight.device}
    scales = torch.ones(down.num_experts, down.in_features, **ones)
    for number, one in chosen.items():
        scales[number] = one.scale

    def scale(given: Mapping[fx.Node, Any]) -> Tensor:
        return scales[given[site.down.all_input_nodes[1]]]

    return check.why_changed(site, _folded(check.mg, site, chosen), scale, range(count))


@contextmanager
def _folded(mg: MaseGraph, site: ExpertSite, chosen: Mapping[int, Found]) -> Iterator[None]:
    up: Any = mg.module_of(site.up)
    down: Any = mg.module_of(site.down)
    stored = [*stored_weights(up), *stored_weights(down)]
    stored += [] if up.bias is None else [up.bias]
    kept = [(x.detach(), x.detach().clone()) for x in stored]
    try:
        fold_experts(mg, site, chosen)
        yield
    finally:
        for x, before in kept:
            x.copy_(before)


def fold_experts(mg: MaseGraph, site: ExpertSite, chosen: Mapping[int, Found]) -> None:
    """Multiplies columns of the second layers, and divides rows of the first, in place."""
    for number, one in chosen.items():
        if one.is_changed:
            multiplied, divided = site.parts(mg, number)
            for stored in multiplied:
                stored *= one.scale
            for stored in divided:
                stored /= one.scale.view(-1, *[1] * (stored.dim() - 1))
