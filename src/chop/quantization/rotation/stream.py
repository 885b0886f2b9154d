"""Residual stream: what is added up along the layers, and who writes it and reads it.

If all that is written into it is rotated, sums and dropouts of it are, and so is x / rms(x), since
a rotation keeps the norm. A gain after it moves into the linear layers that read it.

Source: SliceGPT, Ashkboos et al. 2024, arXiv:2401.15024, section 3 (computational invariance).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.ops import BlockedError, Call, Kind, UnitDim
from chop.quantization.folding.folding import is_parameter

WHERE = "rotate_transform_pass"


@dataclass(frozen=True)
class Gain:
    """What a norm multiplies its channels by: `offset + parameter`.

    Attributes:
        path: of the parameter.
        offset: 1 where a model stores the gain less one.
    """

    path: str
    offset: float = 0.0

    def values(self, mg: MaseGraph) -> Tensor:
        """(channels,), float64."""
        return mg.model.get_parameter(self.path).detach().double() + self.offset

    @torch.no_grad()
    def drop(self, mg: MaseGraph) -> None:
        """Makes the norm multiply by one."""
        mg.model.get_parameter(self.path).fill_(1 - self.offset)


@dataclass
class Stream:
    """The residual stream of a graph.

    Attributes:
        width: its number of channels.
        tables: the embeddings that it starts from.
        writers: linear layers whose results are added to it.
        readers: linear layers that read it, with the gain between, if there is one.
    """

    width: int
    tables: list[fx.Node] = field(default_factory=list)
    writers: list[fx.Node] = field(default_factory=list)
    readers: dict[fx.Node, Gain | None] = field(default_factory=dict)


def find_stream(mg: MaseGraph) -> Stream:
    """The stream that starts at the embedding of the tokens.

    Raises:
        GraphError: something reads or writes it that a rotation would change; it is named.
    """
    start = next((node for node in mg.nodes if _is_table(mg, node)), None)
    if start is None:
        raise GraphError(f"{WHERE}: the graph has no embedding that its layers add to.")
    walk = _Walk(mg, Stream(result_shape(start)[-1]))
    walk.follow(start)
    if not walk.stream.writers or not walk.stream.readers:
        raise GraphError(f"{WHERE}: no linear layers read and write what '{start.name}' begins.")
    order = {node: number for number, node in enumerate(mg.nodes)}
    walk.stream.writers.sort(key=order.__getitem__)
    return walk.stream


class _Walk:
    """Follows the stream from node to node, both to what reads a value and to what made it.

    Args:
        mg: the graph.
        stream: is filled.
    """

    def __init__(self, mg: MaseGraph, stream: Stream) -> None:
        self.mg, self.stream = mg, stream
        self.seen: set[fx.Node] = set()

    def follow(self, start: fx.Node) -> None:
        """Visits every value of the stream once."""
        pending = [start]
        while pending:
            value = pending.pop()
            if value in self.seen:
                continue
            self.seen.add(value)
            pending += self._sources(value)
            for user in value.users:
                pending += self._results(user, value)

    def _sources(self, value: fx.Node) -> list[fx.Node]:
        """The values of the stream that a value is made of."""
        row = self.mg.operator(value)
        if row.weight is not None and row.weight.is_table:
            self.stream.tables.append(value)
            return []
        if is_linear(self.mg, value):
            self.stream.writers.append(value)
            return []
        if row.name == "add" and all(result_shape(x) == result_shape(value) for x in _two(value)):
            return _two(value)
        scaled = [x for x in value.all_input_nodes if result_shape(x) == result_shape(value)]
        if row.name == "mul" and len(scaled) == 1 and _per_token(_other(value, scaled[0])):
            return scaled
        if self._is_norm_without_gain(value):
            return value.all_input_nodes[:1]
        if _keeps_channels(self.mg, value, value.all_input_nodes[:1]):
            return value.all_input_nodes[:1]
        raise self._refusal(value, "makes a part of it")

    def _results(self, user: fx.Node, value: fx.Node) -> list[fx.Node]:
        """The values of the stream that a reader makes of a value."""
        row = self.mg.operator(user)
        if is_linear(self.mg, user) and find_input(user) is value:
            self._read(user, None)
            return []
        if self._is_norm_without_gain(user):
            return [user]
        if row.name == "rms_norm":
            self._read_after(user, self._gain_of_module(user))
            return []
        if row.name == "add" and len(_two(user)) == 2:
            return [user]
        if self._is_mean_square(user) or reads_no_number(self.mg, user, value):
            return []
        if row.name == "mul" and len(user.args) == 2:
            return self._product(user, _other(user, value))
        if _keeps_channels(self.mg, user, [value]):
            return [user]
        raise self._refusal(user, "reads it")

    def _product(self, user: fx.Node, other: Any) -> list[fx.Node]:
        """A factor for each token keeps the stream; one for each channel is a gain."""
        if _per_token(other):
            return [user]
        gain = self._gain(other)
        if gain is None:
            raise self._refusal(user, "multiplies it by what is no weight of a norm")
        self._read_after(user, gain)
        return []

    def _gain(self, node: fx.Node) -> Gain | None:
        """The parameter behind casts and a sum with a number."""
        offset = 0.0
        while node.op != "get_attr":
            row = self.mg.operator(node)
            numbers = [float(x) for x in node.args if isinstance(x, int | float)]
            is_shift = row.name == "add" and len(numbers) == 1
            if not (is_shift or row.layout == "cast") or len(node.all_input_nodes) != 1:
                return None
            offset += numbers[0] if is_shift else 0.0
            (node,) = node.all_input_nodes
        known = is_parameter(self.mg, node) and result_shape(node) == (self.stream.width,)
        return Gain(str(node.target), offset) if known else None

    def _gain_of_module(self, user: fx.Node) -> Gain:
        module: Any = self.mg.get_module(user)
        if module is None or tuple(module.normalized_shape) != (self.stream.width,):
            raise self._refusal(user, "normalizes it, and has no weight for each channel")
        return Gain(f"{user.target}.weight")

    def _is_norm_without_gain(self, node: fx.Node) -> bool:
        module: Any = self.mg.get_module(node)
        if self.mg.operator(node).name != "rms_norm" or module is None or module.weight is not None:
            return False
        return tuple(module.normalized_shape) == (self.stream.width,)

    def _read_after(self, value: fx.Node, gain: Gain) -> None:
        """Linear layers alone may read what has a gain: they take it over."""
        for user in value.users:
            if is_linear(self.mg, user) and find_input(user) is value:
                self._read(user, gain)
            elif reads_no_number(self.mg, user, value):
                continue
            elif _keeps_channels(self.mg, user, [value]):
                self._read_after(user, gain)
            else:
                text = "reads it behind a norm whose weights no linear layer takes over"
                raise self._refusal(user, text)

    def _read(self, reader: fx.Node, gain: Gain | None) -> None:
        if reader not in self.stream.readers:
            self.stream.readers[reader] = gain

    def _is_mean_square(self, node: fx.Node) -> bool:
        """x^2, of which the mean of all channels is taken, and nothing else."""
        name, inputs = self.mg.operator(node).name, node.all_input_nodes
        is_square = name == "pow" and node.args[1:] == (2,)
        is_square |= name == "mul" and len(inputs) == 1 and len(_two(node)) == 2
        return is_square and all(
            self.mg.operator(user).name == "mean" and user.args[1:2] in ((-1,), ([-1],), ((-1,),))
            for user in node.users
        )

    def _refusal(self, node: fx.Node, what: str) -> GraphError:
        module = self.mg.get_module(node)
        path = get_owner(node) if module is None else str(node.target)
        kind = type(self.mg.model.get_submodule(path)) if module is None else type(module)
        name = vars(self.mg.model.get_submodule(path)).get("_scoped_class", kind.__name__)
        return GraphError(
            f"{WHERE}: the residual stream cannot be rotated: '{node.name}' in '{path}' ({name}) "
            f"{what}; expected linear layers, sums and RMSNorms, as in Llama, Mistral, Qwen and "
            "Gemma."
        )


def result_shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's first result; () where it is no tensor."""
    result = node_metadata(node).common.results.get("data_out_0")
    return () if result is None else tuple(result.shape)


def find_input(node: fx.Node) -> Any:
    """What a linear layer reads."""
    return node.args[0] if node.args else node.kwargs.get("input")


def get_owner(node: fx.Node) -> str:
    """The path of the module whose forward makes a node."""
    return str([*(node.meta.get("nn_module_stack") or ("",))][-1])


def keeps_last_axis(mg: MaseGraph, node: fx.Node, source: fx.Node) -> bool:
    """Whether the last axis of what a node reads is that of its result, by its dimension rule."""
    row, last = mg.operator(node), len(result_shape(source)) - 1
    if row.follow is None or last < 0:
        return False
    shapes = {x: result_shape(x) for x in (*node.all_input_nodes, node)}
    try:
        found = row.follow(
            Call(node, row, mg.get_module(node), shapes), source, UnitDim(last)
        ).place
    except (BlockedError, IndexError, ValueError, KeyError):
        return False
    return found is not None and found.run == 1 and found.dim == len(shapes[node]) - 1


def _keeps_channels(mg: MaseGraph, node: fx.Node, sources: list[fx.Node]) -> bool:
    """Casts, dropouts and slices of other axes: each channel stays what and where it is."""
    row = mg.operator(node)
    if len(sources) != 1 or not node.args or node.args[0] is not sources[0]:
        return False
    if row.layout == "cast" or row.kind is Kind.DROPOUT:
        return True
    return bool(row.layout) and keeps_last_axis(mg, node, sources[0])


def reads_no_number(mg: MaseGraph, node: fx.Node, value: fx.Node) -> bool:
    """A size, a device, or the dtype that another value is cast to."""
    layout = mg.operator(node).layout
    if layout == "cast":
        return bool(node.args) and node.args[0] is not value
    return layout == "read" and not node_metadata(node).common.results


def _per_token(factor: Any) -> bool:
    """A number, or a tensor with one for all channels."""
    return not isinstance(factor, fx.Node) or result_shape(factor)[-1:] in ((), (1,))


def _other(node: fx.Node, value: fx.Node) -> Any:
    """The other argument of two; itself where both are one."""
    return next((x for x in node.args if x is not value), value)


def _two(node: fx.Node) -> list[fx.Node]:
    """The arguments that are nodes."""
    return [x for x in node.args if isinstance(x, fx.Node)]


def is_linear(mg: MaseGraph, node: fx.Node) -> bool:
    """Whether a node is a linear layer, as a module or as a function."""
    row = mg.operator(node)
    return row.is_product and row.features == -1


def _is_table(mg: MaseGraph, node: fx.Node) -> bool:
    row = mg.operator(node)
    return row.weight is not None and row.weight.is_table


def table_parameter(mg: MaseGraph, node: fx.Node) -> tuple[nn.Module, str]:
    """The module that has the weight of an embedding, and the weight's name.

    Raises:
        GraphError: its weight is no parameter, or it rescales rows while it looks them up.
    """
    module: Any = mg.get_module(node)
    if module is not None and getattr(module, "max_norm", None) is None:
        return module, "weight"
    weight = node.args[1] if module is None and len(node.args) > 1 else None
    is_plain = node.kwargs.get("max_norm") is None and len(node.args) < 4
    if not isinstance(weight, fx.Node) or not is_plain or not is_parameter(mg, weight):
        raise GraphError(f"{WHERE}: '{node.name}' looks rows up that are no plain parameter.")
    path, _, name = str(weight.target).rpartition(".")
    return mg.model.get_submodule(path), name
