"""Freezing: layers whose weights are rounded once, for graphs that only run from then on."""

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
    found
    for found in vars(ops).values()
    if isinstance(found, type) and issubclass(found, QuantizedOperator)
)
"""Operators that round their weight and bias as they are stored, and then do what torch does."""
NOT_OF_TORCH = ("spec", *COPIES)
"""Attributes that a plain layer does not have."""


class Rounded(NamedTuple):
    """A parameter that was rounded, and the tensors by whose identities it is found again."""

    sources: tuple[Tensor | None, ...]
    parameter: nn.Parameter


Known = dict[tuple[Any, ...], Rounded]


def freeze_layers(
    mg: MaseGraph, stays_packed: Callable[[PackedLinear], bool] | None = None
) -> dict[str, list[str]]:
    """Replaces quantized layers by those that compute the same from rounded weights.

    Args:
        mg: the graph; it is changed, unless an error is raised.
        stays_packed: which packed linear layers are left: `multiplies_codes`,
            `multiplies_integers`. None: none.
    Returns: paths by what became of them: `frozen`, layers that still round their inputs or
        results; `plain`, layers of torch; `packed`, those that stayed packed for their products;
        `kept`, other layers that stayed, see `frozen`.

    Raises:
        ConfigError: nothing is quantized, a format of a weight waits for data, or learned scales
            for a first batch.
    """
    found: dict[str, list[str]] = {"frozen": [], "plain": [], "packed": [], "kept": []}
    known: Known = {}
    layers = list_layers(mg, lambda _, module: isinstance(module, QuantizedOperator))
    replaced = []
    for layer in layers:
        module = layer.module
        assert isinstance(module, QuantizedOperator)
        if not _parameters(module):
            continue
        if stays_packed and isinstance(module, PackedLinear) and stays_packed(module):
            found["packed"].append(layer.path)
            continue
        twin = frozen(module, known)
        kind = "frozen" if isinstance(twin, QuantizedOperator) else "plain"
        found["kept" if twin is module else kind].append(layer.path)
        replaced.append((layer, twin))
    if not any(found.values()):
        raise ConfigError(
            f"{WHERE}: the graph has no quantized layer with a weight; quantize it first with "
            "quantize_transform_pass."
        )
    for layer, twin in replaced:
        mg.replace(layer.nodes[0], twin)
        for node in layer.nodes:
            if "mase" in node.meta:
                record_formats(node, twin)
    return found


def frozen(layer: QuantizedOperator, known: Known) -> nn.Module:
    """What a quantized layer computes in evaluation, from constant parameters.

    Args:
        layer: stays as it is.
        known: rounded parameters; those that layers share stay shared. It is added to.
    Returns: a layer of torch's class where nothing else is rounded; else an operator that rounds
        inputs and results alone. The layer itself where that is not known to be the same, since it
        draws at random, shortens the rows of a table that are looked up, or has a forward of one's
        own.

    Raises:
        ConfigError: a format of a parameter waits for data, or learned scales for a first batch.
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
                f"{WHERE}: {type(layer).__name__}: the format of its {name} waits for data; run "
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
    """Whether what a parameter becomes is drawn anew at each call, or seen by a stand-in."""
    return any(getattr(layer.spec, name).cache_key is None for name in names)


def _get_operator(layer: QuantizedOperator) -> type[QuantizedOperator] | None:
    """The operator of chop whose forward a layer has; None for a forward of one's own."""
    unpacked = layer.operator if isinstance(layer, PackedOperator) else type(layer)
    home = next((base for base in unpacked.__mro__ if base in OPERATORS), None)
    return home if home is not None and unpacked.forward is home.forward else None


def multiplies_codes(layer: PackedLinear) -> bool:
    """Whether codes are multiplied faster than floats: large ones, or as 8-bit integers."""
    if layer.packed_exact:
        return False
    shape = layer.packed_shapes["weight"]
    is_on_cpu = layer.encoded("weight").codes.is_cpu
    return is_large(shape) or (is_on_cpu and _are_integers(layer))


def multiplies_integers(layer: PackedLinear) -> bool:
    """Whether codes are large and multiplied as 8-bit integers: faster than any compiled float."""
    is_on_cpu = layer.encoded("weight").codes.is_cpu
    is_known = is_large(layer.packed_shapes["weight"]) and is_on_cpu and not layer.packed_exact
    return is_known and _are_integers(layer)


def _are_integers(layer: PackedLinear) -> bool:
    x_format, weight_format = layer.operand_format("data_in"), layer.spec.number_format("weight")
    shape = layer.packed_shapes["weight"]
    return isinstance(x_format, NumberFormat) and int8.takes(x_format, weight_format, shape)
