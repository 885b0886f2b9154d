"""Parameters of a model: how many there are, and the format in which each is stored."""

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
from chop.private.modules import own_parameters

FLOAT = Float()
Use = tuple[Tensor, str, NumberFormat]
"""A parameter, as what it is taken, and in which format."""


@dataclass(frozen=True)
class StoredParameter:
    """A parameter and its format.

    Attributes:
        name: its dotted path.
        value: the parameter; of a packed one a tensor without data, of its shape and dtype.
        format: the widest of the formats in which the graph's operators take it.
        operand: what it is to them: `weight`, `bias`, or "" where none of them quantizes it.
        packed: the codes that are stored instead of it, or None.
    """

    name: str
    value: Tensor
    format: NumberFormat
    operand: str
    packed: Encoded | None = None

    @property
    def bits(self) -> float:
        """Storage per element: of its codes, by its format, or by the width of its dtype."""
        if self.packed is not None:
            return 8 * self.packed.size_bytes / max(self.value.numel(), 1)
        if self.format.is_identity:
            return self.value.dtype.itemsize * 8
        return self.format.bits(self.value.shape)

    @property
    def held_bytes(self) -> int:
        """What it really takes now: only packed parameters are as small as their formats."""
        return self.value.nbytes if self.packed is None else self.packed.size_bytes


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a module and all below it; one that is shared counts once.

    Attributes:
        total: all elements, those included that are stored as codes and do not train.
        trainable: elements of those that require a gradient.
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
        """Trainable out of all; 0 where there is none."""
        return self.trainable / self.total if self.total else 0.0


def stored_parameters(mg: MaseGraph) -> list[StoredParameter]:
    """Every parameter of the model once, in its order; shared ones under their first name."""
    nodes = (node for node in mg.nodes if not is_of_training(node))
    return _stored(mg.model, (use for node in nodes for use in _uses(mg, node)))


def count_stored_parameters(module: nn.Module) -> list[StoredParameter]:
    """The same for a module that is no graph: every module below it is taken to be called."""
    return _stored(module, _uses_in(module))


def masked_weights(mg: MaseGraph) -> dict[int, Tensor]:
    """Pruning masks, True where a weight is masked, by the id of the weight."""
    owners = ((own_parameters(module).get("weight"), module) for module in mg.model.modules())
    masks = ((weight, get_masked(module)) for weight, module in owners if weight is not None)
    return {id(weight): masked for weight, masked in masks if masked is not None}


def total_bits(stored: Iterable[StoredParameter]) -> tuple[float, int]:
    """(total bits, number of elements)."""
    sizes = [(parameter.bits, parameter.value.numel()) for parameter in stored]
    return sum(bits * numel for bits, numel in sizes), sum(numel for _, numel in sizes)


def parameter_bits(mg: MaseGraph) -> tuple[float, int]:
    """(total bits, number of elements) of the model's parameters; a shared one counts once."""
    return total_bits(stored_parameters(mg))


def _stored(root: nn.Module, taken: Iterable[Use]) -> list[StoredParameter]:
    uses: dict[int, list[tuple[str, NumberFormat]]] = {}
    for parameter, operand, number_format in taken:
        uses.setdefault(id(parameter), []).append((operand, number_format))
    found: dict[int, StoredParameter] = {}
    for path, module in root.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in found and not _is_lsq_scale(module, name):
                own = uses.get(id(parameter), [])
                found[id(parameter)] = _widest(prefix + name, parameter, own)
        for operand in module.packed_shapes if isinstance(module, PackedOperator) else ():
            assert isinstance(module, PackedOperator)
            stored = _packed(prefix, module, operand)
            found.setdefault(id(module.encoded(operand).codes), stored)
    return list(found.values())


def _is_lsq_scale(module: nn.Module, name: str) -> bool:
    """True for scales that the bits of a format count already."""
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
    """The parameters that a node takes, as what, and in which format."""
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
    """The parameters of a module and of all below it, as what, and in which format."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if isinstance(part, QuantizedOperator) and name in part.operands:
                yield parameter, name, part.spec.number_format(name)
            else:
                yield parameter, "", FLOAT


def _fetched(mg: MaseGraph, argument: object) -> Iterator[nn.Parameter]:
    """The parameter that an argument fetches, if it does."""
    if isinstance(argument, fx.Node) and argument.op == "get_attr":
        value = deepgetattr(mg.model, str(argument.target))
        if isinstance(value, nn.Parameter):
            yield value
