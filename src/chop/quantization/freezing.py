"""Freezing: layers with weights rounded once, for graphs that are only evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.formats import NumberFormat
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.ir.layers import list_layers
from chop.kernels.cpu import int8
from chop.kernels.cpu.reader import is_large
from chop.nn.adoption import adopt
from chop.nn.packed import PackedLinear, PackedOperator
from chop.nn.quantized import QuantizedOperator, ops
from chop.nn.quantized.base import float_class
from chop.nn.quantized.computed import with_plain_weights
from chop.nn.quantized.masks import MASK, MASK_BUFFERS
from chop.nn.quantized.state import COPIES
from chop.private.modules import own_buffers, own_parameters, set_members

WHERE = "freeze_transform_pass"
OPERATORS = frozenset(
    value
    for value in vars(ops).values()
    if isinstance(value, type) and issubclass(value, QuantizedOperator)
)
"""Operators that quantize their weight and bias and then call the torch function."""
NOT_OF_TORCH = ("spec", *COPIES)
"""Attributes that a plain layer does not have."""


class Rounded(NamedTuple):
    """Rounded parameter, with the tensors that identify it."""

    sources: tuple[Tensor | None, ...]
    parameter: nn.Parameter


Known = dict[tuple[Any, ...], Rounded]


def freeze_layers(
    mg: MaseGraph, stays_packed: Callable[[PackedLinear], bool] | None = None
) -> dict[str, list[str]]:
    """Replaces quantized layers by equivalent ones with rounded weights.

    Args:
        mg: graph to change; unchanged if an error is raised.
        stays_packed: returns true for packed linear layers to keep, such as `multiplies_codes` or
            `multiplies_integers`; None keeps none.
    Returns: paths by outcome: `frozen`, layers that still round inputs or results; `plain`, torch
    layers; `packed`, layers that stay packed; `kept`, other unchanged layers, see `frozen`.

    Raises:
        ConfigError: if nothing is quantized, a weight format needs calibration, or learned scales
            need a first batch.
    """
    paths: dict[str, list[str]] = {"frozen": [], "plain": [], "packed": [], "kept": []}
    known: Known = {}
    layers = list_layers(mg, lambda _, module: isinstance(module, QuantizedOperator))
    replaced = []
    for layer in layers:
        module = layer.module
        assert isinstance(module, QuantizedOperator)
        if not _parameters(module):
            continue
        if stays_packed and isinstance(module, PackedLinear) and stays_packed(module):
            paths["packed"].append(layer.path)
            continue
        twin = frozen(module, known)
        kind = "frozen" if isinstance(twin, QuantizedOperator) else "plain"
        paths["kept" if twin is module else kind].append(layer.path)
        replaced.append((layer, twin))
    if not any(paths.values()):
        raise ConfigError(
            f"{WHERE}: the graph has no quantized layer with a weight; run "
            "quantize_transform_pass first."
        )
    for layer, twin in replaced:
        mg.replace(layer.nodes[0], twin)
        for node in layer.nodes:
            if "mase" in node.meta:
                record_formats(node, twin)
    return paths


def frozen(layer: QuantizedOperator, known: Known) -> nn.Module:
    """Returns a layer with constant parameters that evaluates like a quantized layer.

    Args:
        layer: quantized layer, which is not changed.
        known: rounded parameters, which layers share; new ones are added.
    Returns: a torch layer if only parameters are rounded, otherwise an operator that rounds inputs
    and results. The layer itself if equivalence is not certain: random rounding, renormalized table
    rows, or a custom forward.

    Raises:
        ConfigError: if a parameter format needs calibration, or learned scales need a first batch.
    """
    names = _parameters(layer)
    home = _get_operator(layer)
    if home is None or getattr(layer, "max_norm", None) is not None or _draws(layer, names):
        return layer
    plain = with_plain_weights(layer)
    assert isinstance(plain, QuantizedOperator)
    settled = plain.unpack().freeze_scales()
    for name in names:
        if not getattr(settled.spec, name).is_fitted:
            raise ConfigError(
                f"{WHERE}: {type(layer).__name__}: the format of its {name} needs calibration; run "
                "calibrate_transform_pass first."
            )
    new = {name: _rounded(plain, settled, name, known) for name in names}
    buffers = {name: x for name, x in own_buffers(settled).items() if name not in MASK_BUFFERS}
    spec = settled.spec.keeping("data_in", "data_out")
    twin = adopt(float_class(home) if spec.is_float else type(settled), settled)
    set_members(twin, {**own_parameters(settled), **new}, buffers)
    if isinstance(twin, QuantizedOperator):
        twin.spec = spec
    else:
        for name in NOT_OF_TORCH:
            vars(twin).pop(name, None)
    return twin


@torch.no_grad()
def _rounded(
    layer: QuantizedOperator, settled: QuantizedOperator, name: str, known: Known
) -> nn.Parameter:
    sources: tuple[Tensor | None, ...]
    if isinstance(layer, PackedOperator) and name in layer.packed_shapes:
        sources = (layer.encoded(name).codes,)
    else:
        sources = (own_parameters(layer)[name], own_buffers(layer).get(MASK))
    key = (*map(id, sources), name, settled.spec.number_format(name).key)
    if key not in known:
        values = getattr(settled, name)
        if len(sources) > 1:  # codes are not rounded again: a scale may follow the rounded values
            values = settled.quantize(name, values)
        parameter = nn.Parameter(values.detach().clone(), requires_grad=False)
        known[key] = Rounded(sources, parameter)
    return known[key].parameter


def _parameters(layer: QuantizedOperator) -> list[str]:
    return [name for name in layer.present_operands(layer) if name in ("weight", "bias")]


def _draws(layer: QuantizedOperator, names: list[str]) -> bool:
    """Returns true if a parameter is rounded randomly in each call, or a stand-in reads it."""
    return any(getattr(layer.spec, name).cache_key is None for name in names)


def _get_operator(layer: QuantizedOperator) -> type[QuantizedOperator] | None:
    """Returns the operator class of a layer's forward; None for a custom forward."""
    unpacked = layer.operator if isinstance(layer, PackedOperator) else type(layer)
    home = next((base for base in unpacked.__mro__ if base in OPERATORS), None)
    return home if home is not None and unpacked.forward is home.forward else None


def multiplies_codes(layer: PackedLinear) -> bool:
    """Returns true if products of codes are faster than floats: large layers, 8-bit integers."""
    if layer.packed_exact:
        return False
    shape = layer.packed_shapes["weight"]
    is_on_cpu = layer.encoded("weight").codes.is_cpu
    return is_large(shape) or (is_on_cpu and _are_integers(layer))


def multiplies_integers(layer: PackedLinear) -> bool:
    """Returns true for large layers with 8-bit integer products, which beat compiled floats."""
    is_on_cpu = layer.encoded("weight").codes.is_cpu
    is_known = is_large(layer.packed_shapes["weight"]) and is_on_cpu and not layer.packed_exact
    return is_known and _are_integers(layer)


def _are_integers(layer: PackedLinear) -> bool:
    x_format, weight_format = layer.operand_format("data_in"), layer.spec.number_format("weight")
    shape = layer.packed_shapes["weight"]
    return isinstance(x_format, NumberFormat) and int8.takes(x_format, weight_format, shape)
