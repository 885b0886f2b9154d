"""Unstructured pruning: masks on the weights with the lowest scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor

from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.computed import warn_about_plain_weights, why_computed
from chop.nn.quantized.masks import full_weight
from chop.nn.sparsity import (
    SCORES,
    Granularity,
    Score,
    Scored,
    ScoreInputs,
    attach_mask,
    get_masked,
    get_sparsity,
    lowest_weights,
)
from chop.pruning.layers import as_maskable, choose, prunable_layers, with_sharers
from chop.pruning.saliency import compute_scores, gather_score_inputs
from chop.pruning.settings import WHERE, PruneConfig, WeightPruning


@dataclass(frozen=True)
class Target:
    """Weight to prune, and the layers that share it.

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

    @property
    def masked(self) -> Tensor:
        """Boolean, the weight's shape: True for what the mask of any of its layers hides."""
        masks = [mask for module in self.modules if (mask := get_masked(module)) is not None]
        none = torch.zeros(self.weight.shape, dtype=torch.bool, device=self.weight.device)
        return reduce(torch.logical_or, masks, none)


def prune_unstructured(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> dict[str, Any]:
    """Masks the weights with the lowest scores.

    Returns: what `count_masked` returns, and `skipped`, the reason by path of layers left out.
    """
    targets, skipped = take_targets(mg, config, settings)
    users = {target.path: target.layers for target in targets}
    score_inputs = gather_score_inputs(mg, users, settings.method, settings.seed, config.batches)
    mask_lowest(targets, settings, score_inputs)
    return {**count_masked(targets), "skipped": skipped}


def take_targets(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> tuple[list[Target], dict[str, str]]:
    """Makes the chosen layers of `mg` operators that can carry masks; masks that are there stay.

    Returns: the weights to prune, each once, and the reason by path of layers left out.
    """
    layers = prunable_layers(mg)
    chosen = choose(layers, settings.shares, config.include, config.exclude)
    computed = {layer: why_computed(layer.module) for layer in chosen}
    plain = {layer: as_maskable(mg, layer) for layer, reason in computed.items() if reason}
    layers = [plain.get(layer, layer) for layer in layers]
    chosen = {plain.get(layer, layer): share for layer, share in chosen.items()}
    warn_about_plain_weights(WHERE, {layer.path: reason for layer, reason in computed.items()})
    granularity = Granularity.parse(settings.granularity)
    targets: list[Target] = []
    skipped: dict[str, str] = {}
    seen: set[int] = set()
    for layer, share in chosen.items():
        reason = granularity.why_infeasible(layer.weight.shape[layer.axes.inputs])
        if reason is not None:
            skipped[layer.path] = reason
        elif id(layer.module.weight) not in seen:
            seen.add(id(layer.module.weight))
            sharing = with_sharers(mg, layer, layers)
            targets.append(Target(layer.path, tuple(as_maskable(mg, s) for s in sharing), share))
    return targets, skipped


def mask_lowest(
    targets: Sequence[Target],
    settings: WeightPruning,
    score_inputs: Mapping[str, ScoreInputs],
    of_all: bool = False,
) -> None:
    """Masks the lowest scores of every target, besides what is masked already.

    Args:
        targets: the weights.
        settings: score, granularity and scope.
        score_inputs: of each target, by path.
        of_all: see `lowest_weights`.
    """
    if not targets:
        return
    score, granularity = SCORES[settings.method], Granularity.parse(settings.granularity)
    scored = [_scored(target, score, score_inputs[target.path]) for target in targets]
    marks = lowest_weights(scored, score, granularity, settings.scope, of_all)
    for target, masked in zip(targets, marks, strict=True):
        full = full_weight(target.modules[0])
        for module in target.modules:
            attach_mask(module, masked, settings.note, full)


def _scored(target: Target, score: Score, score_inputs: ScoreInputs) -> Scored:
    weight = target.modules[0].effective("weight")
    values = compute_scores(target.path, weight, score, score_inputs)
    return Scored(values, target.layers[0].axes.inputs, target.sparsity, target.masked)


def count_masked(targets: Sequence[Target]) -> dict[str, Any]:
    """Sparsity now: `sparsity`, `hidden`, `weights` and `layers` of the pass's info."""
    count = sum(int(target.masked.sum()) for target in targets)
    total = sum(target.weight.numel() for target in targets)
    return {
        "sparsity": count / max(total, 1),
        "hidden": count,
        "weights": total,
        "layers": {target.path: get_sparsity(target.modules[0]) for target in targets},
    }
