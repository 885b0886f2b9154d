"""Insertion of LoRA adapters into the linear layers of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from torch import nn

from chop.ir.graph import MaseGraph
from chop.ir.parameters import ParameterCount
from chop.lora.layers import attach
from chop.nn.lora import LoraLinear, freeze, list_adapters
from chop.nn.quantized.computed import warn_about_plain_weights, why_computed
from chop.private.modules import own_parameters

WHERE = "insert_lora_adapter_transform_pass"

TrainBias = Literal["none", "lora_only", "all"]


def insert_adapters(
    mg: MaseGraph,
    targets: Mapping[str, nn.Linear],
    adapter: Mapping[str, Any],
    saved: Collection[str],
    train_bias: TrainBias,
) -> dict[str, Any]:
    """Adds adapters to Linear layers and freezes all other parameters, in place.

    Args:
        mg: graph without adapters.
        targets: Linear layers by path.
        adapter: arguments of `LoraLinear.around`.
        saved: paths of fully trained modules.
        train_bias: selection of trained biases.
    Returns: `inserted`, number of layers; `trainable_before` and `trainable_after`, numbers of
    parameters; `layers`, rows of `layer`, `rank`, `before` and `after`.
    """
    warn_about_plain_weights(
        WHERE, {path: why_computed(linear) for path, linear in targets.items()}
    )
    before = {path: ParameterCount.of(linear).trainable for path, linear in targets.items()}
    trainable_before = ParameterCount.of(mg.model).trainable
    freeze(mg.model)
    attach(mg, {path: LoraLinear.around(linear, **adapter) for path, linear in targets.items()})
    _train_also(mg, saved, train_bias)
    rows = [
        {"layer": path, "rank": layer.rank, "before": before[path], "after": count.trainable}
        for path, layer in list_adapters(mg.model).items()
        if (count := ParameterCount.of(layer))
    ]
    return {
        "inserted": len(targets),
        "trainable_before": trainable_before,
        "trainable_after": ParameterCount.of(mg.model).trainable,
        "layers": rows,
    }


def _train_also(mg: MaseGraph, saved: Iterable[str], train_bias: TrainBias) -> None:
    """Unfreezes complete modules, and the biases that `train_bias` selects."""
    for path in saved:
        for parameter in mg.model.get_submodule(path).parameters():
            parameter.requires_grad_(True)
    owners = mg.model.modules() if train_bias == "all" else list_adapters(mg.model).values()
    for module in owners if train_bias != "none" else ():
        bias = own_parameters(module).get("bias")
        if bias is not None:
            bias.requires_grad_(True)
