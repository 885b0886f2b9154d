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
        path: path of its layer.
        layers: layers that use it.
        sparsity: share to mask.
    """

    path: str
    layers: tuple[Layer, ...]
    sparsity: float

    @property
    def weight(self) -> Tensor:
        """Stored weight."""
        return self.layers[0].weight

    @property
    def modules(self) -> list[QuantizedOperator]:
        """Operators that use it, each of which carries the mask."""
        return [cast(QuantizedOperator, layer.module) for layer in self.layers]

    @property
    def masked(self) -> Tensor:
        """Boolean in the weight's shape, True for elements masked in any of its layers."""
        masks = [mask for module in self.modules if (mask := get_masked(module)) is not None]
        none = torch.zeros(self.weight.shape, dtype=torch.bool, device=self.weight.device)
        return reduce(torch.logical_or, masks, none)


def prune_unstructured(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> dict[str, Any]:
    """Masks the weights with the lowest scores.

    Returns: the result of `count_masked`, and `skipped`, the reasons by path for skipped layers.
    """
    targets, skipped = take_targets(mg, config, settings)
    users = {target.path: target.layers for target in targets}
    score_inputs = gather_score_inputs(mg, users, settings.method, settings.seed, config.batches)
    mask_lowest(targets, settings, score_inputs)
    return {**count_masked(targets), "skipped": skipped}


def take_targets(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> tuple[list[Target], dict[str, str]]:
    """Converts the chosen layers to operators that can carry masks, keeping existing masks.

    Returns: the weights to prune, each once, and the reasons by path for skipped layers.
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
    includes_masked: bool = False,
) -> None:
    """Masks the lowest scores of every target, in addition to existing masks.

    Args:
        targets: weights.
        settings: score, granularity and scope.
        score_inputs: score inputs of each target, by path.
        includes_masked: see `lowest_weights`.
    """
    if not targets:
        return
    score, granularity = SCORES[settings.method], Granularity.parse(settings.granularity)
    scored = [_scored(target, score, score_inputs[target.path]) for target in targets]
    marks = lowest_weights(scored, score, granularity, settings.scope, includes_masked)
    for target, masked in zip(targets, marks, strict=True):
        full = full_weight(target.modules[0])
        for module in target.modules:
            attach_mask(module, masked, settings.note, full)


def _scored(target: Target, score: Score, score_inputs: ScoreInputs) -> Scored:
    weight = target.modules[0].effective("weight")
    values = compute_scores(target.path, weight, score, score_inputs)
    return Scored(values, target.layers[0].axes.inputs, target.sparsity, target.masked)


def count_masked(targets: Sequence[Target]) -> dict[str, Any]:
    """Returns the current `sparsity`, `hidden`, `weights` and `layers` of the pass info."""
    count = sum(int(target.masked.sum()) for target in targets)
    total = sum(target.weight.numel() for target in targets)
    return {
        "sparsity": count / max(total, 1),
        "hidden": count,
        "weights": total,
        "layers": {target.path: get_sparsity(target.modules[0]) for target in targets},
    }
