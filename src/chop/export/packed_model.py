"""Packed transformers model of a graph, for targets that store weights without a graph."""

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
"""Packages that define an architecture's modules, including code that a folder brings."""


def packed_model(
    mg: MaseGraph, target: str, rounds_inputs: bool = False
) -> tuple[PreTrainedModel, dict[str, str]]:
    """Returns the transformers model of a graph, with packed quantized layers.

    Args:
        mg: graph; it is not changed, and shares its tensors.
        target: name of the target, for messages.
        rounds_inputs: accepts packed linear layers with rounded inputs.
    Returns: the model, and by path why modules cannot be stored in a file of weights.

    Raises:
        ConfigError: if the graph is not of a transformers model or of one with its own forward, or
            if nothing is quantized.
        GraphError: if the model cannot be restored, see `MaseGraph.to_module`.
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
        f"{target}: expected a transformers model, because its engines implement these "
        f"architectures, got a {class_name}; the targets onnx and pt2 support any model."
    )


def _check_code(model: nn.Module, target: str) -> None:
    """Checks that the model runs only the code of its architecture, which engines implement.

    Raises:
        ConfigError: if a module has a foreign `forward`; the message names it.
    """
    for path, module in model.named_modules():
        home = module.forward.__module__.partition(".")[0]
        if home not in KNOWN_CODE:
            raise ConfigError(
                f"{target}: engines run the code of transformers' architectures, but "
                f"{path or 'the model'} has the forward of {type(module).__name__} in "
                f"{module.forward.__module__}, which the file would lose; the targets onnx and pt2 "
                "support any model."
            )


def _pack_tied(model: nn.Module) -> None:
    """Packs layers that share their weight with a float layer, which unties them."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, QuantizedOperator) and why_not_packable(module) is None:
            model.set_submodule(path, pack(module))


def get_runner(model: nn.Module) -> Runner:
    """Wraps a transformers model to return outputs by name."""

    @torch.no_grad()
    def answers(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        return output_tensors(model(**inputs))

    return answers


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns the weights of a model's layers by path, decoded if packed.

    Fused experts are split into the layers that they can be built from.
    """
    weights: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        weights[path] = getattr(module, "weight", None)
        for name, layer in matrices_by_parameter(module).items():
            weight = module.get_parameter(name)
            weights[f"{path}.{layer}"] = expert_layer(module, name, weight, {}).weight
    return {path: x.detach() for path, x in weights.items() if isinstance(x, Tensor)}


def packed_layers(model: nn.Module) -> dict[str, PackedOperator]:
    """Returns the packed layers of a model by path; tied ones at each of their paths."""
    named = model.named_modules(remove_duplicate=False)
    return {path: module for path, module in named if isinstance(module, PackedOperator)}
