"""The operator table: the only place that knows what "a linear" is. Everything else looks up here.

A row names one operator and all the ways in which models call it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.nn import quantized as q

Arguments = Mapping[str, str | None]
"""A function's first parameters by name, in order, and the operand that each is (or None)."""

ONE_INPUT: Arguments = {"input": "data_in"}
TWO_INPUTS: Arguments = {"input": "data_in", "other": "data_in"}
WEIGHTED: Arguments = {"input": "data_in", "weight": "weight", "bias": "bias"}
EMBEDDING: Arguments = {"input": None, "weight": "weight"}
NO_ARGUMENTS: Arguments = {}


def _normalised(second: str, *parameters: str) -> Arguments:
    return {"input": "data_in", second: None, **{name: name for name in parameters}}


LAYER_NORM = _normalised("normalized_shape", "weight", "bias")
RMS_NORM = _normalised("normalized_shape", "weight")
GROUP_NORM = _normalised("num_groups", "weight", "bias")
BATCH_NORM: Arguments = {
    "input": "data_in",
    "running_mean": None,
    "running_var": None,
    "weight": "weight",
    "bias": "bias",
}


@dataclass(frozen=True)
class Operator:
    """One row of the table.

    Attributes:
        name: MASE's name; configs select by it.
        mase_type: `module_related_func` (a function with a module twin), `module` (module only) or
            `builtin_func` (function only).
        modules: the module classes; subclasses count.
        functions: the functions, operators and in-place twins.
        methods: names of the `torch.Tensor` methods.
        quantized: the class that replaces a module, or None.
        arguments: the operands of the function form; none if it has no `QuantCall`.
        fallback: operands of that form that take another's format when a config leaves them out.
        twin: what replaces a call of the function form if it is not a `QuantCall`.
    """

    name: str
    mase_type: str
    modules: tuple[type[nn.Module], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    quantized: type[q.QuantizedOperator] | None = None
    arguments: Arguments = field(default_factory=dict)
    twin: type[q.QuantizedOperator] | None = None
    fallback: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_quantizable(self) -> bool:
        """True when some form of the operator has a quantised twin."""
        return self.quantized is not None or bool(self.arguments) or self.twin is not None


def _both(
    name: str,
    module: type[nn.Module] | tuple[type[nn.Module], ...],
    functions: tuple[Callable[..., Any], ...],
    quantized: type[q.QuantizedOperator] | None = None,
    arguments: Arguments = NO_ARGUMENTS,
    methods: tuple[str, ...] = (),
) -> Operator:
    modules = module if isinstance(module, tuple) else (module,)
    kind = "module_related_func"
    return Operator(name, kind, modules, functions, methods, quantized, arguments)


def _module(
    name: str,
    module: type[nn.Module] | tuple[type[nn.Module], ...],
    quantized: type[q.QuantizedOperator] | None = None,
) -> Operator:
    modules = module if isinstance(module, tuple) else (module,)
    return Operator(name, "module", modules, quantized=quantized)


def _function(
    name: str,
    *functions: Callable[..., Any],
    methods: tuple[str, ...] = (),
    arguments: Arguments = NO_ARGUMENTS,
    twin: type[q.QuantizedOperator] | None = None,
    fallback: Mapping[str, str] | None = None,
) -> Operator:
    return Operator(
        name, "builtin_func", (), functions, methods, None, arguments, twin, fallback or {}
    )


TABLE: tuple[Operator, ...] = (
    # with parameters
    _both("linear", nn.Linear, (F.linear,), q.QuantLinear, WEIGHTED),
    _both("conv1d", nn.Conv1d, (F.conv1d,), q.QuantConv1d, WEIGHTED),
    _both("conv2d", nn.Conv2d, (F.conv2d,), q.QuantConv2d, WEIGHTED),
    _both("conv3d", nn.Conv3d, (F.conv3d,)),
    _both("conv_transpose1d", nn.ConvTranspose1d, (F.conv_transpose1d,)),
    _both(
        "conv_transpose2d",
        nn.ConvTranspose2d,
        (F.conv_transpose2d,),
        q.QuantConvTranspose2d,
        WEIGHTED,
    ),
    _module("batch_norm1d", nn.BatchNorm1d, q.QuantBatchNorm1d),
    _module("batch_norm2d", nn.BatchNorm2d, q.QuantBatchNorm2d),
    _module("batch_norm3d", nn.BatchNorm3d),
    _function("batch_norm", F.batch_norm, arguments=BATCH_NORM),
    _both("layer_norm", nn.LayerNorm, (F.layer_norm,), q.QuantLayerNorm, LAYER_NORM),
    _both("rms_norm", nn.RMSNorm, (F.rms_norm,), q.QuantRMSNorm, RMS_NORM),
    _both("group_norm", nn.GroupNorm, (F.group_norm,), q.QuantGroupNorm, GROUP_NORM),
    _both("embedding", nn.Embedding, (F.embedding,), q.QuantEmbedding, EMBEDDING),
    # elementwise with a module twin
    _both("relu", nn.ReLU, (F.relu, torch.relu), q.QuantReLU, ONE_INPUT, ("relu",)),
    _both("gelu", nn.GELU, (F.gelu,), q.QuantGELU, ONE_INPUT),
    _both("silu", nn.SiLU, (F.silu,), q.QuantSiLU, ONE_INPUT),
    _both("tanh", nn.Tanh, (F.tanh, torch.tanh), q.QuantTanh, ONE_INPUT, ("tanh",)),
    _both("softplus", nn.Softplus, (F.softplus,), q.QuantSoftplus, ONE_INPUT),
    _both("softsign", nn.Softsign, (F.softsign,), q.QuantSoftsign, ONE_INPUT),
    _both("selu", nn.SELU, (F.selu, torch.selu), q.QuantSELU, ONE_INPUT),
    _both(
        "sigmoid",
        nn.Sigmoid,
        (F.sigmoid, torch.sigmoid),
        q.QuantSigmoid,
        ONE_INPUT,
        ("sigmoid",),
    ),
    _both(
        "softmax",
        nn.Softmax,
        (F.softmax, torch.softmax),
        q.QuantSoftmax,
        ONE_INPUT,
        ("softmax",),
    ),
    _both(
        "log_softmax",
        nn.LogSoftmax,
        (F.log_softmax, torch.log_softmax),
        None,
        NO_ARGUMENTS,
        ("log_softmax",),
    ),
    _both("leaky_relu", nn.LeakyReLU, (F.leaky_relu,)),
    _both("elu", nn.ELU, (F.elu,)),
    _both("hardtanh", nn.Hardtanh, (F.hardtanh,)),
    _both("hardswish", nn.Hardswish, (F.hardswish,)),
    _both("mish", nn.Mish, (F.mish,)),
    _both(
        "dropout",
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d),
        (F.dropout, torch.dropout, F.dropout1d, F.dropout2d),
    ),
    # pooling
    _both("max_pool1d", nn.MaxPool1d, (F.max_pool1d,), q.QuantMaxPool1d, ONE_INPUT),
    _both("max_pool2d", nn.MaxPool2d, (F.max_pool2d,), q.QuantMaxPool2d, ONE_INPUT),
    _both("avg_pool1d", nn.AvgPool1d, (F.avg_pool1d,), q.QuantAvgPool1d, ONE_INPUT),
    _both("avg_pool2d", nn.AvgPool2d, (F.avg_pool2d,), q.QuantAvgPool2d, ONE_INPUT),
    _both(
        "adaptive_avg_pool1d",
        nn.AdaptiveAvgPool1d,
        (F.adaptive_avg_pool1d,),
        q.QuantAdaptiveAvgPool1d,
        ONE_INPUT,
    ),
    _both(
        "adaptive_avg_pool2d",
        nn.AdaptiveAvgPool2d,
        (F.adaptive_avg_pool2d,),
        q.QuantAdaptiveAvgPool2d,
        ONE_INPUT,
    ),
    # structure
    _module("identity", nn.Identity),
    _module("lstm", nn.LSTM),
    _module("gru", nn.GRU),
    _module("multihead_attention", nn.MultiheadAttention),
    _both("flatten", nn.Flatten, (torch.flatten,), None, NO_ARGUMENTS, ("flatten",)),
    _both("pad", (nn.ZeroPad2d, nn.ConstantPad2d), (F.pad,)),
    _both("interpolate", nn.Upsample, (F.interpolate,)),
    _both("cross_entropy", nn.CrossEntropyLoss, (F.cross_entropy,)),
    _both("mse_loss", nn.MSELoss, (F.mse_loss,)),
    # functions of two activations
    _function(
        "add", operator.add, operator.iadd, torch.add, methods=("add",), arguments=TWO_INPUTS
    ),
    _function(
        "sub", operator.sub, operator.isub, torch.sub, methods=("sub",), arguments=TWO_INPUTS
    ),
    _function(
        "mul", operator.mul, operator.imul, torch.mul, methods=("mul",), arguments=TWO_INPUTS
    ),
    _function(
        "matmul",
        torch.matmul,
        operator.matmul,
        methods=("matmul",),
        arguments={"input": "data_in", "other": "weight"},
        fallback={"weight": "data_in"},
    ),
    _function(
        "bmm",
        torch.bmm,
        methods=("bmm",),
        arguments={"input": "data_in", "mat2": "weight"},
        fallback={"weight": "data_in"},
    ),
    _function(
        "scaled_dot_product_attention",
        F.scaled_dot_product_attention,
        twin=q.QuantScaledDotProductAttention,
    ),
    # the rest of what models call often
    _function("div", operator.truediv, torch.div, methods=("div",)),
    _function("floor_div", operator.floordiv, torch.floor_divide),
    _function("neg", operator.neg, torch.neg, methods=("neg",)),
    _function("pow", operator.pow, torch.pow, methods=("pow",)),
    _function("sqrt", torch.sqrt, methods=("sqrt",)),
    _function("rsqrt", torch.rsqrt, methods=("rsqrt",)),
    _function("exp", torch.exp, methods=("exp",)),
    _function("mean", torch.mean, methods=("mean",)),
    _function("sum", torch.sum, methods=("sum",)),
    _function("cat", torch.cat, torch.concat),
    _function("stack", torch.stack),
    _function("chunk", torch.chunk, methods=("chunk",)),
    _function("split", torch.split, methods=("split",)),
    _function("getitem", operator.getitem),
    _function("getattr", getattr),
    _function("einsum", torch.einsum),
    _function("arange", torch.arange),
    _function("view", methods=("view",)),
    _function("reshape", torch.reshape, methods=("reshape",)),
    _function("permute", torch.permute, methods=("permute",)),
    _function("transpose", torch.transpose, methods=("transpose",)),
    _function("unsqueeze", torch.unsqueeze, methods=("unsqueeze",)),
    _function("squeeze", torch.squeeze, methods=("squeeze",)),
    _function("expand", methods=("expand",)),
    _function("contiguous", methods=("contiguous",)),
    _function("size", methods=("size",)),
    _function("to", methods=("to",)),
    _function("masked_fill", torch.masked_fill, methods=("masked_fill",)),
    _function("where", torch.where, methods=("where",)),
)

OPS: dict[str, Operator] = {row.name: row for row in TABLE}
"""Rows by operator name."""

_BY_MODULE = {cls: row for row in TABLE for cls in row.modules}
_BY_FUNCTION = {function: row for row in TABLE for function in row.functions}
_BY_METHOD = {name: row for row in TABLE for name in row.methods}


def of_module(cls: type[nn.Module]) -> Operator:
    """The row of a module class or of its nearest listed ancestor; a generic row otherwise.

    A class that computes something else than its ancestor is another operator.
    """
    for ancestor in cls.__mro__:
        if ancestor in _BY_MODULE:
            same = cls.forward is ancestor.forward or issubclass(cls, q.QuantizedOperator)
            if same:
                return _BY_MODULE[ancestor]
            break
    return Operator(cls.__name__.lower(), "module", (cls,))


def of_node(node: fx.Node, root: nn.Module) -> Operator:
    """The row of what a node calls. Unknown calls get a generic row under their own name.

    A quantised call keeps the row of the function it replaces. Placeholders, attributes and the
    output have the name and type that FX gives them.
    """
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        if isinstance(module, q.QuantizedOperator) and module.function is not None:
            return of_function(module.function)
        return of_module(type(module))
    if node.op == "call_function":
        return of_function(node.target)
    if node.op == "call_method":
        return _of_method(str(node.target))
    return Operator(node.op, node.op)


def of_function(function: Any) -> Operator:
    """The row of a function or of a method of `torch.Tensor`; a generic row otherwise."""
    if function in _BY_FUNCTION:
        return _BY_FUNCTION[function]
    name = getattr(function, "__name__", type(function).__name__)
    if getattr(torch.Tensor, name, None) is function:
        return _of_method(name)
    from_torch = (getattr(function, "__module__", "") or "torch").split(".")[0]
    return Operator(name, "builtin_func" if from_torch in STANDARD_MODULES else "patched_func")


def _of_method(name: str) -> Operator:
    """In-place methods end in an underscore and are the same operator."""
    plain = name if name.startswith("__") else name.removesuffix("_")
    return _BY_METHOD.get(plain) or Operator(name, "builtin_func")


STANDARD_MODULES = frozenset({"torch", "_operator", "operator", "builtins", "math"})
