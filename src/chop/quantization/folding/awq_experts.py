"""AWQ of experts: scales between the two layers of each expert, from the tokens routed to it.

The second layer of an expert reads the product of the activated gate and one half of the first
layer's results. Rows of that half are divided, and columns of the second layer are multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from chop.quantization.folding.folding import Change, representable_in, why_infeasible
from chop.quantization.folding.scale_search import BestScale, search_scale
from chop.quantization.rounding.experts import (
    few_rows,
    has_experts,
    is_cut_by_experts,
    rows_in,
    samples_of_experts,
    weighed_samples,
)
from chop.quantization.rounding.row_weights import RowWeights, second_moments
from chop.quantization.walk.walk import Walk


@dataclass(frozen=True)
class ExpertSite:
    """Pair of expert layers between which scales can move.

    Attributes:
        up: node of the first layer.
        value: input of the second layer.
        down: node of the second layer.
    """

    up: fx.Node
    value: fx.Node
    down: fx.Node

    @property
    def source(self) -> fx.Node:
        """Node of the first layer."""
        return self.up

    @property
    def readers(self) -> list[fx.Node]:
        """Node of the second layer."""
        return [self.down]

    def region(self) -> list[fx.Node]:
        """Nodes from the first to the second layer, in order."""
        after, before = {self.up}, {self.down}
        nodes = [*self.up.graph.nodes]
        nodes = nodes[nodes.index(self.up) : nodes.index(self.down) + 1]
        for node in nodes:
            after |= {node} if after & set(node.all_input_nodes) else set()
        for node in reversed(nodes):
            before |= {node} if before & set(node.users) else set()
        return [node for node in nodes if node in after & before]

    def names(self, number: int) -> tuple[str, str]:
        """Returns the paths of an expert's two layers, `path[3]`."""
        return f"{self.up.target}[{number}]", f"{self.down.target}[{number}]"

    def multiplied(self, mg: MaseGraph) -> list[Tensor]:
        """Returns the weights of the second layers."""
        down: Any = mg.get_module(self.down)
        return stored_weights(down)

    def divided(self, mg: MaseGraph) -> list[Tensor]:
        """Returns the weights and biases of the first layers."""
        up: Any = mg.get_module(self.up)
        return [*stored_weights(up), *([] if up.bias is None else [up.bias])]

    def columns(self, mg: MaseGraph, values: Tensor, number: int) -> Tensor:
        """Returns a view (outputs, inputs) of one expert in the multiplied weights."""
        down: Any = mg.get_module(self.down)
        return values.detach()[number * down.out_features : (number + 1) * down.out_features]

    def rows(self, mg: MaseGraph, values: Tensor, number: int) -> Tensor:
        """Returns a view (inputs of the second layer, n) of one expert in the divided tensors."""
        up: Any = mg.get_module(self.up)
        down: Any = mg.get_module(self.down)
        half = slice(down.in_features, up.out_features)
        return values.detach().view(up.num_experts, up.out_features, -1)[number, half]


@dataclass(frozen=True, eq=False)
class ExpertScales:
    """Scales of experts.

    Attributes:
        mg: the graph.
        site: pair of layers.
        best: scales by expert; experts may be missing.
    """

    mg: MaseGraph
    site: ExpertSite
    best: Mapping[int, BestScale]

    @property
    def report(self) -> dict[str, dict[str, Any]]:
        """The reader and the settings of each expert, by the path of its first layer."""
        names = {number: self.site.names(number) for number in self.best}
        return {
            names[number][0]: {"readers": [names[number][1]], **one.settings}
            for number, one in self.best.items()
        }

    def divisor(self, given: Mapping[fx.Node, Any]) -> Tensor:
        """Returns the scale of each row's expert."""
        down: Any = self.mg.get_module(self.site.down)
        ones = {"dtype": torch.float64, "device": down.weight.device}
        scales = torch.ones(down.num_experts, down.in_features, **ones)
        for number, one in self.best.items():
            scales[number] = one.scale
        return scales[given[self.site.down.all_input_nodes[1]]]

    def changes(self, mg: MaseGraph) -> list[Change]:
        """Returns multiplied columns of the second layers and divided rows of the first layers."""
        return [
            *(Change(stored, self._multiply) for stored in self.site.multiplied(mg)),
            *(Change(stored, self._divide) for stored in self.site.divided(mg)),
        ]

    def fold(self, walk: Walk) -> None:
        """Folds the scales now and after each reload of the weights."""
        for change in self.changes(walk.mg):
            walk.change(change.stored, change.apply)

    def _multiply(self, values: Tensor) -> None:
        for number, one in self.best.items():
            if one.is_changed:
                self.site.columns(self.mg, values, number).mul_(one.scale)

    def _divide(self, values: Tensor) -> None:
        for number, one in self.best.items():
            if one.is_changed:
                self.site.rows(self.mg, values, number).div_(one.scale[:, None])


def find_expert_sites(
    mg: MaseGraph, weight: NumberFormat
) -> tuple[list[ExpertSite], dict[str, str]]:
    """Returns the expert layers that can be scaled, and by node the reasons for the others."""
    owned, sites, skipped = Ownership(mg), list[ExpertSite](), dict[str, str]()
    for node in filter(lambda node: has_experts(mg, node), mg.nodes):
        up = _up(mg, node)
        if up is None:
            skipped[node.name] = (
                "its experts do not read a product with half of another layer's results"
            )
            continue
        if not is_cut_by_experts(weight):
            skipped[node.name] = "its format shares scales between experts"
            continue
        reasons = [why_infeasible(mg, each, owned) for each in (node, up)]
        reason = next((text for text in reasons if text is not None), None)
        if reason is None:
            sites.append(ExpertSite(up, node.all_input_nodes[0], node))
        else:
            skipped[node.name] = reason
    for site in sites:
        skipped[site.up.name] = "its inputs are also read by a router and by all experts"
    return sites, skipped


def _up(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """Returns the layer whose second half of results is a factor of an expert layer's input."""
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
    walk: Walk,
    site: ExpertSite,
    runs: Runs,
    weights: RowWeights,
    search: tuple[NumberFormat, int],
    where: str,
) -> tuple[ExpertScales, dict[int, str]]:
    """Chooses a scale for each expert. Returns the scales, and reasons for experts without one.

    Args:
        walk: walk over the graph.
        site: from `find_expert_sites`.
        runs: values of nodes on each batch.
        weights: row weights; empty for equal weights.
        search: the format, and the number of exponents to try.
        where: setting of the batches, for messages.
    """
    mg, index = walk.mg, site.down.all_input_nodes[1]
    down: Any = mg.get_module(site.down)
    samples = list(
        weighed_samples(
            site.value,
            (values[site.value] for values in runs),
            walk.batches,
            weights.get(site.down),
            Measured(where, str(site.down.target)),
            has_experts=True,
        )
    )
    experts = [values[index] for values in runs]
    best, few = dict[int, BestScale](), dict[int, str]()
    for number, own in enumerate(samples_of_experts(samples, experts, down.num_experts)):
        reason = few_rows(rows_in(own), down.in_features)
        if reason is not None:
            few[number] = reason
            continue
        multiplied = [site.columns(mg, x, number) for x in site.multiplied(mg)]
        divided = [site.rows(mg, x, number) for x in site.divided(mg)]
        hessian = second_moments((x[None], w) for x, w in own)[0].double()
        inputs = torch.cat([x for x, _ in own])
        one = search_scale([(multiplied[0], hessian)], inputs, *search)
        parts = [(x, 1, one.scale) for x in multiplied] + [(x, 0, 1 / one.scale) for x in divided]
        scale = representable_in(one.scale, one.largest, parts)
        best[number] = one._replace(scale=scale)
    return ExpertScales(mg, site, best), few
