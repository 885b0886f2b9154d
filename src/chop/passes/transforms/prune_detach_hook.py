"""Removal of masks and pruners, keeping the zeros in the weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.ir.graph import MaseGraph
from chop.nn.lora import refuse_adapters
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.base import float_class
from chop.nn.sparsity import PruneActivation, make_permanent
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig)
def prune_detach_hook_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Removes masks, masked values and activation pruners; the zeros stay in the weights.

    A module with only float formats becomes its plain `torch.nn` class again. Results do not change
    if activations are not pruned. Further training may change the zeros.

    Returns:
        masks: number of masks made permanent.
        pruners: number of activation pruners removed.

    Raises:
        GraphError: if the graph has LoRA adapters, whose updates are masked as well.
    """
    refuse_adapters(mg.model, "prune_detach_hook_transform_pass")
    masks = 0
    for _, module in mg.model.named_modules():
        if isinstance(module, QuantizedOperator) and module.is_pruned:
            make_permanent(module)
            masks += 1
    pruners = 0
    for node in mg.nodes:
        if isinstance(mg.get_module(node), PruneActivation):
            mg.erase(node)
            parent, _, name = str(node.target).rpartition(".")
            delattr(mg.model.get_submodule(parent), name)
            pruners += 1
    _make_plain(mg)
    return {"masks": masks, "pruners": pruners}


def _make_plain(mg: MaseGraph) -> None:
    plain: dict[int, nn.Module] = {}
    for node in mg.nodes:
        module = mg.get_module(node)
        if isinstance(module, QuantizedOperator) and _is_float_module(module):
            mg.replace(node, plain.setdefault(id(module), _plain_twin(module)))


def _is_float_module(module: QuantizedOperator) -> bool:
    """Returns true for a module of `torch.nn` in float formats, except function calls."""
    return module.function is None and module.spec.is_float


def _plain_twin(module: QuantizedOperator) -> nn.Module:
    cls = float_class(type(module))
    twin = cls.__new__(cls)
    twin.__dict__.update({name: x for name, x in module.__dict__.items() if name != "spec"})
    return twin
