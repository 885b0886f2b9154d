"""ONNX operators of QONNX files, as layers of a module."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.export.qonnx.build import Builder, Node, Value
from chop.export.qonnx.formats import Constant
from chop.formats import Binary, NumberFormat
from chop.formats.spec import FLOAT
from chop.ir.ops import OPS
from chop.nn.quantized import QuantCall
from chop.private.torch_api import BatchNorm

CONSTANT_MOVES = frozenset({"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that move the scales of constants like their values."""
CONVOLUTIONS: Mapping[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d}
MAX_POOLS: Mapping[int, type[nn.Module]] = {3: nn.MaxPool1d, 4: nn.MaxPool2d}
AVERAGE_POOLS: Mapping[int, type[nn.Module]] = {3: nn.AvgPool1d, 4: nn.AvgPool2d}
GLOBAL_POOLS: Mapping[int, type[nn.Module]] = {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d}
NORMS: Mapping[int, type[nn.Module]] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
"""Layers by number of dimensions of the input."""


def _layer(classes: Mapping[int, type[nn.Module]], value: Value) -> Any:
    """Returns the layer class for the dimensions of an activation."""
    dims = value.example.dim()
    if dims not in classes:
        known = " or ".join(map(str, classes))
        raise ConfigError(f"expected an input of {known} dimensions, got {dims}")
    return classes[dims]


def _expect(node: Node, **expected: Any) -> None:
    """Raises ConfigError if attributes have other values than the supported ones."""
    for name, value in expected.items():
        given = node.attributes.get(name, value)
        if given != value:
            raise ConfigError(f"expected {name}={value}, got {given}")


def _matmul(builder: Builder, node: Node) -> Value:
    value = builder.value(node.inputs[0])
    if node.inputs[1] in builder.constants:
        weight = builder.constants[node.inputs[1]]
        return _linear(builder, node, value, weight.map(lambda x: x.T))
    other = builder.value(node.inputs[1])
    if min(value.example.dim(), other.example.dim()) < 3:
        raise ConfigError("it joins rows of the batch; expected inputs of 3 or more dimensions")
    call = QuantCall(torch.matmul, OPS["matmul"].arguments)
    return builder.call(node, call, value, other, weight=other.number_format or FLOAT)


def _gemm(builder: Builder, node: Node) -> Value:
    _expect(node, alpha=1.0, beta=1.0, transA=0)
    weight = builder.constant(node.inputs[1])
    weight = weight if node.attributes.get("transB") else weight.map(lambda x: x.T)
    value = _linear(builder, node, builder.value(node.inputs[0]), weight)
    return _with_own_bias(builder, node, value)


def _linear(builder: Builder, node: Node, value: Value, weight: Constant) -> Value:
    """Adds a linear layer; the weight is (out, in)."""
    if weight.values.dim() != 2:
        raise ConfigError(f"expected a matrix as weight, got {weight.values.dim()} dimensions")
    if value.example.dim() < 2:
        raise ConfigError("it joins rows of the batch; expected an input of 2 or more dimensions")
    rows, columns = weight.values.shape
    return _weighted(builder, node, value, nn.Linear(columns, rows, bias=False), weight)


def _conv(builder: Builder, node: Node) -> Value:
    value, weight = builder.value(node.inputs[0]), builder.constant(node.inputs[1])
    kernel, groups = weight.values.shape[2:], int(node.attributes.get("group", 1))
    layer = _layer(CONVOLUTIONS, value)(
        weight.values.shape[1] * groups,
        weight.values.shape[0],
        tuple(kernel),
        groups=groups,
        bias=False,
        **_window(node, len(kernel)),
    )
    value = _weighted(builder, node, value, layer, weight)
    return _with_own_bias(builder, node, value)


def _weighted(
    builder: Builder, node: Node, value: Value, layer: nn.Module, weight: Constant
) -> Value:
    layer.weight = nn.Parameter(weight.values.contiguous())
    return builder.call(node, layer, value, weight=weight.number_format() or FLOAT)


def _window(node: Node, dims: int, dilates: bool = True) -> dict[str, tuple[int, ...]]:
    """Returns the arguments of torch for the strides, pads and dilations of a node."""
    if node.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ConfigError("auto_pad is not supported; expected pads")
    pads = tuple(node.attributes.get("pads", [0] * 2 * dims))
    if pads[:dims] != pads[dims:]:
        raise ConfigError(f"expected the same pads on both sides, got {list(pads)}")
    settings = {"stride": node.attributes.get("strides", [1] * dims), "padding": pads[:dims]}
    if dilates:
        settings["dilation"] = node.attributes.get("dilations", [1] * dims)
    return {name: tuple(sizes) for name, sizes in settings.items()}


def _has(node: Node, number: int) -> bool:
    """Returns whether a node has an optional input."""
    return len(node.inputs) > number and node.inputs[number] != ""


def _with_own_bias(builder: Builder, node: Node, value: Value) -> Value:
    """Adds the third input of a node as the bias of its layer."""
    if not _has(node, 2):
        return value
    return _with_bias(builder, node, value, builder.constant(node.inputs[2]))


def _with_bias(builder: Builder, node: Node, value: Value, bias: Constant) -> Value:
    """Adds a bias to a layer with a weight: as its own if it has one scale, else as a batch norm.

    In an integer graph, a batch norm has float parameters, and a layer with a weight has not.

    Args:
        builder: the module.
        node: node that names the norm.
        value: result of the layer.
        bias: one number, or one per output channel.
    """
    bias = bias.map(torch.flatten)
    number_format = _bias_format(bias)
    if number_format is None:
        return _affine(builder, node, value, None, bias.values, "_bias")
    layer: Any = builder.layer(value.layer)
    layer.bias = nn.Parameter(bias.values.expand(len(layer.weight)).clone())
    spec = builder.specs[value.layer].with_quantizers(bias=number_format)
    builder.specs[value.layer] = spec
    return value


def _bias_format(bias: Constant) -> NumberFormat | None:
    """Returns the format of a bias with one scale; None for others."""
    has_one_scale = bias.scale is not None and len(bias.scale.unique()) == 1
    return bias.number_format() if has_one_scale else None


def _affine(
    builder: Builder,
    node: Node,
    value: Value,
    factor: Tensor | None,
    shift: Tensor | None,
    suffix: str = "",
) -> Value:
    """Adds factors and shifts by channel, as a batch norm with a mean of 0 and a variance of 1.

    The parameters of a batch norm that only this node reads change instead.

    Args:
        builder: the module.
        node: node that names the norm.
        value: activation, channels along the second axis.
        factor: one number, or one per channel.
        shift: the same.
        suffix: end of the name.
    """
    norm, is_new = _norm_alone(builder, node, value), False
    if norm is None:
        norm, is_new = _layer(NORMS, value)(value.example.shape[1], eps=0.0), True
    weight, bias = norm.weight.detach().double(), norm.bias.detach().double()
    if factor is not None:
        weight, bias = weight * factor, bias * factor
    if shift is not None:
        bias = bias + shift
    norm.weight, norm.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())
    return builder.call(node, norm, value, suffix=suffix) if is_new else value


def _norm_alone(builder: Builder, node: Node, value: Value) -> Any:
    """Returns the batch norm that computes an activation if only this node reads it, else None."""
    if value.number_format is not None or value.node.target != value.layer:
        return None
    names = [name for name in node.inputs if builder.values.get(name) is value]
    layer = builder.layer(value.layer)
    is_alone = bool(names) and builder.readers[names[0]] == 1
    return layer if is_alone and isinstance(layer, BatchNorm) else None


def _by_channel(constant: Tensor, value: Value, axis: int = 1) -> Tensor:
    """Returns the numbers of a constant that broadcasts: one, or one per index of an axis."""
    missing = value.example.dim() - constant.dim()
    shape = [1] * missing + [*constant.shape]
    is_by_channel = shape[axis] == constant.numel() == value.example.shape[axis]
    if missing >= 0 and (constant.numel() == 1 or is_by_channel):
        return constant.flatten()
    raise ConfigError(
        f"expected a constant with one number, or one per channel of {[*value.example.shape]}, got "
        f"the shape {[*constant.shape]}"
    )


def _add(builder: Builder, node: Node) -> Value:
    operands = _operands(builder, node)
    if operands is None:
        return _combine(builder, node, operator.add)
    name, constant = operands
    value = builder.value(name)
    layer = builder.layer(value.layer) if value.layer else None
    is_alone = builder.readers[name] == 1 and value.node.target == value.layer
    if _bias_format(constant) and is_alone and getattr(layer, "bias", constant) is None:
        axis = -1 if isinstance(layer, nn.Linear) else 1
        bias = constant.map(lambda x: _by_channel(x, value, axis))
        return _with_bias(builder, node, value, bias)
    return _affine(builder, node, value, None, _by_channel(constant.values, value))


def _sub(builder: Builder, node: Node) -> Value:
    operands = _operands(builder, node)
    if operands is None:
        return _combine(builder, node, operator.sub)
    name, constant = operands
    value = builder.value(name)
    shift = _by_channel(constant.values, value)
    if node.inputs[0] == name:
        return _affine(builder, node, value, None, -shift)
    return _affine(builder, node, value, torch.tensor(-1.0), shift)


def _mul(builder: Builder, node: Node) -> Value:
    operands = _operands(builder, node)
    if operands is None:
        return _combine(builder, node, operator.mul)
    name, constant = operands
    value = builder.value(name)
    return _affine(builder, node, value, _by_channel(constant.values, value), None)


def _div(builder: Builder, node: Node) -> Value:
    operands = _operands(builder, node)
    if operands is None or operands[0] != node.inputs[0]:
        raise ConfigError("expected a division by a constant")
    value = builder.value(node.inputs[0])
    factor = 1.0 / _by_channel(operands[1].values, value)
    return _affine(builder, node, value, factor, None)


def _operands(builder: Builder, node: Node) -> tuple[str, Constant] | None:
    """Returns the name of an activation and the constant beside it; None for two activations."""
    for name, other in (node.inputs, node.inputs[::-1]):
        if other in builder.constants:
            return name, builder.constants[other]
    return None


def _combine(builder: Builder, node: Node, function: Callable[..., Any]) -> Value:
    """Adds a sum, difference or product of two activations in one format."""
    values = builder.in_one_format([builder.value(name) for name in node.inputs])
    if len({each.example.dim() for each in values}) > 1:
        shapes = " and ".join(str([*each.example.shape]) for each in values)
        raise ConfigError(f"expected inputs with the same number of dimensions, got {shapes}")
    call = QuantCall(function, OPS[function.__name__].arguments)
    return builder.call(node, call, *values)


def _batch_norm(builder: Builder, node: Node) -> Value:
    _expect(node, training_mode=0)
    value = builder.value(node.inputs[0])
    weight, bias, mean, variance = (builder.constant(name).values for name in node.inputs[1:])
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    if _norm_alone(builder, node, value) is not None:
        factor = weight.double() / (variance.double() + epsilon).sqrt()
        return _affine(builder, node, value, factor, bias - mean * factor)
    norm = _layer(NORMS, value)(len(weight), eps=epsilon)
    norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(bias)
    norm.running_mean, norm.running_var = mean, variance
    return builder.call(node, norm, value)


def _relu(builder: Builder, node: Node) -> Value:
    value = builder.value(node.inputs[0])
    made = builder.call(node, nn.ReLU(), value)
    if value.number_format is None or isinstance(value.number_format, Binary):
        return made
    return replace(made, number_format=value.number_format, is_rounded=True)


def _max_pool(builder: Builder, node: Node) -> Value:
    """Adds a maximum, which commutes with the rounding of its input."""
    value, kernel = builder.value(node.inputs[0]), node.attributes["kernel_shape"]
    _expect(node, storage_order=0)
    settings = {**_window(node, len(kernel)), "ceil_mode": bool(node.attributes.get("ceil_mode"))}
    layer = _layer(MAX_POOLS, value)(tuple(kernel), **settings)
    if not value.layer:  # an input of the model has codes only if a layer reads it in a format
        made = builder.call(node, layer, value)
        return replace(made, number_format=value.number_format, is_rounded=True)
    made = builder.call(node, layer, value, data_in=FLOAT)
    return replace(made, number_format=value.number_format, is_rounded=value.is_rounded)


def _average_pool(builder: Builder, node: Node) -> Value:
    value, kernel = builder.value(node.inputs[0]), node.attributes["kernel_shape"]
    _expect(node, dilations=[1] * len(kernel))
    layer = _layer(AVERAGE_POOLS, value)(
        tuple(kernel),
        ceil_mode=bool(node.attributes.get("ceil_mode")),
        count_include_pad=bool(node.attributes.get("count_include_pad")),
        **_window(node, len(kernel), dilates=False),
    )
    return builder.call(node, layer, value)


def _global_average_pool(builder: Builder, node: Node) -> Value:
    value = builder.value(node.inputs[0])
    return builder.call(node, _layer(GLOBAL_POOLS, value)(1), value)


def _clip(builder: Builder, node: Node) -> Value:
    ends: list[Any] = [
        builder.constant(node.inputs[number]).values.item()
        if _has(node, number)
        else node.attributes.get(name)
        for number, name in ((1, "min"), (2, "max"))
    ]
    if None in ends:
        raise ConfigError("expected both min and max")
    value = builder.value(node.inputs[0])
    if value.number_format is None:
        return builder.call(node, nn.Hardtanh(*ends), value)
    # The module has no quantized class.
    return builder.call(node, QuantCall(F.hardtanh, {"input": "data_in"}), value, numbers=ends)


def _elementwise(layer: type[nn.Module]) -> Callable[[Builder, Node], Value]:
    """Returns a function that adds a layer without arguments."""
    return lambda builder, node: builder.call(node, layer(), builder.value(node.inputs[0]))


def _identity(builder: Builder, node: Node) -> Value:
    return builder.alias(node.inputs[0])


def _flatten(builder: Builder, node: Node) -> Value:
    _expect(node, axis=1)
    return builder.move("flatten", builder.alias(node.inputs[0]), 1)


def _reshape(builder: Builder, node: Node) -> Value:
    value = builder.alias(node.inputs[0])
    wanted = builder.constant(node.inputs[1]).values.tolist()
    if not node.attributes.get("allowzero"):
        before = value.example.shape
        wanted = [size or before[axis] for axis, size in enumerate(wanted)]
    sizes = value.example.reshape(wanted).shape
    if sizes[0] != builder.rows:
        raise ConfigError(f"the shape {wanted} joins or splits rows of the batch")
    return builder.move("reshape", value, -1, *sizes[1:])


def _transpose(builder: Builder, node: Node) -> Value:
    value = builder.alias(node.inputs[0])
    order = node.attributes.get("perm", [*range(value.example.dim())][::-1])
    if order[0] != 0:
        raise ConfigError(f"the order {order} moves the batch")
    return builder.move("permute", value, *order)


def _concat(builder: Builder, node: Node) -> Value:
    values = [builder.value(name) for name in node.inputs]
    axis = node.attributes["axis"]
    if axis % values[0].example.dim() == 0:
        raise ConfigError("it joins batches")
    return builder.join(builder.in_one_format(values), axis)


OPERATORS: Mapping[str, Callable[[Builder, Node], Value]] = {
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _div,
    "Dropout": _identity,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "Identity": _identity,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "Relu": _relu,
    "Reshape": _reshape,
    "Sigmoid": _elementwise(nn.Sigmoid),
    "Sub": _sub,
    "Tanh": _elementwise(nn.Tanh),
    "Transpose": _transpose,
}
"""Function that adds a node of activations to a module, by operator."""
