"""Vocabularies of another size: the output layer stays quantized.

transformers makes an `nn.Linear` of any output layer. Tables keep their kind there, and assign rows
to `weight.data`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from chop.errors import ConfigError
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedOperator, write
from chop.nn.quantized import QuantizedOperator
from chop.private.transformers_api import wrap_resized_head


def _resized_head(head: nn.Module, make: Callable[[nn.Module], nn.Linear]) -> nn.Module:
    made = make(head)
    if made is head or not isinstance(head, QuantizedOperator):
        return made
    return take_rows(head, made)


def take_rows(layer: QuantizedOperator, other: nn.Linear) -> QuantizedOperator:
    """Gives a quantized linear layer the weight and the bias of one with more rows, or fewer.

    Rows that are as before keep their codes.

    Args:
        layer: is changed.
        other: a linear layer of as many inputs.

    Raises:
        ConfigError: the layer has an adapter or is pruned, or its formats do not fit other rows.
    """
    has = "has a LoRA adapter" if isinstance(layer, LoraLinear) else None
    has = "is pruned" if layer.is_pruned else has
    if has is not None:
        raise ConfigError(
            f"resize_token_embeddings: the output layer, a {type(layer).__name__}, {has}; resize "
            "the vocabulary before that."
        )
    for name, x in other.named_parameters():
        if isinstance(layer, PackedOperator) and name in layer.packed_shapes:
            write(layer, name, x, takes_rows=True)
        else:
            setattr(layer, name, x)
    vars(layer)["out_features"] = other.out_features
    return layer


wrap_resized_head(_resized_head)
