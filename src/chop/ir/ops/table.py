"""Operator table: the single definition of each operator that models and passes use.

A row names an operator, lists the modules, functions and methods that call it, and has the
properties that passes need.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.base.plugins import PROGRAM, Registry
from chop.captured.huggingface.cache import update_cache
from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.overrides import why_not_its_class
from chop.errors import ConfigError, describe, did_you_mean
from chop.ir.ops import dimensions as d
from chop.ir.ops import flops
from chop.ir.ops.row import MASE_TYPES, Arguments, Kind, Operator, Weight, WeightArguments
from chop.nn import integer as i
from chop.nn import quantized as q
from chop.nn.hadamard import Hadamard
from chop.nn.packed import drop_packed_twin, packed_twin
from chop.nn.transposed import TransposedLinear
from chop.private.modules import METHODS

ONE_INPUT: Arguments = {"input": "data_in"}
TWO_INPUTS: Arguments = {**ONE_INPUT, "other": "data_in"}
PARAMETERS: Arguments = {"weight": "weight", "bias": "bias"}
WEIGHTED: Arguments = {**ONE_INPUT, **PARAMETERS}
LAYER_NORM: Arguments = {**ONE_INPUT, "normalized_shape": None, **PARAMETERS}
RMS_NORM: Arguments = {**ONE_INPUT, "normalized_shape": None, "weight": "weight"}
GROUP_NORM: Arguments = {**ONE_INPUT, "num_groups": None, **PARAMETERS}
BATCH_NORM: Arguments = {**ONE_INPUT, "running_mean": None, "running_var": None, **PARAMETERS}
FILLED: Arguments = {**ONE_INPUT, "mask": None, "value": None}
CHOSEN: Arguments = {"condition": None, **TWO_INPUTS}
EMBEDDING: Arguments = {"input": None, "weight": "weight"}

KERNEL = Weight(sizes=("out_channels", "in_channels"))
TRANSPOSED = Weight(1, 0, ("out_channels", "in_channels"))
EXPERT_WEIGHT = Weight(has_experts=True)
LOOKED_UP = Weight(sizes=("num_embeddings", "embedding_dim"), is_table=True)

FROM_DATA_IN = {"weight": "data_in"}
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)

TORCH = (F, torch, Tensor)
FX_KINDS = {"placeholder": Kind.INPUT, "get_attr": Kind.CONSTANT, "output": Kind.OUTPUT}


def _row(
    name: str,
    modules: type[nn.Module] | tuple[type[nn.Module], ...] = (),
    arguments: Arguments | None = None,
    homes: tuple[Any, ...] | None = None,
    others: tuple[Callable[..., Any], ...] = (),
    **traits: Any,
) -> Operator:
    """Makes a row with the functions of its name and the quantized class of its first module.

    `homes` are the namespaces that define the name, with `Tensor` for the method. The default is
    `F` for rows with modules, otherwise torch and Python. `others` are functions of other names.
    """
    classes = modules if isinstance(modules, tuple) else (modules,)
    homes = homes or ((F,) if classes else (operator, torch, Tensor))
    own = (vars(home)[name] for home in homes if home is not Tensor and name in vars(home))
    functions = tuple(dict.fromkeys((*own, *others)))  # torch and F share some
    methods = (name,) if Tensor in homes and hasattr(Tensor, name) else ()
    quantized = getattr(q, f"Quant{classes[0].__name__}", None) if classes else None
    kind = "builtin_func" if not classes else "module_related_func" if functions else "module"
    given = {"mase_type": kind, "methods": methods, "quantized": quantized, **traits}
    return Operator(name, modules=classes, functions=functions, arguments=arguments or {}, **given)


def _rows(names: str, **traits: Any) -> tuple[Operator, ...]:
    return tuple(_row(name, **traits) for name in names.split())


def _all(traits: dict[str, Any], *rows: Operator) -> tuple[Operator, ...]:
    """Applies common traits to rows that do not set them."""
    blank = Operator("", "")
    assert all(getattr(row, name) == getattr(blank, name) for row in rows for name in traits)
    return tuple(replace(row, **traits) for row in rows)


TABLE: tuple[Operator, ...] = (
    # with parameters
    *_all(
        {"kind": Kind.PRODUCT, "flops": flops.by_weight},
        *_all(
            {"features": -1, "follow": d.linear, "onnx": "Gemm"},
            _row(
                "linear",
                nn.Linear,
                WEIGHTED,
                weight=Weight(),
                weight_arguments=WeightArguments(0, 1, 2),
                stand_ins={"transformers.pytorch_utils.Conv1D": TransposedLinear.around},
                integer=i.IntegerLinear,
            ),
        ),
        *_all(
            {"weight": KERNEL, "follow": d.convolution, "onnx": "Conv"},
            _row("conv1d", nn.Conv1d, WEIGHTED, spatial=1, integer=i.IntegerConv1d),
            _row("conv2d", nn.Conv2d, WEIGHTED, spatial=2, integer=i.IntegerConv2d),
        ),
        _row("conv3d", nn.Conv3d, weight=KERNEL, spatial=3),
        _row("expert_linear", ExpertLinear, weight=EXPERT_WEIGHT),
    ),
    *_all(
        {"kind": Kind.PRODUCT, "weight": TRANSPOSED, "flops": flops.by_weight_transposed},
        _row("conv_transpose1d", nn.ConvTranspose1d, spatial=1),
        _row(
            "conv_transpose2d",
            nn.ConvTranspose2d,
            WEIGHTED,
            spatial=2,
            follow=d.convolution,
            integer=i.IntegerConvTranspose2d,
        ),
    ),
    *_all(
        {"kind": Kind.NORM},
        *_all(
            {"follow": d.by_channel, "is_affine": True},
            _row("batch_norm1d", nn.BatchNorm1d, features=1, integer=i.IntegerBatchNorm),
            _row("batch_norm2d", nn.BatchNorm2d, integer=i.IntegerBatchNorm),
            _row("batch_norm3d", nn.BatchNorm3d),
            _row("sync_batch_norm", nn.SyncBatchNorm, integer=i.IntegerBatchNorm),
        ),
        _row("batch_norm", (), BATCH_NORM, (F,), is_affine=True),
        *_all(
            {"features": -1, "follow": d.normalized},
            _row("layer_norm", nn.LayerNorm, LAYER_NORM, integer=i.IntegerLayerNorm),
            _row("rms_norm", nn.RMSNorm, RMS_NORM, integer=i.IntegerRMSNorm),
        ),
        _row("group_norm", nn.GroupNorm, GROUP_NORM, integer=i.IntegerGroupNorm),
    ),
    _row(
        "embedding",
        nn.Embedding,
        EMBEDDING,
        weight=LOOKED_UP,
        kind=Kind.PRODUCT,
        integer=i.IntegerEmbedding,
    ),
    # activations
    *_all(
        {"kind": Kind.ACTIVATION, "follow": d.unchanged},
        *_all(
            {"is_homogeneous": True, "commutes": True, "integer": i.IntegerReLU},
            _row("relu", nn.ReLU, ONE_INPUT, TORCH),
        ),
        *_all(
            {"integer": i.Table},
            _row("gelu", nn.GELU, ONE_INPUT),
            _row("silu", nn.SiLU, ONE_INPUT),
            _row("tanh", nn.Tanh, ONE_INPUT, TORCH),
            _row("softplus", nn.Softplus, ONE_INPUT),
            _row("softsign", nn.Softsign, ONE_INPUT),
            _row("selu", nn.SELU, ONE_INPUT, TORCH),
            _row("sigmoid", nn.Sigmoid, ONE_INPUT, TORCH, reads_scores=True),
            _row("leaky_relu", nn.LeakyReLU, is_homogeneous=True),
            _row("elu", nn.ELU),
            _row("celu", nn.CELU, homes=TORCH, mase_type="builtin_func"),
            _row("hardtanh", nn.Hardtanh),
            _row("hardsigmoid", nn.Hardsigmoid, mase_type="builtin_func"),
            _row("hardswish", nn.Hardswish),
            _row("mish", nn.Mish),
            _row("relu6", homes=(F,)),
            _row("log_sigmoid", others=(F.logsigmoid,)),
        ),
    ),
    _row("prelu", nn.PReLU, homes=TORCH, kind=Kind.ACTIVATION, integer=i.IntegerPReLU),
    *_all(
        {"kind": Kind.ACTIVATION, "reads_scores": True},
        _row("softmax", nn.Softmax, ONE_INPUT, TORCH, integer=i.IntegerSoftmax),
        _row("log_softmax", nn.LogSoftmax, ONE_INPUT, TORCH, makes_masks=True),
    ),
    *_all(
        {"kind": Kind.DROPOUT, "follow": d.unchanged, "is_homogeneous": True},
        _row("dropout", DROPOUTS, homes=TORCH, others=(F.dropout1d, F.dropout2d)),
    ),
    # pooling
    *_all(
        {"kind": Kind.POOLING, "follow": d.pooled},
        _row("max_pool1d", nn.MaxPool1d, ONE_INPUT, TORCH, spatial=1, integer=i.IntegerMaxPool1d),
        _row(
            "max_pool2d",
            nn.MaxPool2d,
            ONE_INPUT,
            TORCH,
            spatial=2,
            commutes=True,
            integer=i.IntegerMaxPool2d,
        ),
        _row("avg_pool1d", nn.AvgPool1d, ONE_INPUT, spatial=1, integer=i.IntegerAvgPool1d),
        _row("avg_pool2d", nn.AvgPool2d, ONE_INPUT, spatial=2, integer=i.IntegerAvgPool2d),
        _row(
            "adaptive_avg_pool1d",
            nn.AdaptiveAvgPool1d,
            ONE_INPUT,
            spatial=1,
            integer=i.IntegerAdaptiveAvgPool1d,
        ),
        _row(
            "adaptive_avg_pool2d",
            nn.AdaptiveAvgPool2d,
            ONE_INPUT,
            spatial=2,
            integer=i.IntegerAdaptiveAvgPool2d,
        ),
    ),
    # structure
    _row("hadamard", Hadamard, kind=Kind.ARITHMETIC, follow=d.mixed_last),
    _row("identity", nn.Identity, layout="view", follow=d.unchanged, is_homogeneous=True),
    _row("lstm", nn.LSTM, kind=Kind.PRODUCT),
    _row("gru", nn.GRU, kind=Kind.PRODUCT),
    _row("multihead_attention", nn.MultiheadAttention, kind=Kind.PRODUCT),
    _row("flatten", nn.Flatten, homes=TORCH, layout="view", follow=d.reshaped),
    _row("pixel_shuffle", nn.PixelShuffle, layout="permuted"),
    _row("pixel_unshuffle", nn.PixelUnshuffle, layout="permuted"),
    _row("channel_shuffle", nn.ChannelShuffle, layout="permuted"),
    _row("pad", (nn.ZeroPad2d, nn.ConstantPad2d), follow=d.padded, integer=i.IntegerPad),
    _row("interpolate", nn.Upsample, integer=i.IntegerInterpolate),
    _row("cross_entropy", nn.CrossEntropyLoss, kind=Kind.LOSS),
    _row("mse_loss", nn.MSELoss, kind=Kind.LOSS),
    # functions of two activations
    *_all(
        {"arguments": TWO_INPUTS, "kind": Kind.ARITHMETIC, "follow": d.arithmetic},
        _row("add", others=(operator.iadd,), integer=i.IntegerAdd),
        _row("sub", others=(operator.isub,), integer=i.IntegerSub),
        _row("mul", others=(operator.imul,), integer=i.IntegerMul, is_bilinear=True),
    ),
    *_all(
        {
            "kind": Kind.PRODUCT,
            "flops": flops.matmul,
            "fallback": FROM_DATA_IN,
            "integer": i.IntegerMatmul,
        },
        _row("matmul", (), {**ONE_INPUT, "other": "weight"}, methods=("matmul", "__matmul__")),
        _row("bmm", (), {**ONE_INPUT, "mat2": "weight"}),
    ),
    *_all(
        {"kind": Kind.PRODUCT, "follow": d.attention, "flops": flops.attention},
        _row("scaled_dot_product_attention", homes=(F,), twin=q.QuantScaledDotProductAttention),
    ),
    # other common functions
    *_all(
        {"kind": Kind.ARITHMETIC},
        _row("div", others=(operator.truediv,), follow=d.arithmetic),
        _row("floor_div", others=(operator.floordiv, torch.floor_divide)),
        _row("neg", follow=d.unchanged, integer=i.IntegerNegate),
        *_rows("sqrt rsqrt clamp", follow=d.unchanged),
        *_rows("pow square", follow=d.unchanged, integer=i.IntegerSquare),
        _row("abs", follow=d.unchanged, integer=i.IntegerAbs),
        _row("amax", integer=i.IntegerAMax),
        _row("exp", follow=d.unchanged, reads_scores=True),
        _row("mean", follow=d.reduced, integer=i.IntegerMean),
        _row("sum", follow=d.reduced, integer=i.IntegerSum),
        *_rows("log minimum", makes_masks=True),
        *_all(
            {"makes_masks": True, "is_opt_in": True},
            _row("masked_fill", (), FILLED, selector="mask"),
            _row("where", (), CHOSEN, selector="condition"),
        ),
        *_rows("sin cos maximum and_ or_"),
        *_rows("ge gt le lt eq ne", is_comparison=True),
    ),
    _row("cat", others=(torch.concat,), layout="copied", follow=d.joined),
    *_rows("einsum tensordot inner chain_matmul bilinear", kind=Kind.PRODUCT),
    _row("multi_dot", homes=(torch.linalg,), kind=Kind.PRODUCT),
    *_rows("mm baddbmm addbmm", kind=Kind.PRODUCT, flops=flops.addmm),
    _row(
        "addmm",
        kind=Kind.PRODUCT,
        weight_arguments=WeightArguments(1, 2, 0, Weight(1, 0)),
        flops=flops.addmm,
    ),
    *_rows("stack chunk split unbind repeat repeat_interleave", layout="copied"),
    *_rows("expand", layout="copied", follow=d.expanded),
    *_rows("arange"),
    _row("update_cache", others=(update_cache,), follow=d.cached),
    _row("getattr", homes=(builtins,), layout="read"),
    _row("getitem", layout="read", follow=d.indexed),
    _row("size", layout="read", follow=d.read_size),
    *_rows("view reshape", layout="view", follow=d.viewed),
    *_rows("contiguous", layout="view", follow=d.unchanged),
    *_rows("unsqueeze", layout="view", follow=d.unsqueezed),
    *_rows("squeeze", layout="view"),
    *_rows("permute", layout="permuted", follow=d.permuted),
    *_rows("transpose", layout="permuted", follow=d.transposed),
    *_all(
        {"layout": "cast", "follow": d.unchanged},
        *_rows("to type half bfloat16", homes=(Tensor,)),
        _row("float", homes=(Tensor,), methods=("float", "double")),
    ),
    *_rows("type_as", homes=(Tensor,), layout="cast", follow=d.typed),
)

_BY_CALL: dict[Any, Operator] = {}
"""Rows by module class, function and method name."""


def _indexed(name: str, row: Operator) -> Operator:
    """Checks a row and indexes it by everything that it calls."""
    if row.mase_type not in MASE_TYPES:
        near = did_you_mean(row.mase_type, MASE_TYPES)
        raise ConfigError(f"operator '{name}': no mase_type '{row.mase_type}': {near}")
    calls = (*row.modules, *row.functions, *row.methods)
    taken = [call for call in calls if call in _BY_CALL]
    if taken:
        raise ConfigError(f"operator '{name}': {taken[0]} is already in the table.")
    for method in row.methods:
        if method != _plain(method):
            raise ConfigError(f"operator '{name}': write '{method}' as '{_plain(method)}'.")
    if row.quantized is not None:
        if not issubclass(row.quantized, q.QuantizedOperator):
            text = f"expected a QuantizedOperator as quantized, got {row.quantized.__name__}."
            raise ConfigError(f"operator '{name}': {text}")
        if "weight" in row.quantized.operands:
            packed_twin(row.quantized)
    # MASE has separate names for some functions of these modules.
    apart = row.mase_type == "builtin_func"
    _BY_CALL.update(dict.fromkeys(row.modules, replace(row, mase_type="module") if apart else row))
    _BY_CALL.update(dict.fromkeys((*row.functions, *row.methods), row))
    return row


def _plain(method: str) -> str:
    """Strips the underscore of in-place methods, which are the same operator."""
    return method if method.startswith("__") else method.removesuffix("_")


OPS: Registry[Operator] = Registry(
    "operators", {row.name: _indexed(row.name, row) for row in TABLE}, Operator, _indexed
)
"""Rows by operator name, of chop and of other packages."""


def quantizable_operators(opt_in: bool = False) -> tuple[str, ...]:
    """Returns the names of the operators that can be quantized.

    Args:
        opt_in: include operators that rules for all operators do not quantize.
    """
    rows = OPS.values()
    return tuple(x.name for x in rows if x.is_quantizable or (opt_in and x.is_opt_in))


def register(row: Operator) -> None:
    """Adds a row, so that every pass knows the operator.

    Captures keep its modules as single nodes. Prefer a module over a function, since captures trace
    through Python functions. A quantized operator with a weight gets a packed twin if it has none;
    see `packed_twin`. Unpickling packed layers requires the row to be registered.

    Raises:
        ConfigError: if it is not a row, the name or one of its calls is in the table already, a
            method is named with the underscore of its in-place variant, or no packed twin is
            possible. The table is then not changed.
    """
    if not isinstance(row, Operator):
        raise ConfigError(
            f"expected a row of the operator table, an Operator, got {describe(row)}."
        )
    OPS[row.name] = row


def unregister(name: str) -> None:
    """Removes the row with a name, for instance to replace it.

    Raises:
        ConfigError: if there is no such row.
    """
    if name not in OPS:
        raise ConfigError(f"operator '{name}' is not in the table: {did_you_mean(name, OPS)}")
    row = OPS.pop(name)
    for call in (*row.modules, *row.functions, *row.methods):
        del _BY_CALL[call]
    if row.quantized is not None:
        drop_packed_twin(row.quantized)


def stand_in_for(module: nn.Module) -> Callable[[nn.Module], nn.Module] | None:
    """Returns the factory that replaces another library's module; None if there is none."""
    cls = type(module)
    name = f"{cls.__module__}.{cls.__qualname__}"
    return next((row.stand_ins[name] for row in OPS.values() if name in row.stand_ins), None)


def get_class_row(cls: type[nn.Module]) -> Operator:
    """Returns the row of a module class or its nearest listed ancestor; otherwise a generic row.

    A class that computes something else than its ancestor is another operator.
    """
    if cls not in _BY_CALL:
        OPS.import_all()
    ancestors: tuple[Any, ...] = cls.__mro__
    for ancestor in ancestors:
        if ancestor in _BY_CALL:
            is_same = all(_method(cls, name) is _method(ancestor, name) for name in METHODS)
            if is_same or issubclass(cls, q.QuantizedOperator):
                return _BY_CALL[ancestor]
            break
    return Operator(cls.__name__.lower(), "module", (cls,))


def declaring_package(cls: type[nn.Module]) -> str | None:
    """Returns the package, with its version, that declares a class as an operator.

    Returns None for classes of chop, of the running program, or without a row.
    """
    row = get_class_row(cls)
    if OPS.get(row.name) is not row:
        return None
    package = OPS.package(row.name)
    return None if package == PROGRAM else package


def _method(cls: Any, name: str) -> Any:
    return getattr(cls, name, None)


def get_module_row(module: nn.Module) -> Operator:
    """Returns the row of a module. A module with a replaced forward is another operator."""
    if isinstance(module, torch.jit.ScriptModule):  # copies have another class
        return Operator("script_module", "module", (torch.jit.ScriptModule,))
    cls = type(module)
    if why_not_its_class(module) is not None:
        return Operator(f"replaced_{cls.__name__.lower()}", "module", (cls,))
    return get_class_row(cls)


def get_called_row(module: nn.Module) -> Operator:
    """Returns the row of a module; a quantized call has the row of its function."""
    if isinstance(module, q.QuantizedOperator) and module.function is not None:
        return get_function_row(module.function)
    return get_module_row(module)


def get_node_row(node: fx.Node, root: nn.Module) -> Operator:
    """Returns the row of a node's call. Unknown calls get a generic row with their own name.

    Placeholders, attributes and the output have the name and type of FX.
    """
    module = module_of_node(node, root)
    if module is not None:
        return get_called_row(module)
    if node.op == "call_function":
        return get_function_row(node.target)
    if node.op == "call_method":
        return _get_method_row(str(node.target))
    return Operator(node.op, node.op, kind=FX_KINDS[node.op])


def module_of_node(node: fx.Node, root: nn.Module) -> nn.Module | None:
    """Returns the module of a `call_module` node; None for other nodes."""
    return root.get_submodule(str(node.target)) if node.op == "call_module" else None


def get_function_row(function: Any) -> Operator:
    """Returns the row of a function or `torch.Tensor` method; otherwise a generic row."""
    if function not in _BY_CALL:
        OPS.import_all()  # packages' rows are looked up by call, not by name
    if function in _BY_CALL:
        return _BY_CALL[function]
    name = getattr(function, "__name__", type(function).__name__)
    if getattr(torch.Tensor, name, None) is function:
        return _get_method_row(name)
    if name != _plain(name) and getattr(torch, name, None) is function:
        return _get_method_row(name)  # torch.relu_ and x.relu_ are one operator
    from_torch = (getattr(function, "__module__", "") or "torch").split(".")[0]
    return Operator(name, "builtin_func" if from_torch in STANDARD_MODULES else "patched_func")


def _get_method_row(name: str) -> Operator:
    return _BY_CALL.get(_plain(name)) or Operator(name, "builtin_func")


STANDARD_MODULES = frozenset({"torch", "_operator", "operator", "builtins", "math"})
