"""Construction of the integer program of a graph: layouts, transfers, time and memory."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from chop.captured.nodes.writes import shared_writes, written_by
from chop.distributed.placements import REPLICATED
from chop.distributed.plan import Placements, ShardingPlan, named_tensors
from chop.distributed.planning.layouts import Layout, local_bytes, processes_that_share
from chop.distributed.planning.machine import Machine
from chop.distributed.planning.node_layouts import (
    Call,
    LayoutFinder,
    NodeLayout,
    aliased_source,
    product_layout,
)
from chop.distributed.planning.repeats import tied_with
from chop.distributed.planning.simulated import fake_copy, fake_inputs, simulated_mesh
from chop.distributed.planning.solver import (
    Choice,
    Fanout,
    Moment,
    Move,
    Node,
    Problem,
    Solution,
)
from chop.distributed.planning.transfers import Transfers
from chop.distributed.planning.work import count_flops, moves_memory, reads_whole_tensors
from chop.distributed.strategies import register_strategies
from chop.ir.annotate import tensors_in
from chop.ir.flops import FlopCounts
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphVisitor, bind_inputs
from chop.private.torch_api import FakeTensorMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class GraphProblem:
    """An integer program and its relation to the graph.

    Attributes:
        problem: program of tied nodes.
        nodes: graph nodes with tensors, in order.
        members: index of the program node for each graph node.
        calls: call of each graph node.
        fallbacks: matrix products that can only be replicated, with their share of all operations.
    """

    problem: Problem
    nodes: tuple[fx.Node, ...]
    members: tuple[int, ...]
    calls: tuple[Call, ...]
    fallbacks: Mapping[str, float]

    def repaired(self, solution: Solution, mesh: tuple[int, ...]) -> GraphProblem:
        """Removes invalid choices; returns itself if those of the solution are valid.

        On several axes, choices are products of choices along each axis, and some of them do not
        compute. If the solution has such a choice, all choices of its node are tested.
        """
        if len(mesh) == 1:
            return self
        nodes = list(self.problem.nodes)
        with simulated_mesh(mesh) as device_mesh, FakeTensorMode(), torch.no_grad():
            finder = LayoutFinder(device_mesh)
            for member, index in enumerate(solution.choices):
                call, node = self.calls[self.members.index(member)], nodes[member]
                if len(node.choices) == 1 or _holds(finder, call, node.choices[index]):
                    continue
                valid = [choice for choice in node.choices if _holds(finder, call, choice)]
                nodes[member] = replace(node, choices=tuple(valid) or node.choices[:1])
        if nodes == list(self.problem.nodes):
            return self
        follows = _still_follow(self.problem, nodes)
        return replace(self, problem=replace(self.problem, nodes=tuple(nodes), follows=follows))

    def plan(self, solution: Solution, mesh: tuple[int, ...], name: str) -> ShardingPlan:
        """Returns the plan of a solution."""
        chosen = {
            node: self.problem.nodes[member].choices[solution.choices[member]]
            for node, member in zip(self.nodes, self.members, strict=True)
        }
        layouts: dict[int, Placements] = {}
        reads: dict[str, dict[str, Placements]] = {}
        for node, call in zip(self.nodes, self.calls, strict=True):
            own = chosen[node].tensors.values()
            layouts |= {id(x): p for x, p in zip(call.tensors.values(), own, strict=True)}
            for source, wanted in zip(call.sources, chosen[node].reads, strict=True):
                if node.op != "output" and wanted != chosen[source].result:
                    reads.setdefault(node.name, {})[source.name] = wanted
        whole = (REPLICATED,) * len(mesh)
        parameters = {
            path: layouts[id(x)]
            for path, x in named_tensors(self.calls[0].mg.model)
            if layouts.get(id(x), whole) != whole
        }
        return ShardingPlan(mesh, parameters, reads, name)


def _still_follow(
    problem: Problem, nodes: Sequence[Node]
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Returns the remaining followers after choices were removed; nodes that lost one are free."""
    followers = {}
    for member, (leader, mapped) in problem.follows.items():
        before, now = problem.nodes[leader].choices, nodes[leader].choices
        own = [problem.nodes[member].choices[mapped[before.index(choice)]] for choice in now]
        if all(choice in nodes[member].choices for choice in own):
            followers[member] = leader, tuple(map(nodes[member].choices.index, own))
    return followers


def _holds(finder: LayoutFinder, call: Call, choice: Choice) -> bool:
    tensors = tuple(choice.tensors.values())
    return finder.holds(call, NodeLayout(choice.reads, tensors, choice.result))


def graph_problem(
    mg: MaseGraph, inputs: Mapping[str, Any], machine: Machine, exact: bool
) -> GraphProblem:
    """Builds the integer program of a graph.

    Args:
        mg: the graph; it is not changed, and may be on the meta device.
        inputs: inputs of a forward pass; their values do not matter.
        machine: mesh and speeds.
        exact: allows different layouts in repeated layers; otherwise they are equal.

    Raises:
        PlanError: if a process group exists already.
    """
    register_strategies()
    values: dict[fx.Node, Any] = {}
    fake = FakeTensorMode()
    with fake, torch.no_grad():
        twin = fake_copy(mg)
        arguments = bind_inputs(twin.model, fake_inputs(inputs))
        GraphVisitor(twin.model, lambda node, _, x: values.setdefault(node, x)).run(*arguments)
        builder = _Builder(twin, values, machine, exact)
    for size in set(machine.mesh):
        with simulated_mesh((size,)) as mesh, fake, torch.no_grad():
            builder.find_layouts(mesh)
    with simulated_mesh(machine.mesh) as mesh, fake, torch.no_grad():
        return builder.build(Transfers(mesh, machine.backend))


class _Builder:
    def __init__(
        self, mg: MaseGraph, values: Mapping[fx.Node, Any], machine: Machine, exact: bool
    ) -> None:
        self._mg, self._values, self._machine = mg, values, machine
        self._flop_counts = FlopCounts()
        self._mesh, self._exact = machine.mesh, exact
        self._whole: Layout = (REPLICATED,) * len(self._mesh)
        self._along: dict[int, dict[int, list[NodeLayout]]] = {}
        self._nodes = [x for x in mg.nodes if x.op == "output" or _has_tensors(values[x])]
        self._calls = [Call.of(mg, node, values) for node in self._nodes]
        self._index = {node: i for i, node in enumerate(self._nodes)}
        self._fixed = self._fixed_nodes()
        keys = [(call.node in self._fixed, call.signature()) for call in self._calls]
        firsts = list(range(len(keys))) if exact else tied_with(keys)
        order = {first: i for i, first in enumerate(dict.fromkeys(firsts))}
        self._firsts = list(order)
        self._members = [order[first] for first in firsts]
        self._slots = self._tied_tensors()

    def find_layouts(self, mesh: DeviceMesh) -> None:
        """Determines the layouts of every node along an axis."""
        finder = LayoutFinder(mesh)
        self._along[mesh.size()] = {
            first: finder.layouts(self._calls[first])
            for first in self._firsts
            if self._nodes[first] not in self._fixed
        }

    def build(self, transfers: Transfers) -> GraphProblem:
        """Builds the program from the layouts along each axis."""
        self._transfers = transfers
        counts = Counter(self._members)
        nodes = []
        for member, first in enumerate(self._firsts):
            node, call = self._nodes[first], self._calls[first]
            layouts = self._layouts(first)
            choices = tuple(
                self._choice(call, layout, member)
                for layout in layouts
                if self._ties_agree(call, layout, member)
            )
            nodes.append(Node(node.name, choices, counts[member]))
        fanouts, fanout_by_value = self._fanouts(nodes)
        problem = Problem(
            tuple(nodes),
            fanouts,
            self._tensor_bytes(nodes),
            tuple(self._moments(fanout_by_value)),
            self._follows(nodes),
        )
        return GraphProblem(
            problem,
            tuple(self._nodes),
            tuple(self._members),
            tuple(self._calls),
            self._fallbacks(nodes),
        )

    # --- nodes ---

    def _fixed_nodes(self) -> set[fx.Node]:
        """Returns the nodes to replicate: those of constants only, or of written memory."""
        running: set[fx.Node] = set()
        fixed: set[fx.Node] = set()
        for node, call in zip(self._nodes, self._calls, strict=True):
            if node.op in ("placeholder", "output"):
                running.add(node)
                fixed.add(node)
            elif call.tensors or any(source in running for source in call.sources):
                running.add(node)
            else:
                fixed.add(node)
            if written_by(node):
                written = shared_writes(node)
                fixed |= {node, *written, *written.values(), *call.sources}
        return fixed

    def _layouts(self, index: int) -> list[NodeLayout]:
        call = self._calls[index]
        if call.node in self._fixed:
            reads = (self._whole,) * len(call.sources)
            own = (self._whole,) * len(call.tensors)
            is_given = call.node.op in ("placeholder", "output", "get_attr")
            is_view = is_given or aliased_source(call) is not None
            size = 0 if is_view else self._size(self._values[call.node], self._whole)
            return [NodeLayout(reads, own, self._whole, size)]
        along = [self._along[size][index] for size in self._mesh]
        whole = along[0][0]
        products = (product_layout(call, whole, x, self._mesh) for x in itertools.product(*along))
        return [layout for layout in products if layout is not None]

    def _ties_agree(self, call: Call, layout: NodeLayout, member: int) -> bool:
        """Returns whether a layout places tied tensors of the node alike."""
        names = [self._slots[member, i] for i in range(len(call.tensors))]
        return len(set(zip(names, layout.tensors, strict=True))) == len(set(names))

    def _choice(self, call: Call, layout: NodeLayout, member: int) -> Choice:
        names = [self._slots[member, i] for i in range(len(call.tensors))]
        return Choice(
            layout.reads,
            layout.result,
            self._seconds(call, layout),
            layout.result_bytes,
            layout.workspace_bytes,
            dict(zip(names, layout.tensors, strict=True)),
        )

    def _seconds(self, call: Call, layout: NodeLayout) -> float:
        if call.node.op in ("placeholder", "output", "get_attr"):
            return 0.0
        given = [self._values[source] for source in call.sources]
        results = list(tensors_in(self._values[call.node]))
        leaves = [x for value in given for x in tensors_in(value)]
        if not moves_memory(leaves, results):
            return 0.0
        flops = self._flops(call.node, results)
        size = sum(self._size(x, place) for x, place in zip(given, layout.reads, strict=True))
        size += self._size(self._values[call.node], layout.result)
        if reads_whole_tensors(self._mg, call.node):
            own = zip(call.tensors.values(), layout.tensors, strict=True)
            size += sum(local_bytes(x, self._mesh, place) for x, place in own)
        return self._machine.seconds(flops / processes_that_share(self._mesh, layout.result), size)

    def _flops(self, node: fx.Node, results: list[Tensor]) -> int:
        return count_flops(self._mg, node, self._values, results, self._flop_counts)

    def _size(self, value: Any, layout: Layout) -> int:
        return sum(local_bytes(x, self._mesh, layout) for x in tensors_in(value))

    def _fallbacks(self, nodes: Sequence[Node]) -> dict[str, float]:
        if math.prod(self._mesh) == 1:
            return {}
        flops, lone = [], []
        for node, member in zip(self._nodes, self._members, strict=True):
            flops.append(self._flops(node, list(tensors_in(self._values[node]))))
            lone.append(len(nodes[member].choices) == 1)
        total = sum(flops) or 1
        rows = zip(self._nodes, flops, lone, strict=True)
        return {node.name: count / total for node, count, alone in rows if alone and count}

    # --- parameters ---

    def _tied_tensors(self) -> dict[tuple[int, int], str]:
        """Returns a name for the tensors of each program node; tied tensors have one name."""
        names: dict[tuple[int, int], str] = {}
        slots: dict[int, list[tuple[int, int]]] = {}
        for call, member in zip(self._calls, self._members, strict=True):
            for place, x in enumerate(call.tensors.values()):
                names.setdefault((member, place), f"{member}.{place}")
                slots.setdefault(id(x), []).append((member, place))
        for several in slots.values():
            old = {names[slot] for slot in several}
            if len(old) > 1:
                new = min(old)
                names.update({slot: new for slot, name in names.items() if name in old})
        return names

    def _tensor_bytes(self, nodes: Sequence[Node]) -> dict[str, dict[Layout, int]]:
        tensors: dict[str, dict[int, Tensor]] = {}
        for call, member in zip(self._calls, self._members, strict=True):
            for place, x in enumerate(call.tensors.values()):
                tensors.setdefault(self._slots[member, place], {})[id(x)] = x
        sizes: dict[str, dict[Layout, int]] = {name: {} for name in tensors}
        for node in nodes:
            for choice in node.choices:
                for name, layout in choice.tensors.items():
                    if layout not in sizes[name]:
                        own = tensors[name].values()
                        sizes[name][layout] = sum(local_bytes(x, self._mesh, layout) for x in own)
        return sizes

    # --- edges ---

    def _fanouts(self, nodes: Sequence[Node]) -> tuple[tuple[Fanout, ...], dict[int, int]]:
        """Returns the readers of values, grouped by equal readers, and the group of each value."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for call, member in zip(self._calls, self._members, strict=True):
            for place, source in enumerate(call.sources):
                readers.setdefault(self._index[source], []).append((member, place))
        groups: dict[tuple[int, tuple[tuple[int, int], ...]], list[int]] = {}
        for index, several in readers.items():
            # Values of tied nodes with the same readers share one fan-out with a count.
            key = (self._members[index], tuple(sorted(set(several))))
            groups.setdefault(key, []).append(index)
        fanouts = list[Fanout]()
        fanout_by_value: dict[int, int] = {}
        for (member, alike), values in groups.items():
            moves = self._moves(nodes, values[0], member, alike)
            fanout_by_value.update(dict.fromkeys(values, len(fanouts)))
            fanouts.append(Fanout(member, alike, moves, len(values)))
        return tuple(fanouts), fanout_by_value

    def _moves(
        self, nodes: Sequence[Node], index: int, member: int, readers: Sequence[tuple[int, int]]
    ) -> dict[tuple[Layout, Layout], Move]:
        given = {choice.result for choice in nodes[member].choices}
        tensors = list(tensors_in(self._values[self._nodes[index]]))
        moves: dict[tuple[Layout, Layout], Move] = {}
        for reader, place in readers:
            wanted = {choice.reads[place] for choice in nodes[reader].choices}
            for pair in itertools.product(given, wanted):
                move = moves.get(pair) or self._move(tensors, *pair)
                if move is not None:
                    moves[pair] = move
        return moves

    def _follows(self, nodes: Sequence[Node]) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Returns nodes that adopt the layout of one of their inputs.

        Nodes without products, parameters or enlarged results lose nothing by this, because their
        output can be redistributed instead of their input.
        """
        sources: dict[tuple[int, int], set[int]] = {}
        for call, member in zip(self._calls, self._members, strict=True):
            for place, source in enumerate(call.sources):
                sources.setdefault((member, place), set()).add(self._members[self._index[source]])
        followers: dict[int, tuple[int, tuple[int, ...]]] = {}
        for member, first in enumerate(self._firsts):
            for place in self._places_to_follow(first):
                leaders = sources[member, place]
                mapped = _mapped(nodes, followers, min(leaders), member, place)
                # In repeated layers, the input may come from different program nodes.
                if len(leaders) == 1 and mapped is not None:
                    followers[member] = mapped
                    break
        return followers

    def _places_to_follow(self, index: int) -> list[int]:
        """Returns the input indices that a node may follow, largest input first."""
        call = self._calls[index]
        if self._exact or call.tensors or call.node in self._fixed:
            return []
        given = [self._values[source] for source in call.sources]
        result = self._values[call.node]
        if self._flops(call.node, list(tensors_in(result))):
            return []
        sizes = [self._size(value, self._whole) for value in given]
        places = sorted(range(len(sizes)), key=lambda place: -sizes[place])
        return [place for place in places if self._size(result, self._whole) <= sizes[place]]

    def _move(self, tensors: Sequence[Tensor], given: Layout, wanted: Layout) -> Move | None:
        seconds, copied, passing = 0.0, 0, 0
        for x in tensors:
            transfer = self._transfers.of(x, given, wanted)
            if transfer is None:
                return None
            seconds += self._machine.get_seconds(transfer.sent)
            copied += round(transfer.copy_bytes)
            passing = max(passing, round(transfer.passing_bytes))  # tensors go one by one
        return Move(seconds, copied, passing)

    # --- memory ---

    def _moments(self, fanout_by_value: Mapping[int, int]) -> Iterator[Moment]:
        """Returns the memory contents before and while each node runs, without duplicates."""
        readers: dict[int, list[int]] = {i: [] for i in range(len(self._nodes))}
        for index, call in enumerate(self._calls):
            for source in call.sources:
                readers[self._index[source]].append(index)
        ends = self._ends(readers)
        seen = set[object]()
        alive: list[int] = []
        for index in range(len(self._nodes)):
            alive = [i for i in alive if ends[i] >= index]
            # Copies exist from the first reader on, until the value ends.
            read = [i for i in alive if readers[i] and readers[i][0] <= index]
            copies = tuple(fanout_by_value[i] for i in read)
            arriving = tuple(fanout_by_value[i] for i in alive if index in readers[i])
            before = Counter(self._members[i] for i in alive)
            alive.append(index)
            member = self._members[index]
            for moment in (
                Moment(None, before, copies, arriving),
                Moment(member, Counter(self._members[i] for i in alive), copies),
            ):
                key = (moment.node, frozenset(moment.values.items()), copies, moment.arriving)
                if key not in seen:
                    seen.add(key)
                    yield moment

    def _ends(self, readers: Mapping[int, Sequence[int]]) -> list[int]:
        """Returns the last node that needs each value's memory; views extend their base's life."""
        ends = [max(readers[i], default=i) for i in range(len(self._nodes))]
        for index in reversed(range(len(self._nodes))):  # views of views first
            source = aliased_source(self._calls[index])
            if source is not None:
                first = self._index[source]
                ends[first] = max(ends[first], ends[index])
        return ends


def _mapped(
    nodes: Sequence[Node],
    follows: Mapping[int, tuple[int, tuple[int, ...]]],
    source: int,
    member: int,
    place: int,
) -> tuple[int, tuple[int, ...]] | None:
    """Returns the deciding node for a follower of a source, with its choices, or None."""
    leader, own = follows.get(source, (source, tuple(range(len(nodes[source].choices)))))
    choices = nodes[member].choices
    mapped = []
    for index in own:
        layout = nodes[source].choices[index].result
        fitting = [i for i, choice in enumerate(choices) if choice.reads[place] == layout]
        if not fitting:
            return None
        # A finer cut of other inputs is faster here, but its result has to be gathered later.
        mapped.append(min(fitting, key=lambda i: (choices[i].result != layout, choices[i].seconds)))
    return leader, tuple(mapped)


def _has_tensors(value: Any) -> bool:
    return next(iter(tensors_in(value)), None) is not None
