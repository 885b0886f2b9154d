"""Packed model of transformers that a graph stands for, for targets whose files hold weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.captured.layers.experts import expert_layer, matrices_by_parameter
from chop.errors import ConfigError
from chop.export.graphs.flat import output_tensors
from chop.export.refusals import weight_refusals
from chop.export.target import Runner
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator, pack
from chop.nn.packed.packing import why_not_packable
from chop.nn.quantized import QuantizedOperator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KNOWN_CODE = ("torch", "transformers", "transformers_modules", "chop")
"""Packages of modules that an architecture is made of, those that a folder brings among them."""


def packed_model(
    mg: MaseGraph, target: str, rounds_inputs: bool = False
) -> tuple[PreTrainedModel, dict[str, str]]:
    """The model of transformers that a graph stands for, its quantized layers packed.

    Args:
        mg: the graph; it stays as it is, and shares its tensors.
        target: for messages.
        rounds_inputs: whether packed linear layers may round their inputs.
    Returns: the model, and by path of a module why a file of weights alone cannot hold it,
        whatever its format.

    Raises:
        ConfigError: the graph is of no model of transformers, or of one with a forward of its own,
            or nothing in it is quantized.
        GraphError: the model cannot be given back, see `MaseGraph.to_module`.
    """
    from transformers import PreTrainedConfig, PreTrainedModel

    from chop.ir.huggingface.stored import drop_masks
    from chop.quantization.packing import Selection, pack_layers

    if not isinstance(mg.model.record.config, PreTrainedConfig):
        raise _not_of_transformers(target, mg.model.record.class_name)
    packed, floats, nothing = mg.sharing_copy(), dict[str, str](), None
    try:
        _, floats = pack_layers(packed, Selection(), exact=False)
    except ConfigError as error:  # but a layer that is tied to a float one can part from it
        nothing = error
    model = packed.to_module().eval()
    _pack_tied(model)
    if nothing is not None and not packed_layers(model):
        raise nothing
    if not isinstance(model, PreTrainedModel):
        raise _not_of_transformers(target, type(model).__name__)
    drop_masks(model)
    _check_code(model, target)
    return model, weight_refusals(model, floats, rounds_inputs)


def _not_of_transformers(target: str, class_name: str) -> ConfigError:
    return ConfigError(
        f"{target}: expected a model of transformers, which its engines run by code of their own, "
        f"got a {class_name}; onnx and pt2 hold the graph of any model."
    )


def _check_code(model: nn.Module, target: str) -> None:
    """Checks that the model runs no code but that of its architecture, which engines have.

    Raises:
        ConfigError: with the module whose `forward` is somebody else's.
    """
    for path, module in model.named_modules():
        home = module.forward.__module__.partition(".")[0]
        if home not in KNOWN_CODE:
            raise ConfigError(
                f"{target}: expected the code of an architecture of transformers, which engines "
                f"implement themselves, got {path or 'a model'} with the forward of "
                f"{type(module).__name__} in {module.forward.__module__}, which the file would "
                "lose; onnx and pt2 hold the graph of any model."
            )


def _pack_tied(model: nn.Module) -> None:
    """Packs layers that share their weight with a float one, from which they part."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, QuantizedOperator) and why_not_packable(module) is None:
            model.set_submodule(path, pack(module))


def get_runner(model: nn.Module) -> Runner:
    """A model of transformers as what gives outputs by name."""

    @torch.no_grad()
    def answers(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        return output_tensors(model(**inputs))

    return answers


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model's layers by path, decoded where they are packed.

    Fused experts are the layers that they can be made of.
    """
    found: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        found[path] = getattr(module, "weight", None)
        for name, layer in matrices_by_parameter(module).items():
            weight = module.get_parameter(name)
            found[f"{path}.{layer}"] = expert_layer(module, name, weight, {}).weight
    return {path: x.detach() for path, x in found.items() if isinstance(x, Tensor)}


def packed_layers(model: nn.Module) -> dict[str, PackedOperator]:
    """The packed layers of a model by path; tied ones at each of their paths."""
    named = model.named_modules(remove_duplicate=False)
    return {path: module for path, module in named if isinstance(module, PackedOperator)}
