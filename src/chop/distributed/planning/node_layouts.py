"""Layouts in which a node computes without communication, determined on a simulated mesh.

Layouts are determined along each mesh axis separately. On several axes they are products of these.
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
"""Maximum number of combinations. Above it, tensors of one shape are sharded alike, with at most
four times as many combinations.
"""


@dataclass(frozen=True)
class NodeLayout:
    """A layout in which each process computes a node from local data.

    Attributes:
        reads: layout of each source, in the order of `Call.sources`.
        tensors: layout of each parameter and buffer, in the order of `Call.tensors`.
        result: layout of the result tensors.
        result_bytes: bytes of newly allocated results; 0 for views.
        workspace_bytes: additional bytes while the node runs.
    """

    reads: tuple[Layout, ...]
    tensors: tuple[Layout, ...]
    result: Layout
    result_bytes: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Call:
    """A node call with its arguments.

    Attributes:
        mg: graph of fake tensors.
        node: the node.
        values: results of all nodes on whole tensors.
        sources: input nodes with tensor results.
        tensors: its parameters and buffers by name in its module, or the constant of a get_attr.
    """

    mg: MaseGraph
    node: fx.Node
    values: Mapping[fx.Node, Any]
    sources: tuple[fx.Node, ...]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, mg: MaseGraph, node: fx.Node, values: Mapping[fx.Node, Any]) -> Call:
        """Returns the call of a node, from the results of all nodes."""
        sources = tuple(x for x in node.all_input_nodes if list(tensors_in(values[x])))
        module = mg.get_module(node)
        if node.op == "get_attr":
            tensors = {str(node.target): values[node]}
        else:
            tensors = dict(named_tensors(module)) if module is not None else {}
        return cls(mg, node, values, sources, tensors)

    def signature(self) -> object:
        """Key of calls that compute in the same layouts."""

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
        # A call with one input twice has other layouts than a call with two equal ones.
        order: list[fx.Node] = []
        fx.node.map_arg((self.node.args, self.node.kwargs), order.append)
        return tuple(map(order.index, order))


class LayoutFinder:
    """Determines the layouts of calls along one axis, once per signature.

    Args:
        mesh: simulated mesh; the caller has entered `FakeTensorMode` and `no_grad`.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._known: dict[object, list[NodeLayout]] = {}
        self._holds: dict[object, bool] = {}

    def layouts(self, call: Call) -> list[NodeLayout]:
        """Returns the layouts of a call on a mesh of one axis; the first one is replicated."""
        key = call.signature()
        if key not in self._known:
            self._known[key] = self._find_layouts(call)
        return self._known[key]

    def holds(self, call: Call, layout: NodeLayout) -> bool:
        """Returns whether a call computes in a layout, which a product of layouts may not."""
        key = call.signature(), layout.reads, layout.tensors, layout.result
        if key not in self._holds:
            computed = self._computed(call, layout.reads, layout.tensors)
            self._holds[key] = computed is not None and computed.result == layout.result
        return self._holds[key]

    def _find_layouts(self, call: Call) -> list[NodeLayout]:
        whole = (REPLICATED,)
        count = len(call.sources)
        everywhere = NodeLayout((whole,) * count, (whole,) * len(call.tensors), whole)
        computed_layouts = [
            self._computed(call, everywhere.reads, everywhere.tensors) or everywhere
        ]
        combinations = _combinations(_operands(call), self._mesh.size())
        for texts in combinations if self._mesh.size() > 1 else ():
            layouts = [(text,) for text in texts]
            computed = self._computed(call, layouts[:count], layouts[count:])
            if computed is not None:
                computed_layouts.append(computed)
        return _without_dominated(computed_layouts, call, tuple(self._mesh.shape))

    def _computed(
        self, call: Call, reads: Sequence[Layout], tensors: Sequence[Layout]
    ) -> NodeLayout | None:
        """Computes a call in a layout; None if it communicates, fails or gives uneven shards."""
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
        # Communication belongs to the edges of the program, not to its nodes.
        if sent or layout is None:
            return None
        result_bytes = meter.live
        return NodeLayout(reads, tensors, layout, result_bytes, meter.peak - result_bytes)

    def _layout(self, result: Any, whole: Any) -> Layout | None:
        """Returns the layout of all tensors of a result; None if it is not uniform and even."""
        everywhere = (REPLICATED,) * self._mesh.ndim
        layouts = set()
        for x, expected in zip(_leaves([result]), tensors_in(whole), strict=True):
            layout = get_layout(x) if hasattr(x, "placements") else everywhere
            if layout is None or tuple(x.shape) != tuple(expected.shape):
                return None
            local = x.to_local() if hasattr(x, "placements") else x
            # Uneven chunks would need padding that the program does not model.
            if tuple(local.shape) != local_shape(x.shape, self._mesh.shape, layout):
                return None
            layouts.add(layout)
        return layouts.pop() if len(layouts) == 1 else everywhere if not layouts else None


def aliased_source(call: Call) -> fx.Node | None:
    """Returns the source that shares the result's memory; None if the memory is new."""
    results = {storage_id(x) for x in tensors_in(call.values[call.node])}
    for source in call.sources:
        if results & {storage_id(x) for x in tensors_in(call.values[source])}:
            return source
    return None


def _operands(call: Call) -> list[tuple[object, tuple[int, ...]]]:
    """Returns, for each input and tensor, the key of its sharding group and its shape."""
    operands: list[tuple[object, tuple[int, ...]]] = []
    for source in call.sources:
        shapes = [tuple(x.shape) for x in tensors_in(call.values[source])]
        operands.append((("input", tuple(shapes)), min(shapes, key=len)))
    for x in call.tensors.values():
        operands.append((("tensor", tuple(x.shape)), tuple(x.shape)))
    return operands


def _combinations(
    operands: Sequence[tuple[object, tuple[int, ...]]], count: int
) -> Iterator[tuple[str, ...]]:
    """Yields placements of all operands over `count` processes, except all replicated."""
    choices = [
        [REPLICATED, *(sharded(d) for d, size in enumerate(shape) if size and size % count == 0)]
        for _, shape in operands
    ]
    # islice skips the first combination, in which everything is replicated.
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
    """Combines the layouts of a call along each axis; None if a tensor does not divide.

    Args:
        call: the call.
        whole: its layout along an axis with everything replicated.
        along: its layout along each axis.
        mesh: processes along each axis.
    """

    def joined(texts: Sequence[Sequence[Layout]]) -> tuple[Layout, ...]:
        return tuple(
            tuple(text for (text,) in axis_texts) for axis_texts in zip(*texts, strict=True)
        )

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
    """Returns bytes on all axes, from the bytes on each axis alone and the whole bytes."""
    if not whole:
        return max(along)
    # Each axis leaves a share of the bytes, and the shares multiply.
    return round(whole * math.prod(size / whole for size in along))


def _all_sharded(value: Any, mesh: DeviceMesh, layout: Layout) -> Any:
    """Converts all tensors of a value to a layout; None if one does not divide."""
    failed = []

    def of(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        tensors = sharded_fake(x, mesh, layout)
        failed.extend([x] if tensors is None else [])
        return tensors

    fake = tree_map(of, value)
    return None if failed else fake


def _call(
    call: Call, given: Mapping[fx.Node, Any], own: Mapping[str, Any], mesh: DeviceMesh
) -> Any:
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
    """Returns the module, or a copy whose formats have only this process's channel scales."""
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
    layouts: Sequence[NodeLayout], call: Call, mesh: tuple[int, ...]
) -> list[NodeLayout]:
    """Removes layouts that need more tensor bytes than another one, or inputs sharded less.

    A sharded input is never more expensive than a whole one: each process takes its chunk, or
    gathers less.
    """

    def size(layout: NodeLayout) -> int:
        own = zip(call.tensors.values(), layout.tensors, strict=True)
        return sum(local_bytes(x, mesh, place) for x, place in own)

    best: dict[object, NodeLayout] = {}
    for layout in layouts[1:]:
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
    return [layouts[0], *rest]


def _is_finer(reads: Sequence[Layout], than: Sequence[Layout]) -> bool:
    """Returns whether some inputs are sharded that the other reads whole, with all else equal."""
    pairs = zip(itertools.chain(*reads), itertools.chain(*than), strict=True)
    return all(text == other or other == REPLICATED for text, other in pairs)


def _leaves(values: Any) -> list[Any]:
    return [x for value in values for x in tensors_in(value)]
