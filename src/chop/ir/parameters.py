"""Parameter counts of a model, and the storage format of each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from chop.captured.nodes.modes import is_of_training
from chop.formats import Encoded, Float, NumberFormat
from chop.ir.dotted import deepgetattr
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantCall, QuantizedOperator
from chop.nn.quantized.state import SCALE_NAMES
from chop.nn.sparsity import get_masked

FLOAT = Float()
Use = tuple[Tensor, str, NumberFormat]
"""Parameter, operand and format."""


@dataclass(frozen=True)
class StoredParameter:
    """Parameter and its storage format.

    Attributes:
        name: dotted path.
        value: the parameter; for a packed one, a tensor of its shape and dtype without data.
        format: widest format in which the graph's operators read it.
        operand: `weight`, `bias`, or "" if no operator quantizes it.
        packed: codes stored in its place, or None.
    """

    name: str
    value: Tensor
    format: NumberFormat
    operand: str
    packed: Encoded | None = None

    @property
    def bits(self) -> float:
        """Bits per element: from its codes, its format, or the width of its dtype."""
        if self.packed is not None:
            return 8 * self.packed.size_bytes / max(self.value.numel(), 1)
        if self.format.is_identity:
            return self.value.dtype.itemsize * 8
        return self.format.bits(self.value.shape)

    @property
    def held_bytes(self) -> int:
        """Bytes currently in memory; only packed parameters are as small as their formats."""
        return self.value.nbytes if self.packed is None else self.packed.size_bytes


@dataclass(frozen=True)
class ParameterCount:
    """Parameter count of a module and its submodules; shared parameters count once.

    Attributes:
        total: all elements, including packed ones that do not train.
        trainable: elements that require a gradient.
    """

    total: int
    trainable: int

    @classmethod
    def of(cls, module: nn.Module) -> ParameterCount:
        """Counts the parameters of a module."""
        sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
        packed = {
            id(part.encoded(name).codes): shape.numel()
            for part in module.modules()
            if isinstance(part, PackedOperator)
            for name, shape in part.packed_shapes.items()
        }
        total = sum(n for n, _ in sizes) + sum(packed.values())
        return cls(total, sum(n for n, trains in sizes if trains))

    @property
    def share(self) -> float:
        """Trainable share of the parameters; 0 if there are none."""
        return self.trainable / self.total if self.total else 0.0


def stored_parameters(mg: MaseGraph) -> list[StoredParameter]:
    """Returns every parameter of the model once, in order; shared ones under their first name."""
    nodes = (node for node in mg.nodes if not is_of_training(node))
    return _stored(mg.model, (use for node in nodes for use in _uses(mg, node)))


def count_stored_parameters(module: nn.Module) -> list[StoredParameter]:
    """Returns the parameters of a module without a graph, as if every submodule were called."""
    return _stored(module, _uses_in(module))


def masked_weights(mg: MaseGraph) -> dict[int, Tensor]:
    """Returns the pruning masks by id of the weight; True marks masked elements."""
    weights = (dict(x.named_parameters(recurse=False)).get("weight") for x in mg.model.modules())
    owners = zip(weights, mg.model.modules(), strict=True)
    masks = ((weight, get_masked(module)) for weight, module in owners if weight is not None)
    return {id(weight): masked for weight, masked in masks if masked is not None}


def total_bits(stored: Iterable[StoredParameter]) -> tuple[float, int]:
    """Returns (total bits, number of elements)."""
    sizes = [(parameter.bits, parameter.value.numel()) for parameter in stored]
    return sum(bits * numel for bits, numel in sizes), sum(numel for _, numel in sizes)


def parameter_bits(mg: MaseGraph) -> tuple[float, int]:
    """Returns (total bits, number of elements) of the parameters; shared ones count once."""
    return total_bits(stored_parameters(mg))


def _stored(root: nn.Module, taken: Iterable[Use]) -> list[StoredParameter]:
    uses: dict[int, list[tuple[str, NumberFormat]]] = {}
    for parameter, operand, number_format in taken:
        uses.setdefault(id(parameter), []).append((operand, number_format))
    stored_by_id: dict[int, StoredParameter] = {}
    for path, module in root.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in stored_by_id and not _is_lsq_scale(module, name):
                own = uses.get(id(parameter), [])
                stored_by_id[id(parameter)] = _widest(prefix + name, parameter, own)
        for operand in module.packed_shapes if isinstance(module, PackedOperator) else ():
            assert isinstance(module, PackedOperator)
            stored = _packed(prefix, module, operand)
            stored_by_id.setdefault(id(module.encoded(operand).codes), stored)
    return list(stored_by_id.values())


def _is_lsq_scale(module: nn.Module, name: str) -> bool:
    """Returns whether a parameter is a learned scale, which the format's bits include already."""
    return isinstance(module, QuantizedOperator) and name in SCALE_NAMES.values()


def _packed(prefix: str, module: PackedOperator, operand: str) -> StoredParameter:
    codes = module.encoded(operand)
    value = torch.empty(codes.shape, dtype=codes.dtype, device="meta")
    number_format = module.spec.number_format(operand)
    return StoredParameter(prefix + operand, value, number_format, operand, codes)


def _widest(name: str, parameter: Tensor, uses: list[tuple[str, NumberFormat]]) -> StoredParameter:
    stored = [StoredParameter(name, parameter, fmt, operand) for operand, fmt in uses]
    return max(stored, key=lambda s: s.bits, default=StoredParameter(name, parameter, FLOAT, ""))


def _uses(mg: MaseGraph, node: fx.Node) -> Iterator[Use]:
    """Returns the parameters that a node reads, with operand and format."""
    module = mg.get_module(node)
    if isinstance(module, QuantCall):
        positions = zip(module.arguments, node.args, strict=False)
        for name, argument in [*positions, *node.kwargs.items()]:
            operand = module.arguments.get(name)
            for parameter in _fetched(mg, argument):
                number_format = module.spec.number_format(operand) if operand else FLOAT
                yield parameter, operand or "", number_format
    elif module is not None:
        yield from _uses_in(module)
    else:
        for argument in node.all_input_nodes:
            for parameter in _fetched(mg, argument):
                yield parameter, "", FLOAT


def _uses_in(module: nn.Module) -> Iterator[Use]:
    """Returns the parameters of a module and its submodules, with operand and format."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if isinstance(part, QuantizedOperator) and name in part.operands:
                yield parameter, name, part.spec.number_format(name)
            else:
                yield parameter, "", FLOAT


def _fetched(mg: MaseGraph, argument: object) -> Iterator[nn.Parameter]:
    """Returns the parameter that an argument fetches, if any."""
    if isinstance(argument, fx.Node) and argument.op == "get_attr":
        value = deepgetattr(mg.model, str(argument.target))
        if isinstance(value, nn.Parameter):
            yield value
