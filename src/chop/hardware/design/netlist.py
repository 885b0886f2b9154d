"""Construction of the netlist of an integer graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import UnionType

import torch
from torch import Tensor, fx, nn

from chop.base.reach import reached
from chop.errors import ConfigError
from chop.hardware.design.components import get_component
from chop.hardware.design.indices import index_edge
from chop.hardware.design.instances import Boundary, Instance, Netlist
from chop.hardware.design.lanes import divisors, fewest_lanes
from chop.hardware.design.origins import Origins
from chop.hardware.design.plan import RTL, Component, ComponentPlan, Site
from chop.hardware.design.signals import signal_names
from chop.hardware.design.stream import OrderError, Stream
from chop.hardware.design.values import (
    Fixed,
    Mask,
    Wire,
    common_batch_dim,
    computes_by_sample,
    in_turn,
    moved,
    mover,
)
from chop.hardware.plans.order import concat_plan, constant_plan, copies_plan, select_plan
from chop.hardware.plans.reorder import reorder_plan, slowest_first
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind
from chop.nn.integer import Constant, Decode, Encode, EncodeBlocks, IntegerResample
from chop.nn.integer.mask import KeptKeys
from chop.nn.integer.resample import ZERO

Value = Wire | Fixed
WHERE = "hardware"
MOST_ORDERS = 3
"""Reorderings of the inputs of an operator until its plan is refused."""
ENCODERS = Encode | EncodeBlocks
"""Encoders, which the host computes ahead of a circuit."""


def netlist(
    mg: MaseGraph,
    fold: int,
    folds: Mapping[str, int] | None = None,
    soft: Collection[str] = (),
) -> Netlist:
    """Builds the circuit of an integer graph.

    Args:
        mg: a graph from `lower_to_integer_transform_pass`.
        fold: maximum cycles of an operator per sample.
        folds: folds of single nodes by name. Their lanes do not depend on their producers' lanes.
        soft: names of nodes in `folds` whose products are built from lookup tables.
    Raises:
        ConfigError: if operators, or the order of their codes, have no circuit.
    """
    return _Builder(mg, fold, folds or {}, soft).run()


class _Builder:
    def __init__(
        self, mg: MaseGraph, fold: int, folds: Mapping[str, int], soft: Collection[str]
    ) -> None:
        self.mg, self.fold, self.folds, self.soft = mg, fold, folds, soft
        self.names = signal_names([node.name for node in mg.nodes])
        self.values: dict[fx.Node, Value] = {}
        self.masks: dict[fx.Node, Mask] = {}
        self.instances: list[Instance] = []
        self.origins = Origins()
        self.inputs: list[Boundary] = []
        self.outputs: list[Boundary] = []

    def run(self) -> Netlist:
        nodes = self._circuit()
        self._refuse_unknown(nodes)
        for node in nodes:
            try:
                self._visit(node)
            except ConfigError as error:
                raise ConfigError(f"{WHERE}: node '{node.name}': {error}") from error
        return Netlist(self._used(), self.inputs, self.outputs)

    def _used(self) -> list[Instance]:
        """Returns the instances that others or ports read, in order.

        A reordered copy of a stream may replace an instance that moved its codes before.
        """
        used = {port.wire.signal for port in self.outputs}
        read: list[Instance] = []
        for instance in reversed(self.instances):
            if instance.name in used or instance.name not in self.origins:
                used |= {wire.signal for wire in instance.inputs}
                read.append(instance)
        return read[::-1]

    def _circuit(self) -> list[fx.Node]:
        """Returns the nodes from the host's encoders to its decoders, inclusive, in order."""
        decoders = [node for node in self.mg.nodes if self._is(node, Decode)]
        if not decoders:
            raise ConfigError(
                f"{WHERE}: expected an integer graph from lower_to_integer_transform_pass, got "
                "one without decoded results."
            )

        def sources(node: fx.Node) -> list[fx.Node]:
            # The host computes what is ahead of an encoder.
            return [] if self._is(node, ENCODERS) else node.all_input_nodes

        between = {*reached(decoders, sources)}
        return [node for node in self.mg.nodes if node in between]

    def _is(self, node: fx.Node, kind: type[nn.Module] | UnionType) -> bool:
        return isinstance(self.mg.get_module(node), kind)

    def _refuse_unknown(self, nodes: Sequence[fx.Node]) -> None:
        unknown = [f"'{node.name}' ({self._kind(node)})" for node in nodes if not self._knows(node)]
        if unknown:
            raise ConfigError(
                f"{WHERE}: there is no circuit for {', '.join(unknown)}; see "
                "chop.hardware.design.components for the supported operators."
            )

    def _kind(self, node: fx.Node) -> str:
        module = self.mg.get_module(node)
        return self.mg.operator(node).name if module is None else type(module).__name__

    def _knows(self, node: fx.Node) -> bool:
        row = self.mg.operator(node)
        module = self.mg.get_module(node)
        ends = ENCODERS | Decode | Constant | KeptKeys
        known = get_component(type(module)) is not None or isinstance(module, ends)
        known |= node.op == "placeholder"
        known |= row.layout == "copied" and len(_tensors(node)) == 1
        return known or row.only_moves or row.layout == "read" or row.joins(node)

    def _is_parted(self, node: fx.Node) -> bool:
        """Returns whether a node returns a tuple of parts of its one input tensor."""
        if self.mg.operator(node).layout != "copied" or len(_tensors(node)) != 1:
            return False
        shape = self._shape(_tensors(node)[0])
        return isinstance(mover(node, self.mg.get_module(node))(torch.empty(shape)), tuple | list)

    def _visit(self, node: fx.Node) -> None:
        module = self.mg.get_module(node)
        if isinstance(module, ENCODERS):
            self._encode(node, module)
        elif isinstance(module, Decode):
            self._decode(node)
        elif node.op == "placeholder":
            stream = Stream.in_order(self._shape(node)[1:], index_edge(self.mg, node))
            self._enter(node, self.names[node.name], stream)
        elif isinstance(module, KeptKeys):
            wires = [value for s in _tensors(node) if isinstance(value := self.values[s], Wire)]
            self.masks[node] = Mask.of(module, *wires)
        elif isinstance(module, Constant):
            self.values[node] = Fixed(module.codes, module.out, module.is_loadable)
        elif module is not None and (row := get_component(type(module))):
            self.values[node] = self._operate(node, module, row)
        elif self.mg.operator(node).joins(node):
            self.values[node] = self._join(node)
        elif not self._is_parted(node):  # parts are moved where they are read
            self.values[node] = self._move(node)

    def _encode(self, node: fx.Node, encode: Encode | EncodeBlocks) -> None:
        (source,) = node.all_input_nodes
        shape, fold = self._shape(node)[1:], self.folds.get(node.name, self.fold)
        stream = Stream.in_order(shape, encode.out)
        spatial = self._spatial(node)
        if spatial and len(shape) != spatial + 1:
            raise ConfigError(
                f"expected a batch of samples, got {self._shape(node)} for {spatial} spatial "
                "dimensions; capture the model on an example with a batch, such as x.unsqueeze(0)"
            )
        if spatial:
            # A sliding window takes in whole pixels, so the channels of a pixel are sent in
            # succession.
            channels_last = torch.arange(stream.size).view(*shape[-spatial:], shape[0])
            stream = replace(stream, positions=channels_last.movedim(-1, 0).contiguous())
        # A beat of an image has channels of a single pixel.
        choices = divisors(shape[0] if spatial else stream.size)
        reaching = (n for n in choices if stream.size <= n * fold)
        stream = stream.with_lanes(next(reaching, choices[-1]))
        # The port has the name of the model's input, unless several encoders read that input.
        alone = sum(self._is(user, ENCODERS) for user in source.users) == 1
        name = self.names[source.name if alone else node.name]
        self._enter(node, name, stream, choices)

    def _spatial(self, node: fx.Node) -> int:
        """Returns the dimensions of windows over a value, also behind elementwise operators."""
        most = 0
        for user in node.users:
            module = self.mg.get_module(user)
            row, is_resized = get_component(type(module)), isinstance(module, IntegerResample)
            keeps_shape = is_resized or self._shape(user) == self._shape(node)
            if row and row.spatial:
                most = max(most, row.spatial)
            elif row and len(user.all_input_nodes) == 1 and keeps_shape:
                most = max(most, self._spatial(user))
        return most

    def _enter(self, node: fx.Node, port: str, stream: Stream, choices: Sequence[int] = ()) -> None:
        wire = Wire(self.names[node.name], stream)
        self.inputs.append(Boundary(port, node.name, wire, choices or (stream.lanes,)))
        self.values[node] = wire

    def _decode(self, node: fx.Node) -> None:
        (source,) = node.all_input_nodes
        # A node that is decoded twice needs a single port.
        if all(port.node != source.name for port in self.outputs):
            wire = self.values[source]
            if isinstance(wire, Fixed) or self._is_constant(wire):
                raise ConfigError(
                    f"the output '{source.name}' is the same for all inputs, and a circuit sends a "
                    "result for each sample; add it in the program that reads the circuit, and "
                    "return only the other results"
                )
            self.outputs.append(Boundary(self.names[source.name], source.name, wire))

    def _operate(self, node: fx.Node, operator: nn.Module, row: Component) -> Wire:
        kind, name = type(operator).__name__, self.names[node.name]
        wires: Sequence[Wire] = self._streams(node, row)
        batch_dim = self._batch_dim(node, operator, wires)
        site, plan, wires = self._plan(node, operator, row, wires)
        module, inputs = plan.module or row.module, tuple(wires)
        if isinstance(operator, IntegerResample):
            places = operator.gathered(wires[0].stream.positions, ZERO)
            self.origins.add(name, wires[0], places, plan.out)
        made = Instance(
            name,
            kind,
            module,
            row.folder,
            plan,
            inputs,
            row.kind,
            node.name,
            site,
            str(node.target),
        )
        self.instances.append(made)
        return Wire(name, plan.out, batch_dim)

    def _batch_dim(self, node: fx.Node, operator: nn.Module, wires: Sequence[Wire]) -> int:
        """Returns the batch dimension of an operator's inputs and result."""
        dim = common_batch_dim(wires)
        is_masked = any(source in self.masks for source in _tensors(node))
        if dim and (is_masked or not computes_by_sample(operator, wires)):
            raise ConfigError(
                f"it reads the batch in dimension {dim}, and computes along the dimensions ahead "
                "of it; transpose its input in the model, so that the batch is first"
            )
        return dim

    def _plan(
        self,
        node: fx.Node,
        operator: nn.Module,
        row: Component,
        wires: Sequence[Wire],
        attempts: int = MOST_ORDERS,
    ) -> tuple[Site, ComponentPlan, Sequence[Wire]]:
        """Returns the site and the plan of an operator, and its inputs in an order that fits."""
        site = self._site(node, operator, wires)
        try:
            return site, row.planned(site), wires
        except OrderError as error:
            if attempts == 0:
                raise
            ordered = self._in_orders(self.names[node.name], wires, error)
        return self._plan(node, operator, row, ordered, attempts - 1)

    def _site(self, node: fx.Node, operator: nn.Module, wires: Sequence[Wire]) -> Site:
        mask_keys = next((self.masks[s].keys for s in _tensors(node) if s in self.masks), None)
        site = Site(operator, [wire.stream for wire in wires], self.fold, mask_keys)
        # The integer program chooses lanes that are independent of the producers; converters join
        # them.
        if node.name in self.folds:
            return site.alone(self.folds[node.name], node.name in self.soft)
        return site

    def _in_orders(self, name: str, wires: Sequence[Wire], error: OrderError) -> list[Wire]:
        """Returns the inputs of an operator in an order that it accepts."""
        wanted = dict(error.wanted)
        if error.is_choice:
            # The input with the smaller frame ahead of moves, such as a factor of each channel.
            k = min(wanted, key=lambda k: self.origins.source(wires[k])[0].stream.size)
            wanted = {k: wanted[k]}
        return [
            self._reordered(f"{name}_order_{k}", wire, wanted[k]) if k in wanted else wire
            for k, wire in enumerate(wires)
        ]

    def _reordered(self, name: str, wire: Wire, wanted: Tensor) -> Wire:
        while name in {instance.name for instance in self.instances}:
            name += "_again"
        plan, source = self.origins.reordered(name, wire, wanted, self.fold)
        return self._instance(name, "reorder", "chop_reorder", plan, [source])

    def _streams(self, node: fx.Node, row: Component) -> list[Wire]:
        """Returns the input streams of an operator; a constant is sent like the other operand."""
        sources = [
            self.masks[source].value if source in self.masks else self.values[source]
            for source in _tensors(node)
        ]
        live = [source for source in sources if isinstance(source, Wire)]
        wires = []
        for number, source in enumerate(sources):
            if isinstance(source, Fixed):
                source = source.unsqueezed(len(self._shape(node)))
                beside = live[0] if live and row.is_broadcast else None
                source = self._constant(
                    f"{self.names[node.name]}_constant_{number}", source, beside
                )
            wires.append(source)
        return wires

    def _is_constant(self, wire: Wire) -> bool:
        """Returns whether a stream depends on no input."""
        constants = set[str]()
        for instance in self.instances:
            if all(source.signal in constants for source in instance.inputs):
                constants.add(instance.name)
        return wire.signal in constants

    def _constant(self, name: str, fixed: Fixed, beside: Wire | None) -> Wire:
        """Returns a stream from memory, in the order and beats of another stream or its own."""
        if beside is None:
            shape = tuple(fixed.codes.shape[1:])
            stream = Stream.in_order(shape, fixed.edge)
            beside = Wire(name, stream.with_lanes(fewest_lanes(stream.size, self.fold)))
        codes = fixed.sample(beside.stream.shape, beside.batch_dim)
        plan = constant_plan(codes, beside.stream.of(fixed.edge), fixed.is_loadable)
        made = self._instance(name, "constant", "chop_constant", plan, [], drawn_as=Kind.CONSTANT)
        return replace(made, batch_dim=beside.batch_dim)

    def _join(self, node: fx.Node) -> Wire:
        """Returns the stream of `torch.cat` or `torch.stack`, joining two inputs at a time."""
        sources = _tensors(node)
        rank = len(self._shape(node))
        given = node.args[1] if len(node.args) > 1 else 0
        dim = node.kwargs.get("dim", node.kwargs.get("axis", given))
        assert isinstance(dim, int)
        live = [wire for wire in map(self.values.get, sources) if isinstance(wire, Wire)]
        dim, own_batch_dim = dim % rank, common_batch_dim(live)
        is_stack = len(self._shape(sources[0])) < rank
        batch_dim = own_batch_dim + (is_stack and dim <= own_batch_dim)
        if dim == batch_dim:
            raise ConfigError("it joins along the batch dimension")
        # Samples have one dimension fewer.
        from_end = dim - (dim > batch_dim) - (rank - 1)
        wires = [
            self._joined_constant(node, number, self._shape(source), value, own_batch_dim, live)
            if isinstance(value := self.values[source], Fixed)
            else value
            for number, source in enumerate(sources)
        ]
        if is_stack:
            wires = [wire.unsqueezed(from_end) for wire in wires]
        # The dimension that varies fastest in all streams is joined pixel by pixel.
        is_fastest = all(slowest_first(wire.stream)[-1] == rank - 1 + from_end for wire in wires)
        result, own = wires[0], self.names[node.name]
        for number, wire in enumerate(wires[1:], 1):
            name = own if number == len(wires) - 1 else f"{own}_part_{number}"
            result = self._concat(name, result, wire, from_end, is_fastest)
        return replace(result, batch_dim=batch_dim)

    def _joined_constant(
        self,
        node: fx.Node,
        number: int,
        shape: Sequence[int],
        value: Fixed,
        batch_dim: int,
        live: Sequence[Wire],
    ) -> Wire:
        """Returns the stream of a constant that a node joins with others.

        The concatenation runs at the common divisor of all lanes. A constant with one lane would
        slow down the other inputs.
        """
        sizes = [size for dim, size in enumerate(shape) if dim != batch_dim]
        beside = Stream.in_order(tuple(sizes), value.edge)
        beside = beside.with_lanes(math.gcd(beside.size, *(wire.stream.lanes for wire in live)))
        name = f"{self.names[node.name]}_constant_{number}"
        return self._constant(name, value, Wire(name, beside, batch_dim))

    def _concat(self, name: str, first: Wire, second: Wire, dim: int, is_fastest: bool) -> Wire:
        order, rank = slowest_first(first.stream), len(first.stream.shape)
        if not is_fastest or slowest_first(second.stream) != order:
            order = list(range(rank))
        back, along = [order.index(d) for d in range(rank)], order.index(rank + dim) - rank
        try:
            sent = [wire.permuted(order).stream for wire in (first, second)]
            plan = concat_plan(sent[0], sent[1], along)
        except OrderError:
            back, rows = list(range(rank)), [torch.arange(w.stream.size) for w in (first, second)]
            first, second = (
                self._reordered(f"{name}_order_{k}", wire, row.view(wire.stream.shape))
                for k, (wire, row) in enumerate(zip((first, second), rows, strict=True))
            )
            plan = concat_plan(first.stream, second.stream, dim)
        if self._is_constant(first):
            plan = replace(plan, parameters={**plan.parameters, "WAITS": 1})
        joined = self._instance(name, "cat", "chop_concat", plan, [first, second])
        return joined.permuted(back)

    def _move(self, node: fx.Node) -> Value:
        (source,), moves = _tensors(node), [mover(node, self.mg.get_module(node))]
        # A split has no stream of its own. Its moves are applied to the stream of its input.
        while self._is_parted(source):
            moves.append(mover(source, self.mg.get_module(source)))
            (source,) = _tensors(source)
        value, move = self.values[source], in_turn(moves[::-1])
        if isinstance(value, Fixed):
            return replace(value, codes=move(value.codes))
        places, batch_dim = moved(value, self._shape(source)[value.batch_dim], move)
        distinct = places.unique().numel()
        # A permutation needs no circuit: the wire is the same, and only its positions change.
        if distinct == places.numel() == value.stream.size:
            return Wire(value.signal, replace(value.stream, positions=places), batch_dim)
        name, fold = self.names[node.name], self.folds.get(node.name, self.fold)
        is_part = distinct == places.numel()
        kind, module = ("getitem", "chop_select") if is_part else ("expand", "chop_copies")
        try:
            plan = (
                select_plan(value.stream, places)
                if is_part
                else copies_plan(value.stream, places, fold)
            )
        except ConfigError:
            wanted = torch.arange(places.numel()).view(places.shape)
            plan, module = reorder_plan(value.stream, places, wanted, fold), "chop_reorder"
        self.origins.add(name, value, places, plan.out)
        return replace(self._instance(name, kind, module, plan, [value]), batch_dim=batch_dim)

    def _instance(
        self,
        name: str,
        kind: str,
        module: str,
        plan: ComponentPlan,
        inputs: Sequence[Wire],
        drawn_as: Kind = Kind.OTHER,
    ) -> Wire:
        made = Instance(name, kind, module, RTL, plan, tuple(inputs), drawn_as)
        self.instances.append(made)
        return Wire(name, plan.out)

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        shape: tuple[int, ...] = node.meta["mase"].common.results["data_out_0"].shape
        return shape


def _tensors(node: fx.Node) -> list[fx.Node]:
    """Returns the input nodes in argument order, duplicates included."""
    inputs: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), lambda given: inputs.append(given))
    return inputs
