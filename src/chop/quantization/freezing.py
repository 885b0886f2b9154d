"""Freezing: layers whose weights are rounded once, for graphs that only run from then on."""

from __future__ import annotations

import torch
from torch import nn

from chop.errors import ConfigError
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.ir.layers import layers_of
from chop.kernels.cpu.reader import is_large
from chop.nn.adoption import adopt
from chop.nn.packed import PackedLinear, PackedOperator
from chop.nn.quantized import QuantizedOperator, ops
from chop.nn.quantized.masks import FULL, MASK
from chop.private.modules import buffers_of, parameters_of, set_members

WHERE = "freeze_transform_pass"


def freeze_layers(mg: MaseGraph, keeps_products: bool) -> dict[str, list[str]]:
    """Replaces quantized layers by those that compute the same from rounded weights.

    Args:
        mg: the graph; it is changed.
        keeps_products: leaves packed linear layers that are large enough to be multiplied from
            their codes faster than from floats.
    Returns: paths by what became of them: `frozen`, layers that still round their inputs or
        results; `plain`, layers of torch; `packed`, those that stayed.

    Raises:
        ConfigError: a format of a weight waits for data, or learned scales for a first batch.
    """
    found: dict[str, list[str]] = {"frozen": [], "plain": [], "packed": []}
    rounded: dict[tuple[int, str], nn.Parameter] = {}
    for layer in layers_of(mg, lambda _, module: isinstance(module, QuantizedOperator)):
        module = layer.module
        assert isinstance(module, QuantizedOperator)
        if keeps_products and _multiplies_codes(module):
            found["packed"].append(layer.path)
            continue
        twin = frozen(module, rounded)
        if twin is module:
            continue
        mg.replace(layer.nodes[0], twin)
        for node in layer.nodes if "mase" in layer.nodes[0].meta else ():
            record_formats(node, twin)
        found["frozen" if isinstance(twin, QuantizedOperator) else "plain"].append(layer.path)
    if not any(found.values()):
        raise ConfigError(
            f"{WHERE}: the graph has no quantized layer with a weight; quantize it first with "
            "quantize_transform_pass."
        )
    return found


def frozen(layer: QuantizedOperator, known: dict[tuple[int, str], nn.Parameter]) -> nn.Module:
    """What a quantized layer computes in evaluation, from constant parameters.

    Args:
        layer: stays as it is; one without parameters to round is given back.
        known: rounded parameters by the identity of the original and the format; those that layers
            share stay shared.
    Returns: a layer of torch's class where nothing else is rounded, else an operator that rounds
        its inputs and results alone.

    Raises:
        ConfigError: a format of a parameter waits for data, or learned scales for a first batch.
    """
    names = [name for name in layer.present_operands(layer) if name in ("weight", "bias")]
    if not names:
        return layer
    settled = layer.unpack().freeze_scales()
    for name in names:
        if not getattr(settled.spec, name).is_fitted:
            raise ConfigError(
                f"{WHERE}: {type(layer).__name__}: the format of its {name} waits for data; run "
                "calibrate_transform_pass first."
            )
    parameters = dict(parameters_of(settled))
    for name in names:
        parameters[name] = _rounded(layer, settled, name, known)
    buffers = {name: x for name, x in buffers_of(settled).items() if name not in (MASK, FULL)}
    spec = settled.spec.keeping("data_in", "data_out")
    is_plain = spec.is_float and type(settled).__module__ == ops.__name__
    twin = adopt(_torch_class(settled) if is_plain else type(settled), settled)
    set_members(twin, parameters, buffers)
    if isinstance(twin, QuantizedOperator):
        twin.spec = spec
    else:
        vars(twin).pop("spec", None)
    return twin


@torch.no_grad()
def _rounded(
    layer: QuantizedOperator,
    settled: QuantizedOperator,
    name: str,
    known: dict[tuple[int, str], nn.Parameter],
) -> nn.Parameter:
    is_packed, source = False, getattr(layer, name)
    if isinstance(layer, PackedOperator) and name in layer.packed_shapes:
        is_packed, source = True, layer.encoded(name).codes
    key = id(source), settled.spec.number_format(name).key
    if key not in known:  # codes are not rounded again: a scale may follow the rounded values
        operand = settled.operand(name)
        values = operand if is_packed else settled.quantize(name, operand)
        known[key] = nn.Parameter(values.detach().clone(), requires_grad=False)
    return known[key]


def _multiplies_codes(layer: nn.Module) -> bool:
    return isinstance(layer, PackedLinear) and is_large(layer.packed_shapes["weight"])


def _torch_class(layer: QuantizedOperator) -> type[nn.Module]:
    """The class of torch that an operator is made of."""
    bases = (base for base in type(layer).__mro__ if issubclass(base, nn.Module))
    return next(base for base in bases if not issubclass(base, QuantizedOperator))
