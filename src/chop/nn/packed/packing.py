"""Packing of a quantized operator: its twin that stores codes."""

from __future__ import annotations

import torch
from torch import nn

from chop.captured.overrides import why_not_its_class
from chop.errors import ConfigError
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
    """The class that packs a layer; None where there is none, or the layer computes more."""
    for ancestor in type(layer).__mro__:
        if ancestor in PACKED and ancestor.forward is type(layer).forward:
            return PACKED[ancestor]
    return None


def why_not_packable(layer: nn.Module, known: KnownCodes | None = None) -> str | None:
    """Why a layer cannot be packed; None if it can.

    Args:
        layer: any module.
        known: takes the codes that had to be made to find out.
    """
    if isinstance(layer, PackedOperator):
        return "is packed already"
    if not isinstance(layer, QuantizedOperator) or layer.spec.weight.is_identity:
        return "has no format for its weight"
    if layer.spec.lsq_operands:
        return "learns its scales: layer.freeze_scales() makes them part of its formats"
    reason = why_not_its_class(layer)
    if reason is not None:
        return f"is not what its class says: {reason}"
    if packed_class(layer) is None:
        return f"is a {type(layer).__name__}, which has no packed form"
    if not isinstance(layer.spec.weight, NumberFormat):
        return f"has {layer.spec.weight.label} in the place of its weight's format"
    if not layer.spec.weight.is_fitted:
        return "has a weight format that waits for calibration"
    if not layer.spec.weight.is_deterministic:
        return "has a weight format that draws at random"
    return _inexact(layer, {} if known is None else known)


def _inexact(layer: QuantizedOperator, known: KnownCodes) -> str | None:
    """What codes cannot hold."""
    for name in packable_operands(layer):
        stored = layer.spec.number_format(name)
        x = layer.effective(name).detach()
        count = max(1, len(x)) if layer.is_pruned else parts_of_rows(stored, x)
        if not all(rows.isfinite().all() for rows in x.split(count)):
            return f"has values in its {name} that are not finite"
        codes = encoded(layer, name, known)
        for first, rows in zip(range(0, len(x), count), x.split(count), strict=False):
            index = torch.arange(first, first + len(rows), device=x.device)
            part = codes if len(rows) == len(x) else codes.take_rows(index)
            if not torch.equal(stored.decode(part), layer.quantize(name, rows)):
                return f"hides weights by zeros, and {stored.label} has none"
    return None


def pack(
    layer: QuantizedOperator, known: KnownCodes | None = None, exact: bool = False
) -> PackedOperator:
    """A layer's packed twin: the same outputs from codes instead of parameters.

    Linear layers are multiplied by kernels that add in another order: outputs differ as float32
    does, and as much with other numbers of rows. Where `torch.set_float32_matmul_precision`
    ("medium") allows it and the CPU is faster in bfloat16, they also round inputs and results of
    many rows to it: by at most 2^-7 or 3/256 of the sum of the products' magnitudes, as
    `chop.kernels.cpu.packed.bfloat16_roundings` says of a format; some 54 dB, where rounding
    weights to 8 bits leaves 43. The same outputs bit for bit are to be had at the price of
    decoding each weight before it is used. All other layers give the same bits in any case.

    Everything but the quantized parameters is shared with `layer`. A mask is packed with the
    weight that it hides.

    Args:
        layer: a quantized operator with a weight format.
        known: codes of parameters that other layers have packed; takes and gives.
        exact: the same bits as the layer's.

    Raises:
        ConfigError: the layer cannot be packed; the message says why.

    Example:
        >>> from chop.nn.quantized import QuantLinear
        >>> layer = QuantLinear(64, 32, bias=False, config={"weight": {"name": "mxint"}})
        >>> pack(layer).packed_bits("weight")
        8.25
    """
    known = {} if known is None else known
    reason = why_not_packable(layer, known)
    cls = packed_class(layer)
    if reason is not None or cls is None:
        raise ConfigError(f"pack: the {type(layer).__name__} {reason}.")
    return cls.of(layer, known, exact)
