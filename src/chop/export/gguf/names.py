"""GGUF names of the tensors of transformers models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.layers.experts import matrices_by_parameter
from chop.export.gguf.architectures import Architecture
from chop.nn.packed import PackedOperator
from chop.private.modules import own_parameters

NORM, WEIGHT, SCALE = "norm.weight", ".weight", ".scale"
SHARED_GATE = "ffn_gate_inp_shexp.weight"


class Named(NamedTuple):
    """Parameter with its GGUF name and form.

    Attributes:
        path: path of its module.
        operand: `weight` or `bias`.
        module: its module.
        name: name in a file; None if the architecture has no such tensor.
        key: name in a transformers model.
        is_interleaved: rows are stored in another order, with rotated pairs adjacent.
        is_less_one: stored as the weight plus 1.
        is_vector: stored as its single row.
        experts: number of experts with vertically stacked matrices; 0 for one matrix.
        half: 0 or 1 for half of the rows of each expert; None for all.
    """

    path: str
    operand: str
    module: nn.Module
    name: str | None
    key: str
    is_interleaved: bool = False
    is_less_one: bool = False
    is_vector: bool = False
    experts: int = 0
    half: int | None = None


def named_parameters(model: Any, architecture: Architecture) -> Iterator[Named]:
    """Returns every parameter of a model, packed or float; tied ones at each of their paths."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = get_tensor_name_map(arch, model.config.num_hidden_layers)
    for path, module in model.named_modules(remove_duplicate=False):
        layers = matrices_by_parameter(module)
        for own, layer in layers.items():
            weight = own_parameters(module)[own]
            assert weight is not None
            yield from _expert_weights(path, own, module, (layer, len(weight)), names)
        if isinstance(module, ExpertLinear):
            owner, _, layer = path.rpartition(".")
            made = (layer, module.num_experts)
            yield from _expert_weights(path, WEIGHT[1:], module, made, names, owner)
            continue
        packed = module.packed_shapes if isinstance(module, PackedOperator) else {}
        present = [name for name, x in own_parameters(module).items() if x is not None]
        is_turned = architecture.permutes and path.endswith((".q_proj", ".k_proj"))
        for operand in dict.fromkeys([*packed, *present]):
            if operand in layers:
                continue
            key = f"{path}.{operand}"
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            is_less_one = architecture.adds_one and str(name).endswith(NORM)
            is_vector = str(name).endswith(SHARED_GATE)
            yield Named(path, operand, module, name, key, is_turned, is_less_one, is_vector)


def _expert_weights(
    path: str,
    operand: str,
    module: nn.Module,
    made: tuple[str, int],
    names: Any,
    owner: str | None = None,
) -> Iterator[Named]:
    """Yields the weight of a layer of several experts, or its halves.

    Args:
        path: path of the module.
        operand: name of the parameter.
        module: the module.
        made: layer of `FusedExperts` and number of experts.
        names: name map of the gguf library.
        owner: path of the fused experts; None for that of the module.
    """
    layer, count = made
    owner = path if owner is None else owner
    key = f"{owner}.{layer}_proj"
    # gguf has names for matrices of one expert, which are those of all of them in a file.
    parts = {"gate_up": (("gate", 0), ("up", 1))}.get(layer, ((layer, None),))
    for part, half in parts:
        name = names.get_name(f"{owner}.{part}_proj")
        name = None if name is None else name + WEIGHT
        yield Named(path, operand, module, name, key, experts=count, half=half)


def get_heads(path: str, config: Any) -> int:
    """Returns the number of heads of a query or key projection."""
    is_key = path.endswith(".k_proj")
    return int(config.num_key_value_heads if is_key else config.num_attention_heads)


def scale_name(name: str) -> str:
    """Returns the name of the tensor that scales another one."""
    return name.removesuffix(WEIGHT) + SCALE
