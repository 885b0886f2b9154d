"""Vocabulary resizing of quantized embedding tables and output layers.

transformers replaces any output layer by an `nn.Linear`, keeps the class of tables, and assigns
rows to `weight.data`. The functions here also resize per-row state of operators, such as learned
scales and masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.formats import LearnableFormat, initial_scales
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedOperator, pack, write
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.masks import FULL, MASK, SALIENCY
from chop.nn.quantized.state import SCALE_NAMES
from chop.private.modules import own_buffers, own_parameters
from chop.private.transformers_api import wrap_resized

Make = Callable[[nn.Module], nn.Module]
"""Makes a layer for the new vocabulary as transformers does: the same one or a new `nn.Linear`."""


def _resized(model: Any, layer: nn.Module, make: Make) -> nn.Module:
    if not isinstance(layer, QuantizedOperator):
        return make(layer)
    if isinstance(layer, LoraLinear):
        raise ConfigError(
            f"resize_token_embeddings: the output layer, a {type(layer).__name__}, has a LoRA "
            "adapter; resize the vocabulary before that."
        )
    if isinstance(layer, PackedOperator) and _given_scales(layer) is not None:
        return _resized_by_unpacking(model, layer, make)
    return _take(layer, make(layer))


def _take(layer: QuantizedOperator, made: nn.Module) -> QuantizedOperator:
    if made is not layer:
        assert isinstance(made, nn.Linear)
        take_rows(layer, made)
    elif not isinstance(layer, PackedOperator):
        fit_rows(layer)
    return layer


def _resized_by_unpacking(model: Any, layer: PackedOperator, make: Make) -> nn.Module:
    """Resizes a packed layer with per-row scales by unpacking, so that rows and scales change."""
    unpacked: Any = layer.unpack()
    trainable, exact = layer.packed_trainable, layer.packed_exact
    table = model.get_input_embeddings()
    if table is not layer and _is_tied(model, layer, table):
        unpacked.weight = nn.Parameter(table.weight.detach(), requires_grad=False)
        unpacked.spec = unpacked.spec.with_quantizers(weight=table.spec.weight)
    twin = pack(_take(unpacked, make(unpacked)), exact=exact)
    twin.packed_trainable = trainable
    return twin


def _is_tied(model: Any, head: PackedOperator, table: nn.Module) -> bool:
    """Returns whether an output layer shares the weight of a table that is already resized."""
    if not getattr(model, "all_tied_weights_keys", None) or not isinstance(table, PackedOperator):
        return False
    shared = min(len(head.weight), len(table.weight))
    return torch.equal(head.weight[:shared], table.weight[:shared])


def take_rows(layer: QuantizedOperator, other: nn.Linear) -> QuantizedOperator:
    """Copies weight and bias of a linear layer with more or fewer rows into a quantized layer.

    Unchanged rows keep their codes.

    Args:
        layer: quantized layer, changed in place.
        other: linear layer with the same number of inputs.

    Raises:
        ConfigError: if its formats do not fit other rows.
    """
    for name, x in other.named_parameters():
        if isinstance(layer, PackedOperator) and name in layer.packed_shapes:
            write(layer, name, x, takes_rows=True)
        else:
            setattr(layer, name, x)
    vars(layer)["out_features"] = other.out_features
    if not isinstance(layer, PackedOperator):
        fit_rows(layer)
    return layer


@torch.no_grad()
def fit_rows(layer: QuantizedOperator) -> None:
    """Resizes masks and scales of a layer to the present rows of its weight and bias.

    New rows are not masked, and their scales start as in a new layer.
    """
    weight = own_parameters(layer)["weight"]
    assert weight is not None
    for name, fill in ((MASK, torch.ones_like), (FULL, torch.clone), (SALIENCY, torch.zeros_like)):
        buffer = own_buffers(layer).get(name)
        if buffer is not None and len(buffer) != len(weight):
            whole = fill(weight.detach()).to(buffer.dtype)
            own_buffers(layer)[name] = _with_rows(whole, buffer)
    for operand in ("weight", "bias"):
        if own_parameters(layer).get(operand) is not None:
            _fit_learned_scales(layer, operand)
            _fit_given_scales(layer, operand)


def _fit_learned_scales(layer: QuantizedOperator, operand: str) -> None:
    name = SCALE_NAMES[operand]
    learned = own_parameters(layer).get(name)
    if learned is None:
        return
    start = initial_scales(layer.spec.number_format(operand), layer.effective(operand).detach())
    if start.numel() == learned.numel():
        return
    if operand in layer.waiting:  # formats without calibration do not change
        start = learned.detach()[:1].expand(len(start)).clone()
    scales = _with_rows(start.to(learned.dtype), learned.detach())
    setattr(layer, name, nn.Parameter(scales, requires_grad=learned.requires_grad))


def _fit_given_scales(layer: QuantizedOperator, operand: str) -> None:
    number_format, scales = getattr(layer.spec, operand), _given_scales(layer, operand)
    if scales is None:
        return
    measured = number_format.without_scales()
    start = initial_scales(measured, layer.effective(operand).detach())
    if start.numel() != scales.numel():
        fitted = measured.with_scales(_with_rows(start, scales.to(start.device)))
        layer.spec = layer.spec.with_quantizers(**{operand: fitted})


def _given_scales(layer: QuantizedOperator, operand: str = "weight") -> Tensor | None:
    """Returns the fixed per-row scales of a format; None if it has none or one for all rows."""
    number_format = getattr(layer.spec, operand)
    given = number_format.scales if isinstance(number_format, LearnableFormat) else None
    return None if given is None or len(given) < 2 else torch.tensor(given)


def _with_rows(whole: Tensor, rows: Tensor) -> Tensor:
    """Returns a tensor with the leading rows of another, as far as it has them."""
    shared = min(len(whole), len(rows))
    whole[:shared] = rows[:shared]
    return whole


wrap_resized(_resized)
