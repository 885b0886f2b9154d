"""Layouts in which a node computes without sending: found by calling it on a simulated mesh.

They are found along each axis of a mesh alone; of several axes they are products of those.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from chop.base.nested import tree_map
from chop.distributed import runtime
from chop.distributed.apply import with_cut_scales
from chop.distributed.collectives import counted_collectives
from chop.distributed.memory import MemoryMeter
from chop.distributed.placements import REPLICATED, sharded
from chop.distributed.plan import named_tensors
from chop.distributed.planning.layouts import (
    Layout,
    get_layout,
    local_bytes,
    local_shape,
    sharded_fake,
)
from chop.distributed.planning.simulated import FAILURES
from chop.errors import ChopError
from chop.ir.annotate import tensors_in
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.nn.weight_cache import forget
from chop.private.torch_api import storage_id

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

MOST = 128
"""Combinations that are tried; where there are more, tensors of one shape are cut alike, and at
most four times as many are tried."""


@dataclass(frozen=True)
class NodeLayout:
    """One way in which a node computes, each process on what it has.

    Attributes:
        reads: the layout of what each source gives, in the order of `Call.sources`.
        tensors: the layout of each parameter and buffer, in the order of `Call.tensors`.
        result: the layout of the tensors that it gives.
        result_bytes: of the memory that the result has for itself; 0 of views.
        workspace_bytes: beyond that, while the node runs.
    """

    reads: tuple[Layout, ...]
    tensors: tuple[Layout, ...]
    result: Layout
    result_bytes: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Call:
    """What a node is called with.

    Attributes:
        mg: the graph, of tensors without numbers.
        node: the node.
        values: what every node gives, on whole tensors.
        sources: the nodes among its inputs that give tensors.
        tensors: its parameters and buffers: by name in its module, or the constant of a get_attr.
    """

    mg: MaseGraph
    node: fx.Node
    values: Mapping[fx.Node, Any]
    sources: tuple[fx.Node, ...]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, mg: MaseGraph, node: fx.Node, values: Mapping[fx.Node, Any]) -> Call:
        """The call of a node, given what all nodes give."""
        sources = tuple(x for x in node.all_input_nodes if list(tensors_in(values[x])))
        module = mg.get_module(node)
        if node.op == "get_attr":
            found = {str(node.target): values[node]}
        else:
            found = dict(named_tensors(module)) if module is not None else {}
        return cls(mg, node, values, sources, found)

    def signature(self) -> object:
        """Calls of one signature compute in the same layouts."""

        def spec(x: Any) -> Any:
            return (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else repr(x)

        def of(source: fx.Node) -> str:
            return repr(tree_map(spec, self.values[source]))

        node = self.node
        module = self.mg.get_module(node)
        target: object = node.target
        if module is not None:
            formats = getattr(module, "spec", None)
            target = (type(module), module.extra_repr(), repr(formats))
        elif node.op == "get_attr":
            target = "get_attr"
        own = tuple((tuple(x.shape), x.dtype) for x in self.tensors.values())
        args = fx.node.map_arg((node.args, node.kwargs), of)
        return node.op, target, repr(args), own, self._pattern()

    def _pattern(self) -> tuple[int, ...]:
        """Which of the arguments are one node."""
        order: list[fx.Node] = []
        fx.node.map_arg((self.node.args, self.node.kwargs), order.append)
        return tuple(map(order.index, order))


class LayoutFinder:
    """Finds the layouts of calls along one axis; those of one signature are found once.

    Args:
        mesh: simulated; the caller has entered `FakeTensorMode` and `no_grad`.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._known: dict[object, list[NodeLayout]] = {}
        self._holds: dict[object, bool] = {}

    def layouts(self, call: Call) -> list[NodeLayout]:
        """The layouts of a call on a mesh of one axis; in the first all is replicated."""
        key = call.signature()
        if key not in self._known:
            self._known[key] = self._found(call)
        return self._known[key]

    def holds(self, call: Call, layout: NodeLayout) -> bool:
        """Whether a call computes in a layout, as one that is a product of others may not."""
        key = call.signature(), layout.reads, layout.tensors, layout.result
        if key not in self._holds:
            found = self._computed(call, layout.reads, layout.tensors)
            self._holds[key] = found is not None and found.result == layout.result
        return self._holds[key]

    def _found(self, call: Call) -> list[NodeLayout]:
        whole = (REPLICATED,)
        count = len(call.sources)
        everywhere = NodeLayout((whole,) * count, (whole,) * len(call.tensors), whole)
        found = [self._computed(call, everywhere.reads, everywhere.tensors) or everywhere]
        combinations = _combinations(_operands(call), self._mesh.size())
        for texts in combinations if self._mesh.size() > 1 else ():
            layouts = [(text,) for text in texts]
            computed = self._computed(call, layouts[:count], layouts[count:])
            if computed is not None:
                found.append(computed)
        return _without_dominated(found, call, tuple(self._mesh.shape))

    def _computed(
        self, call: Call, reads: Sequence[Layout], tensors: Sequence[Layout]
    ) -> NodeLayout | None:
        """What a call gives in a layout; None where it sends, fails, or leaves uneven chunks."""
        mesh = self._mesh
        given: dict[fx.Node, Any] = {}
        for source, layout in zip(call.sources, reads, strict=True):
            value = _all_sharded(call.values[source], mesh, layout)
            if value is None:
                return None
            given[source] = value
        own: dict[str, Any] = {}
        for (name, x), layout in zip(call.tensors.items(), tensors, strict=True):
            own[name] = sharded_fake(x, mesh, layout)
            if own[name] is None:
                return None
        return self._observed(call, given, own, tuple(reads), tuple(tensors))

    def _observed(
        self,
        call: Call,
        given: Mapping[fx.Node, Any],
        own: Mapping[str, Any],
        reads: tuple[Layout, ...],
        tensors: tuple[Layout, ...],
    ) -> NodeLayout | None:
        known = [x.to_local() for x in (*_leaves(given.values()), *own.values())]
        with counted_collectives(self._mesh) as sent, MemoryMeter(known) as meter:
            try:
                result = _call(call, given, own, self._mesh)
            except (*FAILURES, ChopError):
                return None
        layout = self._layout(result, call.values[call.node])
        if sent or layout is None:
            return None
        kept = meter.live
        return NodeLayout(reads, tensors, layout, kept, meter.peak - kept)

    def _layout(self, result: Any, whole: Any) -> Layout | None:
        """The layout of all tensors of a result; None where there are several, or uneven ones."""
        everywhere = (REPLICATED,) * self._mesh.ndim
        found = set()
        for x, expected in zip(_leaves([result]), tensors_in(whole), strict=True):
            layout = get_layout(x) if hasattr(x, "placements") else everywhere
            if layout is None or tuple(x.shape) != tuple(expected.shape):
                return None
            local = x.to_local() if hasattr(x, "placements") else x
            if tuple(local.shape) != local_shape(x.shape, self._mesh.shape, layout):
                return None
            found.add(layout)
        return found.pop() if len(found) == 1 else everywhere if not found else None


def aliased_source(call: Call) -> fx.Node | None:
    """The source whose memory a result lies in, on whole tensors; None where it is new."""
    results = {storage_id(x) for x in tensors_in(call.values[call.node])}
    for source in call.sources:
        if results & {storage_id(x) for x in tensors_in(call.values[source])}:
            return source
    return None


def _operands(call: Call) -> list[tuple[object, tuple[int, ...]]]:
    """Of each input and tensor: what it is cut alike with, where that is needed, and its shape."""
    found: list[tuple[object, tuple[int, ...]]] = []
    for source in call.sources:
        shapes = [tuple(x.shape) for x in tensors_in(call.values[source])]
        found.append((("input", tuple(shapes)), min(shapes, key=len)))
    for x in call.tensors.values():
        found.append((("tensor", tuple(x.shape)), tuple(x.shape)))
    return found


def _combinations(
    operands: Sequence[tuple[object, tuple[int, ...]]], count: int
) -> Iterator[tuple[str, ...]]:
    """Placements of all operands over so many processes, but those that cut nothing."""
    choices = [
        [REPLICATED, *(sharded(d) for d, size in enumerate(shape) if size and size % count == 0)]
        for _, shape in operands
    ]
    if math.prod(map(len, choices)) <= MOST:
        yield from itertools.islice(itertools.product(*choices), 1, None)
        return
    groups: dict[object, list[int]] = {}
    for index, (group, _) in enumerate(operands):
        groups.setdefault(group, []).append(index)
    alike = itertools.product(*(choices[indices[0]] for indices in groups.values()))
    for texts in itertools.islice(alike, 1, 4 * MOST):
        by_group = dict(zip(groups, texts, strict=True))
        yield tuple(by_group[group] for group, _ in operands)


def product_layout(
    call: Call, whole: NodeLayout, along: Sequence[NodeLayout], mesh: tuple[int, ...]
) -> NodeLayout | None:
    """The layout of a call on several axes, from those along each; None where it does not divide.

    Args:
        call: the call.
        whole: its layout along an axis where everything is replicated.
        along: its layout along each axis.
        mesh: processes along each axis.
    """

    def joined(texts: Sequence[Sequence[Layout]]) -> tuple[Layout, ...]:
        return tuple(tuple(text for (text,) in of_axes) for of_axes in zip(*texts, strict=True))

    reads = joined([layout.reads for layout in along])
    tensors = joined([layout.tensors for layout in along])
    (result,) = joined([[layout.result] for layout in along])
    shapes = [
        (x.shape, layout)
        for value, layout in zip(
            [*(call.values[source] for source in call.sources), call.values[call.node]],
            [*reads, result],
            strict=True,
        )
        for x in tensors_in(value)
    ]
    shapes += [(x.shape, p) for x, p in zip(call.tensors.values(), tensors, strict=True)]
    if any(local_shape(shape, mesh, layout) is None for shape, layout in shapes):
        return None
    sizes = [
        _scaled([getattr(x, name) for x in along], getattr(whole, name))
        for name in ("result_bytes", "workspace_bytes")
    ]
    return NodeLayout(reads, tensors, result, *sizes)


def _scaled(along: Sequence[int], whole: int) -> int:
    """Bytes on all axes, where each axis alone makes some of the whole."""
    if not whole:
        return max(along)
    return round(whole * math.prod(size / whole for size in along))


def _all_sharded(value: Any, mesh: DeviceMesh, layout: Layout) -> Any:
    """A value with all tensors in a layout; None where one does not divide."""
    failed = []

    def of(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        found = sharded_fake(x, mesh, layout)
        failed.extend([x] if found is None else [])
        return found

    found = tree_map(of, value)
    return None if failed else found


def _call(
    call: Call, given: Mapping[fx.Node, Any], own: Mapping[str, Any], mesh: DeviceMesh
) -> Any:
    """Calls a node as a sharded graph does."""
    node, mg = call.node, call.mg
    if node.op == "get_attr":
        return next(iter(own.values()))
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda x: given.get(x, call.values[x]))
    if mg.operator(node).layout == "view" and args:
        args = (runtime.contiguous(args[0]), *args[1:])
    if node.op == "call_function":
        return node.target(*args, **kwargs)  # type: ignore[operator]
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    module = mg.get_module(node)
    assert module is not None
    module = _cut(module, own, mesh)
    try:
        return torch.func.functional_call(module, dict(own), args, kwargs)
    finally:
        forget(module)


def _cut(module: nn.Module, own: Mapping[str, Any], mesh: DeviceMesh) -> nn.Module:
    """The module, or a copy whose formats have the scales of this process's channels."""
    if not isinstance(module, QuantizedOperator):
        return module
    spec = module.spec
    for operand in ("weight", "bias"):
        if operand in own:
            rows = own[operand].to_local().shape[0]
            spec = with_cut_scales(spec, operand, own[operand].shape, slice(0, rows), operand)
    if spec is module.spec:
        return module
    twin = copy.copy(module)
    twin.spec = spec
    return twin


def _without_dominated(
    found: Sequence[NodeLayout], call: Call, mesh: tuple[int, ...]
) -> list[NodeLayout]:
    """Leaves out what another layout does with fewer bytes of tensors, or with inputs cut finer.

    A cut input is never dearer than the whole one: each process takes its chunk, or gathers less.
    """

    def size(layout: NodeLayout) -> int:
        own = zip(call.tensors.values(), layout.tensors, strict=True)
        return sum(local_bytes(x, mesh, place) for x, place in own)

    best: dict[object, NodeLayout] = {}
    for layout in found[1:]:
        key = (layout.reads, layout.result)
        if key not in best or size(layout) < size(best[key]):
            best[key] = layout
    rest = [
        layout
        for layout in best.values()
        if not any(
            other.result == layout.result
            and other.reads != layout.reads
            and size(other) <= size(layout)
            and _is_finer(other.reads, layout.reads)
            for other in best.values()
        )
    ]
    return [found[0], *rest]


def _is_finer(reads: Sequence[Layout], than: Sequence[Layout]) -> bool:
    """Whether some inputs are cut that the other reads whole, and all else is the same."""
    pairs = zip(itertools.chain(*reads), itertools.chain(*than), strict=True)
    return all(text == other or other == REPLICATED for text, other in pairs)


def _leaves(values: Any) -> list[Any]:
    return [x for value in values for x in tensors_in(value)]
