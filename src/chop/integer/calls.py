"""Graph calls bound for integer operators: input tensors in order, and other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.operator_schemas import get_signature_for_torch_op

from chop.captured.padding.masks import MASKS_AHEAD
from chop.errors import ConfigError
from chop.formats import QuantSpec
from chop.integer.folding import Folded
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind
from chop.nn.integer import (
    Call,
    Grid,
    IntegerAdd,
    IntegerAMax,
    IntegerBatchNorm,
    IntegerMaxPool1d,
    IntegerMaxPool2d,
    IntegerMul,
    IntegerOperator,
    IntegerReLU,
    IntegerResample,
    IntegerSub,
    Table,
)
from chop.nn.integer.affine import MOST_THRESHOLDS, reader_codes
from chop.nn.quantized import QuantCall, QuantizedOperator

UNNAMED = "arg_"
"""Prefix of the names of positional arguments without a known signature."""
WITH_NUMBERS = (IntegerAdd, IntegerSub, IntegerMul)
"""Operators of two tensors that a model can also call with a tensor and a number."""
WIDE = {torch.float32, torch.float64}
"""Dtypes between which a cast does not change codes."""
MAX_POOLS = (IntegerMaxPool1d, IntegerMaxPool2d)


@dataclass(frozen=True)
class BoundCall:
    """A node with its arguments.

    Attributes:
        node: the call.
        module: the quantized module that it calls, or None.
        inputs: nodes of its tensor arguments, in order.
        operands: operand name of each input in a quantized operator.
        call: input shapes and other arguments.
        reference: computes the node's result from values of `inputs`, in order.
        unrounded: the same without number formats.
    """

    node: fx.Node
    module: QuantizedOperator | None
    inputs: Sequence[fx.Node]
    operands: Sequence[str | None]
    call: Call
    reference: Callable[..., Tensor]
    unrounded: Callable[..., Tensor]


def bind(mg: MaseGraph, node: fx.Node, folded: Folded) -> BoundCall:
    """Binds the arguments of a node; non-tensor arguments have their folded values.

    Raises:
        ConfigError: if the name of a function's non-tensor argument is unknown.
    """
    module = mg.get_module(node)
    inputs: list[fx.Node] = []
    operands: list[str | None] = []
    others: dict[str, Any] = {}
    names = _names(mg, node)
    is_call = module is None or isinstance(module, QuantCall)
    arguments = module.arguments if isinstance(module, QuantCall) else {}
    for position, given in [*enumerate(node.args), *_named(node).items()]:
        name = names[position] if isinstance(position, int) else str(position)
        if isinstance(given, fx.Node) and isinstance(folded.values[given], Tensor):
            inputs.append(given)
            operands.append(arguments.get(name) if arguments else "data_in")
        elif is_call and name.startswith(UNNAMED):
            raise ConfigError(
                f"argument {position} of {mg.operator(node).name} has an unknown name"
            )
        else:
            others[name] = fx.node.map_arg(given, folded.values.__getitem__)
    call = Call([folded.shape(given) for given in inputs], others)
    quantized = module if isinstance(module, QuantizedOperator) else None
    target: Any = module if node.op == "call_module" else node.target
    if node.op == "call_method":
        target = getattr(Tensor, str(node.target))
    reference = unrounded = _caller(node, target, folded)
    if quantized is not None:
        unrounded = _caller(node, quantized.with_spec(QuantSpec()), folded)
    return BoundCall(node, quantized, inputs, operands, call, reference, unrounded)


def _caller(node: fx.Node, target: Any, folded: Folded) -> Callable[..., Tensor]:
    """Returns a function that calls `target` with values for the node's tensor arguments."""

    def run(*values: Tensor) -> Tensor:
        given = (value.clone() for value in values)  # the call may write into them

        def get_value(read: fx.Node) -> Any:
            value = folded.values[read]
            return next(given) if isinstance(value, Tensor) else value

        args = fx.node.map_arg(node.args, get_value)
        kwargs = fx.node.map_arg(_named(node), get_value)
        result: Tensor = target(*args, **kwargs)
        return result

    return run


def _named(node: fx.Node) -> dict[str, Any]:
    """Returns the keyword arguments without padding masks, which integer graphs do not use."""
    return {name: given for name, given in node.kwargs.items() if name != MASKS_AHEAD}


def _names(mg: MaseGraph, node: fx.Node) -> list[str]:
    """Returns the names of the positional arguments; `arg_1` etc. without a known signature."""
    unnamed = [f"{UNNAMED}{position}" for position in range(len(node.args))]
    module = mg.get_module(node)
    if module is not None and not isinstance(module, QuantCall):
        return unnamed
    known = list(module.arguments) if isinstance(module, QuantCall) else []
    for signature in _signatures(node.target if module is None else module.function):
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [name for name, given in signature.parameters.items() if given.kind in kinds]
        if len(names) >= len(node.args) and set(_named(node)) <= set(signature.parameters):
            return known + names[len(known) :]
    return known + unnamed[len(known) :]


def _signatures(called: Any) -> Iterator[inspect.Signature]:
    """Yields the signatures of a function, or of the torch function with a method's name."""
    name = called if isinstance(called, str) else getattr(called, "__name__", "")
    function = getattr(torch, name, called)
    yield from get_signature_for_torch_op(function) or ()
    if inspect.isfunction(called):
        yield inspect.signature(called)
    written_out = getattr(F, f"_{name}", None)  # of functions that dispatch on an argument
    if inspect.isfunction(written_out):
        yield inspect.signature(written_out)


def is_moved(mg: MaseGraph, node: fx.Node, folded: Folded) -> bool:
    """Returns whether a node only moves values: reorders, joins or splits them."""
    row = mg.operator(node)
    if row.layout == "cast":
        (source,) = node.all_input_nodes[:1] or (node,)
        dtypes = {folded.values[node].dtype, folded.values[source].dtype}
        return len(dtypes) == 1 or dtypes == WIDE
    return row.only_moves or row.layout in ("copied", "read") or row.kind is Kind.DROPOUT


def is_lookup(mg: MaseGraph, node: fx.Node, folded: Folded) -> bool:
    """Returns whether a node computes a function of one code, which a table holds.

    A sum, difference or product with a number is such a function, too.
    """
    row = mg.operator(node)
    if row.integer is Table:
        return True
    if row.integer not in WITH_NUMBERS or not isinstance(mg.get_module(node), QuantCall):
        return False
    return len(bind(mg, node, folded).inputs) == 1


def has_thresholds(mg: MaseGraph, node: fx.Node, grid: Grid) -> bool:
    """Returns whether rounding to a reader's grid can be comparisons in place of a batch norm.

    Maximum pooling and ReLU between the norm and the reader are monotone, so that they may follow
    the rounding.
    """
    row, module = mg.operator(node), mg.get_module(node)
    if isinstance(module, QuantizedOperator):
        formats = (module.operand_format(operand) for operand in ("data_in", "data_out"))
        if not all(number_format.is_identity for number_format in formats):
            return False
    if row.integer is IntegerBatchNorm:
        return len(reader_codes(grid)) <= MOST_THRESHOLDS + 1
    # The sign of a ReLU's result is constant.
    passes = row.integer in MAX_POOLS or (row.integer is IntegerReLU and grid.rounding != "sign")
    return passes and has_thresholds(mg, node.all_input_nodes[0], grid)


def selects_codes(mg: MaseGraph, node: fx.Node, grid: Grid) -> bool:
    """Returns whether a node selects codes, so that rounding may precede it.

    Zeros that it adds have to be the code 0.
    """
    kind = mg.operator(node).integer or IntegerOperator
    if isinstance(mg.get_module(node), QuantizedOperator):
        return False
    has_zero = grid.rounding != "sign" and grid.low <= 0 <= grid.high
    return issubclass(kind, IntegerAMax) or (issubclass(kind, IntegerResample) and has_zero)
