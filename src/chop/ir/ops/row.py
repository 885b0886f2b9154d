"""Fields of the operator table, and the types of their rules.

A dimension holds units, such as channels or heads, each as several adjacent elements. A dimension
rule gives their position in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from torch import fx, nn

from chop.errors import ConfigError, describe
from chop.nn.integer import IntegerOperator
from chop.nn.quantized import QuantizedOperator

Shape = tuple[int, ...]
Flops = Callable[[Sequence[Shape], Shape], int]
"""(shapes of the input, the weight and other tensors; shape of the result) -> number."""
MASE_TYPES = ("module_related_func", "module", "builtin_func")
"""Values of `Operator.mase_type` in the table."""
Arguments = Mapping[str, str | None]
"""First parameters of a function in order -> operand, or None."""


class Kind(StrEnum):
    """Kind of operator, as drawings and reports group it."""

    PRODUCT = "matrix product"
    NORM = "normalization"
    ACTIVATION = "activation"
    ARITHMETIC = "arithmetic"
    POOLING = "pooling"
    DROPOUT = "dropout"
    LOSS = "loss"
    INPUT = "input"
    CONSTANT = "constant"
    OUTPUT = "output"
    OTHER = "reshape and other"


@dataclass(frozen=True)
class Weight:
    """Layout of a layer's weight.

    Attributes:
        outputs: axis of the outputs.
        inputs: axis of the inputs that are summed; the columns of a table.
        sizes: module attributes with the numbers of outputs and inputs.
        is_table: True if rows are looked up instead of multiplied.
        has_experts: True if the matrices of `num_experts` experts are stacked along the rows, and
            each input row is multiplied by one of them.
    """

    outputs: int = 0
    inputs: int = 1
    sizes: tuple[str, str] = ("out_features", "in_features")
    is_table: bool = False
    has_experts: bool = False

    @property
    def is_transposed(self) -> bool:
        """True if the input axis precedes the output axis."""
        return self.inputs < self.outputs


@dataclass(frozen=True)
class WeightArguments:
    """Argument positions of a function that multiplies by a weight matrix.

    Attributes:
        data_in: position of the activation.
        weight: position of the weight.
        bias: position of the bias.
        axes: layout of the weight.
    """

    data_in: int
    weight: int
    bias: int
    axes: Weight = Weight()


class BlockedError(Exception):
    """Raised if units reach an operator that cannot separate them; the message names it."""


@dataclass(frozen=True)
class UnitDim:
    """Dimension of a tensor with units of `run` adjacent elements each."""

    dim: int
    run: int = 1


@dataclass(frozen=True)
class Call:
    """Node with the information that rules read.

    Attributes:
        node: the call.
        row: row of the operator table.
        module: the called module, if any.
        shapes: result shapes of all nodes.
    """

    node: fx.Node
    row: Operator
    module: nn.Module | None
    shapes: Mapping[fx.Node, Shape]

    def argument(self, position: int, name: str) -> Any:
        """Returns an argument by position or name; None if it is not given."""
        given = self.node.args
        return given[position] if len(given) > position else self.node.kwargs.get(name)

    def listed(self) -> Any:
        """Returns the arguments after the first, passed separately or as one sequence."""
        rest = self.node.args[1:]
        return rest[0] if rest and isinstance(rest[0], tuple | list) else rest

    def mixing(self, how: str = "") -> BlockedError:
        """Returns the error for mixed units; `how` is a verb phrase about "them"."""
        name = self.node.name
        return BlockedError(f"'{name}' {how}" if how else f"they reach '{name}'")


@dataclass(frozen=True)
class RuleResult:
    """Result of a dimension rule: the position of one input's units.

    Attributes:
        place: position in the result; None if they are summed over, or only counted.
        parameters: axis of the units in each parameter or buffer of the module.
        sizes: module attributes with the number of units.
        aligned: inputs that must have units at the same position.
        has_size: True if the arguments of the call give the length of the dimension.
    """

    place: UnitDim | None
    parameters: Mapping[str, int] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    aligned: tuple[fx.Node, ...] = ()
    has_size: bool = False


DimensionRule = Callable[[Call, fx.Node, UnitDim], RuleResult]
"""(call, input with units, their position) -> result; raises BlockedError."""


@dataclass(frozen=True)
class Operator:
    """Row of the operator table.

    Attributes:
        name: MASE's name, which configurations select by.
        mase_type: `module_related_func` (a function with a module twin), `module` (module only) or
            `builtin_func` (function only; modules of the row are `module`).
        modules: module classes, including subclasses.
        functions: functions, operators and in-place variants.
        methods: names of the `torch.Tensor` methods.
        quantized: class that replaces a module, or None.
        arguments: operands of the function form; empty if it has no `QuantCall`.
        twin: replacement of a function call if it is not a `QuantCall`.
        fallback: function operands that use another operand's format by default.
        kind: kind in drawings.
        weight: axes of its weight matrix, or None.
        weight_arguments: position of the weight matrix in the function form, or None.
        stand_ins: qualified class name of another library -> function that makes an equivalent
            module of this row. Names are text, since the library may be missing.
        spatial: number of trailing dimensions that a kernel slides over.
        features: result dimension that `weight` and `bias` scale and shift, for operators with
            inputs of any rank; otherwise None.
        follow: dimension rule; None if units cannot pass.
        flops: operation count of a call; None if it multiplies no matrices.
        layout: data movement without arithmetic: `view` preserves the order of the elements,
            `permuted` changes it, `cast` changes their dtype, `copied` joins, splits or repeats
            tensors, `read` returns sizes, attributes or parts.
        is_affine: a scale and a shift per channel at inference, with running statistics.
        is_homogeneous: f(x / s) = f(x) / s for s > 0, so that a factor can be moved through it.
        is_bilinear: f(x / s, y) = f(x, y / s) = f(x, y) / s for s per channel.
        commutes: f(round(x)) = round(f(x)) for monotonic roundings that preserve zero.
        reads_scores: a softmax, its first step, or a gate: masked scores become 0 or -inf.
        is_comparison: element-wise comparison of numbers with a boolean result.
        makes_masks: the result may be masked scores even if no input is.
        selector: boolean argument that selects elements of an input or others.
        is_opt_in: only rules that name it quantize it; rules for all operators do not.
        onnx: ONNX operator of a layer that runtimes compute in integers; "" for other rows.
        integer: operator on integer codes, bit-exact with a circuit; None if it has no such form.
    """

    name: str
    mase_type: str
    modules: tuple[type[nn.Module], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    quantized: type[QuantizedOperator] | None = None
    arguments: Arguments = field(default_factory=dict)
    twin: type[QuantizedOperator] | None = None
    fallback: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = Kind.OTHER
    weight: Weight | None = None
    weight_arguments: WeightArguments | None = None
    stand_ins: Mapping[str, Callable[[nn.Module], nn.Module]] = field(default_factory=dict)
    spatial: int = 0
    features: int | None = None
    follow: DimensionRule | None = None
    flops: Flops | None = None
    layout: Literal["", "view", "permuted", "cast", "copied", "read"] = ""
    is_affine: bool = False
    is_homogeneous: bool = False
    is_bilinear: bool = False
    commutes: bool = False
    reads_scores: bool = False
    is_comparison: bool = False
    makes_masks: bool = False
    selector: str = ""
    is_opt_in: bool = False
    onnx: str = ""
    integer: type[IntegerOperator] | None = None

    def __post_init__(self) -> None:
        for calls in (self.modules, self.functions, self.methods):
            if not isinstance(calls, tuple):
                text = f"expected a tuple of calls, got {describe(calls)}."
                raise ConfigError(f"operator '{self.name}': {text}")

    @property
    def is_quantizable(self) -> bool:
        """True if rules for all operators quantize it, because some form has a quantized twin."""
        has_twin = self.quantized is not None or bool(self.arguments) or self.twin is not None
        return has_twin and not self.is_opt_in

    @property
    def is_product(self) -> bool:
        """True if it multiplies by a weight matrix: a linear layer or a convolution."""
        return self.weight is not None and not self.weight.is_table

    @property
    def is_linear(self) -> bool:
        """True if it multiplies by a matrix, or by a matrix for each expert."""
        return self.is_product and not self.spatial

    @property
    def is_product_of_activations(self) -> bool:
        """True if it multiplies two activations as matrices, each with its own format."""
        return self.kind is Kind.PRODUCT and bool(self.arguments) and self.weight is None

    @property
    def only_moves(self) -> bool:
        """True if the result has each element of the input exactly once."""
        return self.layout in ("view", "permuted")

    def call_arguments(self, node: fx.Node) -> Arguments:
        """Returns the operands of a call in order; methods start with their own."""
        is_method = node.op == "call_method" and "input" in self.arguments
        return {"input": self.arguments["input"], **self.arguments} if is_method else self.arguments

    def joins(self, node: fx.Node) -> bool:
        """Returns whether a node of this row joins several tensors into one."""
        given = node.args[0] if node.args else node.kwargs.get("tensors")
        return self.layout == "copied" and isinstance(given, tuple | list)
