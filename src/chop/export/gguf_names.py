"""GGUF names: what the tensors of a model of transformers are called in a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from chop.export.gguf_architectures import Architecture
from chop.nn.packed import PackedOperator
from chop.private.modules import parameters_of

NORM, WEIGHT, SCALE = "norm.weight", ".weight", ".scale"


class Named(NamedTuple):
    """A parameter.

    Attributes:
        path: of its module.
        operand: `weight` or `bias`.
        module: the module.
        name: in a file; None: an architecture has no such tensor.
        is_interleaved: its rows are in another order in a file, pairs beside each other.
        is_less_one: a file has it plus 1.
    """

    path: str
    operand: str
    module: nn.Module
    name: str | None
    is_interleaved: bool
    is_less_one: bool


def named_parameters(model: Any, architecture: Architecture) -> Iterator[Named]:
    """Every parameter of a model, packed or float; tied ones at each of their paths.

    Args:
        model: of transformers.
        architecture: its own.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = get_tensor_name_map(arch, model.config.num_hidden_layers)
    for path, module in model.named_modules(remove_duplicate=False):
        packed = module.packed_shapes if isinstance(module, PackedOperator) else {}
        present = [name for name, x in parameters_of(module).items() if x is not None]
        is_turned = architecture.permutes and path.endswith((".q_proj", ".k_proj"))
        for operand in dict.fromkeys([*packed, *present]):
            name = names.get_name(f"{path}.{operand}", try_suffixes=(".weight", ".bias"))
            is_less_one = architecture.adds_one and str(name).endswith(NORM)
            yield Named(path, operand, module, name, is_turned, is_less_one)


def heads_of(path: str, config: Any) -> int:
    """Heads of a query or key projection."""
    is_key = path.endswith(".k_proj")
    return int(config.num_key_value_heads if is_key else config.num_attention_heads)


def scale_name(name: str) -> str:
    """The tensor that the values of another one are multiplied by, where there is such a one."""
    return name.removesuffix(WEIGHT) + SCALE
