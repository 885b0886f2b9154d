"""Rows of the operator table, and the types of their rules.

A dimension holds units, such as channels or heads, of some neighbors each. A dimension rule says
where they lie in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from torch import fx, nn

from chop.nn.integer import IntegerOperator
from chop.nn.quantized import QuantizedOperator

Shape = tuple[int, ...]
Flops = Callable[[Sequence[Shape], Shape], int]
"""(shapes of the tensors that go in, the input first, then the weight; the result's) -> number."""
Arguments = Mapping[str, str | None]
"""A function's first parameters by name, in order, and the operand that each is (or None)."""


class Kind(StrEnum):
    """What an operator is to a reader of the graph."""

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
    """How the weight of a layer lies.

    Attributes:
        outputs: the axis along which outputs lie.
        inputs: the axis along which inputs are summed; of a table, its columns.
        sizes: the attributes of the module that give the numbers of outputs and of inputs.
        is_table: its rows are looked up, not multiplied.
        has_experts: it has the matrices of several experts one below the other, `num_experts` of
            the module, and a row of the input is multiplied by one of them.
    """

    outputs: int = 0
    inputs: int = 1
    sizes: tuple[str, str] = ("out_features", "in_features")
    is_table: bool = False
    has_experts: bool = False

    @property
    def is_transposed(self) -> bool:
        """True when inputs lie ahead of outputs."""
        return self.inputs < self.outputs


@dataclass(frozen=True)
class WeightArguments:
    """Where a function that multiplies by a weight matrix takes it.

    Attributes:
        data_in: the position of the argument that is multiplied.
        weight: of the weight.
        bias: of the bias.
        axes: of the weight.
    """

    data_in: int
    weight: int
    bias: int
    axes: Weight = Weight()


class BlockedError(Exception):
    """The units reach something that cannot tell them apart; the message says what."""


@dataclass(frozen=True)
class UnitDim:
    """Dimension of a tensor that holds the units, each as `run` neighbors."""

    dim: int
    run: int = 1


@dataclass(frozen=True)
class Call:
    """A node with what a rule reads of it.

    Attributes:
        node: the call.
        row: of the operator table.
        module: that it calls, if any.
        shapes: of the results of all nodes.
    """

    node: fx.Node
    row: Operator
    module: nn.Module | None
    shapes: Mapping[fx.Node, Shape]

    def argument(self, position: int, name: str) -> Any:
        """An argument given by position or by name; None if it is not given."""
        given = self.node.args
        return given[position] if len(given) > position else self.node.kwargs.get(name)

    def listed(self) -> Any:
        """The arguments after the first, given one by one or as one sequence."""
        rest = self.node.args[1:]
        return rest[0] if rest and isinstance(rest[0], tuple | list) else rest

    def mixing(self, how: str = "") -> BlockedError:
        """The error to raise; `how` is what it does with "them"."""
        name = self.node.name
        return BlockedError(f"'{name}' {how}" if how else f"they reach '{name}'")


@dataclass(frozen=True)
class RuleResult:
    """Result of a dimension rule: where the units of one input go.

    Attributes:
        place: in the result; None: they are summed over, or only their number is read.
        parameters: the axis of each parameter or buffer of the module along which they lie.
        sizes: the attributes of the module that say how many there are.
        aligned: the inputs that must have them at the same place.
        has_size: the call's arguments say the length of their dimension.
    """

    place: UnitDim | None
    parameters: Mapping[str, int] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    aligned: tuple[fx.Node, ...] = ()
    has_size: bool = False


DimensionRule = Callable[[Call, fx.Node, UnitDim], RuleResult]
"""(call, the input that has the units, where) -> where they go; raises BlockedError."""


@dataclass(frozen=True)
class Operator:
    """One row of the table.

    Attributes:
        name: MASE's name; configs select by it.
        mase_type: `module_related_func` (a function with a module twin), `module` (module only) or
            `builtin_func` (function only; modules of the row are `module`).
        modules: the module classes; subclasses count.
        functions: the functions, operators and in-place twins.
        methods: names of the `torch.Tensor` methods.
        quantized: the class that replaces a module, or None.
        arguments: the operands of the function form; none if it has no `QuantCall`.
        twin: what replaces a call of the function form if it is not a `QuantCall`.
        fallback: operands of that form that take another's format when a config leaves them out.
        kind: what it is drawn as.
        weight: the axes of its weight matrix; None without one.
        weight_arguments: where the function form takes a weight matrix; None without one.
        stand_ins: makes a module of the row of one of another library that computes the same; by
            the qualified name of its class, since the library need not be there.
        spatial: how many trailing dimensions of its input it slides over.
        features: the dimension of the result along which `weight` and `bias` scale and shift, of
            an operator that takes inputs of any rank; None elsewhere.
        follow: which dimension of the result follows which of an input; None stops at it.
        flops: floating-point operations of a call; None where it multiplies no matrices.
        layout: computes no number: `view` keeps the order of the elements, `permuted` changes it,
            `cast` changes their dtype, `copied` joins, parts or repeats tensors, `read` gives
            sizes, attributes or parts.
        is_affine: at inference, with running statistics, a scale and a shift per channel.
        is_homogeneous: f(x / s) = f(x) / s for s > 0, so that a factor can be moved through it.
        is_bilinear: f(x / s, y) = f(x, y / s) = f(x, y) / s for s per channel.
        commutes: f(round(x)) = round(f(x)) for monotonic roundings that keep zero.
        reads_scores: a softmax, the first step of one, or a gate: masked scores become 0 or -inf.
        is_comparison: makes booleans of numbers, element by element.
        makes_masks: its result may be masked scores although nothing that it reads is.
        selector: the argument, a boolean, that takes numbers of an input or others.
        is_opt_in: rules quantize it that name it; those of all operators leave it.
        onnx: the ONNX operator of a layer that runtimes compute in integers; "" of other rows.
        integer: the operator on integer codes, bit for bit what a circuit computes; None: it is
            not lowered yet.
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

    @property
    def is_quantizable(self) -> bool:
        """True when rules of all operators quantize it: some form of it has a quantized twin."""
        has_twin = self.quantized is not None or bool(self.arguments) or self.twin is not None
        return has_twin and not self.is_opt_in

    @property
    def is_product(self) -> bool:
        """True when a weight matrix is multiplied: a linear layer or a convolution."""
        return self.weight is not None and not self.weight.is_table

    @property
    def is_product_of_activations(self) -> bool:
        """True when two activations are multiplied as matrices, each with a format of its own."""
        return self.kind is Kind.PRODUCT and bool(self.arguments) and self.weight is None

    @property
    def only_moves(self) -> bool:
        """True when the result has the elements of the input, once each."""
        return self.layout in ("view", "permuted")

    def call_arguments(self, node: fx.Node) -> Arguments:
        """The operands of the function form, in the order of a call: methods begin with theirs."""
        is_method = node.op == "call_method" and "input" in self.arguments
        return {"input": self.arguments["input"], **self.arguments} if is_method else self.arguments

    def joins(self, node: fx.Node) -> bool:
        """Whether a node of this row joins several tensors into one."""
        given = node.args[0] if node.args else node.kwargs.get("tensors")
        return self.layout == "copied" and isinstance(given, tuple | list)
