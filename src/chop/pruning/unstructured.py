"""Unstructured pruning: masks on the weights with the lowest scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.masks import full_weight
from chop.nn.sparsity import (
    SCORES,
    Evidence,
    Granularity,
    Score,
    Scored,
    hidden_of,
    lowest_weights,
    put_mask,
    sparsity_of,
    take_mask,
)
from chop.pruning.layers import as_carrier, choose, prunable_layers, with_sharers
from chop.pruning.saliency import gather
from chop.pruning.settings import PruneConfig, WeightPruning


@dataclass(frozen=True)
class Target:
    """A weight to prune.

    Attributes:
        path: its layer.
        layers: those that use it.
        sparsity: the share to hide.
    """

    path: str
    layers: tuple[Layer, ...]
    sparsity: float

    @property
    def weight(self) -> Tensor:
        """The stored weight."""
        return self.layers[0].weight

    @property
    def modules(self) -> list[QuantizedOperator]:
        """The operators that use it; each carries the mask."""
        return [cast(QuantizedOperator, layer.module) for layer in self.layers]


def prune_weights(mg: MaseGraph, config: PruneConfig, settings: WeightPruning) -> dict[str, Any]:
    """Masks the weights with the lowest scores.

    Returns: what `count_hidden` returns, and `skipped`, the reason by path of layers left out.
    """
    targets, skipped = take_targets(mg, config, settings)
    users = {target.path: target.layers for target in targets}
    evidence = gather(mg, users, settings.method, settings.seed, config.batches)
    hide_lowest(targets, settings, evidence)
    return {**count_hidden(targets), "skipped": skipped}


def take_targets(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> tuple[list[Target], dict[str, str]]:
    """Makes the chosen layers of `mg` operators that can carry masks, and takes old masks off.

    Returns: the weights to prune, each once, and the reason by path of layers left out.
    """
    layers = prunable_layers(mg)
    chosen = choose(layers, settings.shares, config.include, config.exclude)
    granularity = Granularity.parse(settings.granularity)
    targets: list[Target] = []
    skipped: dict[str, str] = {}
    seen: set[int] = set()
    for layer, share in chosen.items():
        reason = granularity.obstacle(layer.weight.shape[layer.axes.inputs])
        if reason is not None:
            skipped[layer.path] = reason
        elif id(layer.module.weight) not in seen:
            seen.add(id(layer.module.weight))
            sharing = with_sharers(mg, layer, layers)
            targets.append(Target(layer.path, tuple(as_carrier(mg, s) for s in sharing), share))
    for target in targets:
        for module in target.modules:
            take_mask(module)
    return targets, skipped


def hide_lowest(
    targets: Sequence[Target],
    settings: WeightPruning,
    evidence: Mapping[str, Evidence],
    growing: bool = False,
) -> None:
    """Puts a mask on every target: the lowest scores are hidden.

    Args:
        targets: the weights.
        settings: score, granularity and scope.
        evidence: of each target, by path.
        growing: what is hidden already stays hidden.
    """
    if not targets:
        return
    score = SCORES[settings.method]
    scored = [_scored(target, score, evidence[target.path], growing) for target in targets]
    marks = lowest_weights(scored, score, Granularity.parse(settings.granularity), settings.scope)
    for target, hidden in zip(targets, marks, strict=True):
        full = full_weight(target.modules[0])
        for module in target.modules:
            put_mask(module, hidden, settings.note, full)


def _scored(target: Target, score: Score, evidence: Evidence, growing: bool) -> Scored:
    values = score.of(target.weight.detach(), evidence)
    hidden = hidden_of(target.modules[0]) if growing else None
    if hidden is not None:
        values = values.masked_fill(hidden, -math.inf)
    return Scored(values, target.layers[0].axes.inputs, target.sparsity)


def count_hidden(targets: Sequence[Target]) -> dict[str, Any]:
    """What is hidden now: the entries of that kind that the pass returns."""
    hidden = {target.path: hidden_of(target.modules[0]) for target in targets}
    count = sum(int(mask.sum()) for mask in hidden.values() if mask is not None)
    total = sum(target.weight.numel() for target in targets)
    return {
        "sparsity": count / max(total, 1),
        "hidden": count,
        "weights": total,
        "layers": {target.path: sparsity_of(target.modules[0]) for target in targets},
    }
