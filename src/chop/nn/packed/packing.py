"""Packing of quantized operators into twins that store codes."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import nn

from chop.captured.overrides import why_not_its_class
from chop.config import convert
from chop.errors import ConfigError, describe
from chop.formats import NumberFormat
from chop.nn.packed.base import (
    PACKED,
    KnownCodes,
    PackedOperator,
    encoded,
    packable_operands,
)
from chop.nn.packed.encoding import parts_of_rows
from chop.nn.quantized import QuantizedOperator


def packed_class(layer: nn.Module) -> type[PackedOperator] | None:
    """Returns the class that packs a layer; None if there is none, or the layer computes more."""
    for ancestor in type(layer).__mro__:
        if ancestor in PACKED and ancestor.forward is type(layer).forward:
            return PACKED[ancestor]
    return None


def why_not_packable(layer: nn.Module, known: KnownCodes | None = None) -> str | None:
    """Explains why a layer cannot be packed; None if it can.

    Args:
        layer: any module.
        known: receives codes that were computed for the answer.
    """
    if isinstance(layer, PackedOperator):
        return "is already packed"
    if not isinstance(layer, QuantizedOperator) or layer.spec.weight.is_identity:
        return "has no format for its weight"
    if layer.spec.lsq_operands:
        return "learns its scales: layer.freeze_scales() makes them part of its formats"
    reason = why_not_its_class(layer)
    if reason is not None:
        return f"differs from its class: {reason}"
    if packed_class(layer) is None:
        return f"is a {type(layer).__name__}, which has no packed form"
    if not isinstance(layer.spec.weight, NumberFormat):
        return f"has {layer.spec.weight.label} instead of a number format for its weight"
    if not layer.spec.weight.is_fitted:
        return "has an uncalibrated weight format"
    if not layer.spec.weight.is_deterministic:
        return "has a weight format with stochastic rounding"
    return _inexact(layer, {} if known is None else known)


def _inexact(layer: QuantizedOperator, known: KnownCodes) -> str | None:
    """Describes the values of a layer that codes cannot represent."""
    for name in packable_operands(layer):
        stored = layer.spec.number_format(name)
        x = layer.effective(name).detach()
        count = max(1, len(x)) if layer.is_pruned else parts_of_rows(stored, x)
        if not all(rows.isfinite().all() for rows in x.split(count)):
            return f"has non-finite values in its {name}"
        codes = encoded(layer, name, known)
        for first, rows in zip(range(0, len(x), count), x.split(count), strict=False):
            index = torch.arange(first, first + len(rows), device=x.device)
            part = codes if len(rows) == len(x) else codes.take_rows(index)
            if not torch.equal(stored.decode(part), layer.quantize(name, rows)):
                return f"has a pruning mask, but {stored.label} cannot represent zero"
    return None


def pack(
    layer: QuantizedOperator, known: KnownCodes | None = None, exact: bool = False
) -> PackedOperator:
    """Returns a layer's packed twin, which computes the same outputs from codes.

    Kernels of linear layers add in another order, so outputs differ by float32 rounding, also
    between numbers of rows. If `torch.set_float32_matmul_precision("medium")` allows it and the CPU
    is faster in bfloat16, they also round inputs and results of many rows to it: by at most 2^-7 or
    3/256 of the sum of the products' magnitudes, depending on the format
    (`chop.kernels.cpu.packed.bfloat16_roundings`). That is about 54 dB, compared with 43 dB for
    8-bit weights. `exact` gives bit-identical outputs, but decodes each weight before use. All
    other layers are always bit-identical.

    Everything but the quantized parameters is shared with `layer`. A pruning mask is packed with
    its weight.

    Args:
        layer: a quantized operator with a weight format.
        known: codes of parameters that other layers have packed; read and extended.
        exact: computes outputs bit-identical to the layer's.

    Raises:
        ConfigError: if the layer cannot be packed; the message has the reason.

    Example:
        >>> from chop.nn.quantized import QuantLinear
        >>> layer = QuantLinear(64, 32, bias=False, config={"weight": {"name": "mxint"}})
        >>> pack(layer).packed_bits("weight")
        8.25
    """
    known = {} if known is None else known
    exact = convert(exact, bool, "exact")
    if not isinstance(known, MutableMapping):
        raise ConfigError(
            f"known: expected a table that is extended, such as {{}}, got {describe(known)}."
        )
    reason = why_not_packable(layer, known)
    cls = packed_class(layer)
    if reason is not None or cls is None:
        raise ConfigError(f"pack: the {type(layer).__name__} {reason}.")
    return cls.of(layer, known, exact)
