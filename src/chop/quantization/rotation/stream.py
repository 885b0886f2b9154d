"""Residual stream: the value that layers add to, with its writers and readers.

If every written value is rotated, their sums and dropouts are rotated too, and so is x / rms(x),
because a rotation preserves the norm. The gain after it moves into the linear layers that read it.

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
    """Gain of a norm per channel: `offset + parameter`.

    Attributes:
        path: path of the parameter.
        offset: 1 if a model stores the gain minus one.
    """

    path: str
    offset: float = 0.0

    def values(self, mg: MaseGraph) -> Tensor:
        """Returns the gain, (channels,), float64."""
        return mg.model.get_parameter(self.path).detach().double() + self.offset

    @torch.no_grad()
    def drop(self, mg: MaseGraph) -> None:
        """Sets the gain of the norm to one."""
        mg.model.get_parameter(self.path).fill_(1 - self.offset)


@dataclass
class Stream:
    """The residual stream of a graph.

    Attributes:
        width: number of channels.
        tables: embeddings that it starts from.
        writers: linear layers whose results are added to it.
        readers: linear layers that read it, with the gain in between, if any.
    """

    width: int
    tables: list[fx.Node] = field(default_factory=list)
    writers: list[fx.Node] = field(default_factory=list)
    readers: dict[fx.Node, Gain | None] = field(default_factory=dict)


def find_stream(mg: MaseGraph) -> Stream:
    """Finds the stream that starts at the token embedding.

    Raises:
        GraphError: if a node whose function a rotation would change reads or writes it; the message
            names the node.
    """
    start = next((node for node in mg.nodes if _is_table(mg, node)), None)
    if start is None:
        raise GraphError(f"{WHERE}: the graph has no embedding that its layers add to.")
    walk = _Walk(mg, Stream(result_shape(start)[-1]))
    walk.follow(start)
    if not walk.stream.writers or not walk.stream.readers:
        raise GraphError(
            f"{WHERE}: no linear layers read and write the stream that starts at '{start.name}'."
        )
    order = {node: number for number, node in enumerate(mg.nodes)}
    walk.stream.writers.sort(key=order.__getitem__)
    return walk.stream


class _Walk:
    """Traversal of the stream to readers and sources of its values.

    Args:
        mg: the graph.
        stream: stream to fill.
    """

    def __init__(self, mg: MaseGraph, stream: Stream) -> None:
        self.mg, self.stream = mg, stream
        self.seen: set[fx.Node] = set()

    def follow(self, start: fx.Node) -> None:
        """Visits each value of the stream once."""
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
        """Returns the values of the stream that a value is computed from."""
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
        raise self._refusal(value, "computes a part of it")

    def _results(self, user: fx.Node, value: fx.Node) -> list[fx.Node]:
        """Returns the values of the stream that a reader computes from a value."""
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
        """Handles a product: a factor per token keeps the stream, one per channel is a gain."""
        if _per_token(other):
            return [user]
        gain = self._gain(other)
        if gain is None:
            raise self._refusal(user, "multiplies it by a value that is not the weight of a norm")
        self._read_after(user, gain)
        return []

    def _gain(self, node: fx.Node) -> Gain | None:
        """Returns the gain parameter behind casts and a sum with a number."""
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
            raise self._refusal(user, "normalizes it without a weight per channel")
        return Gain(f"{user.target}.weight")

    def _is_norm_without_gain(self, node: fx.Node) -> bool:
        module: Any = self.mg.get_module(node)
        if self.mg.operator(node).name != "rms_norm" or module is None or module.weight is not None:
            return False
        return tuple(module.normalized_shape) == (self.stream.width,)

    def _read_after(self, value: fx.Node, gain: Gain) -> None:
        """Checks that only linear layers read a value with a gain, which they absorb."""
        for user in value.users:
            if is_linear(self.mg, user) and find_input(user) is value:
                self._read(user, gain)
            elif reads_no_number(self.mg, user, value):
                continue
            elif _keeps_channels(self.mg, user, [value]):
                self._read_after(user, gain)
            else:
                text = "reads it after a norm whose weights no linear layer can absorb"
                raise self._refusal(user, text)

    def _read(self, reader: fx.Node, gain: Gain | None) -> None:
        if reader not in self.stream.readers:
            self.stream.readers[reader] = gain

    def _is_mean_square(self, node: fx.Node) -> bool:
        """Returns true if x^2 is used only for the mean over all channels."""
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
    """Returns the shape of a node's first result, or () if it is not a tensor."""
    result = node_metadata(node).common.results.get("data_out_0")
    return () if result is None else tuple(result.shape)


def find_input(node: fx.Node) -> Any:
    """Returns the input of a linear layer."""
    return node.args[0] if node.args else node.kwargs.get("input")


def get_owner(node: fx.Node) -> str:
    """Returns the path of the module whose forward contains a node."""
    return str([*(node.meta.get("nn_module_stack") or ("",))][-1])


def keeps_last_axis(mg: MaseGraph, node: fx.Node, source: fx.Node) -> bool:
    """Returns true if a node keeps the last axis of its input in place, by its dimension rule."""
    row, last = mg.operator(node), len(result_shape(source)) - 1
    if row.follow is None or last < 0:
        return False
    shapes = {x: result_shape(x) for x in (*node.all_input_nodes, node)}
    try:
        dim = row.follow(Call(node, row, mg.get_module(node), shapes), source, UnitDim(last)).place
    except (BlockedError, IndexError, ValueError, KeyError):
        return False
    return dim is not None and dim.run == 1 and dim.dim == len(shapes[node]) - 1


def _keeps_channels(mg: MaseGraph, node: fx.Node, sources: list[fx.Node]) -> bool:
    """Returns true for casts, dropouts and slices of other axes, which keep channels in place."""
    row = mg.operator(node)
    if len(sources) != 1 or not node.args or node.args[0] is not sources[0]:
        return False
    if row.layout == "cast" or row.kind is Kind.DROPOUT:
        return True
    return bool(row.layout) and keeps_last_axis(mg, node, sources[0])


def reads_no_number(mg: MaseGraph, node: fx.Node, value: fx.Node) -> bool:
    """Returns true if a node reads only the size, device or dtype of a value."""
    layout = mg.operator(node).layout
    if layout == "cast":
        return bool(node.args) and node.args[0] is not value
    return layout == "read" and not node_metadata(node).common.results


def _per_token(factor: Any) -> bool:
    """Returns true for a number, or a tensor with one number for all channels."""
    return not isinstance(factor, fx.Node) or result_shape(factor)[-1:] in ((), (1,))


def _other(node: fx.Node, value: fx.Node) -> Any:
    """Returns the other of two arguments, or the same one if both are equal."""
    return next((x for x in node.args if x is not value), value)


def _two(node: fx.Node) -> list[fx.Node]:
    """Returns the arguments that are nodes."""
    return [x for x in node.args if isinstance(x, fx.Node)]


def is_linear(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns true if a node is a linear layer, as a module or a function."""
    row = mg.operator(node)
    return row.is_product and row.features == -1


def _is_table(mg: MaseGraph, node: fx.Node) -> bool:
    row = mg.operator(node)
    return row.weight is not None and row.weight.is_table


def table_parameter(mg: MaseGraph, node: fx.Node) -> tuple[nn.Module, str]:
    """Returns the module with the weight of an embedding, and the name of the weight.

    Raises:
        GraphError: if its weight is not a parameter, or the lookup rescales rows.
    """
    module: Any = mg.get_module(node)
    if module is not None and getattr(module, "max_norm", None) is None:
        return module, "weight"
    weight = node.args[1] if module is None and len(node.args) > 1 else None
    is_plain = node.kwargs.get("max_norm") is None and len(node.args) < 4
    if not isinstance(weight, fx.Node) or not is_plain or not is_parameter(mg, weight):
        raise GraphError(f"{WHERE}: '{node.name}' looks up rows that are not a plain parameter.")
    path, _, name = str(weight.target).rpartition(".")
    return mg.model.get_submodule(path), name
