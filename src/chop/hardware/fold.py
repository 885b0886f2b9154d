"""Folding for a device: how many cycles each node may take, so that the design fits and is fast.

The smallest interval that was found comes first, then the fewest lookup tables. Intervals are tried
by bisection, in steps of 2 %. For one of them the choice is an integer program, which minimizes the
sum of the shares of the device's resources: each node takes one of its lanes, which divide its
sizes and keep the interval; converters between adjacent nodes have a cost by the lanes at both
ends, or are refused where they are slower. It is solved by HiGHS (`scipy.optimize.milp`); where it
takes longer than `SECONDS` without a choice, the interval counts as one that does not fit, and is
told. FIFOs follow from all lanes together: where they make a design too large, its budget is
tightened by what they took too much.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from chop.errors import ConfigError
from chop.hardware.components import COMPONENTS
from chop.hardware.connect import Connections, connect
from chop.hardware.devices import DEVICES, RESOURCES, Device
from chop.hardware.emit import UNFOLDED
from chop.hardware.estimate import Usage, design_usage, module_usage, plan_usage
from chop.hardware.netlist import Boundary, Instance, Netlist, netlist
from chop.ir.graph import MaseGraph

SPREAD = 4
"""A node's choices take from an interval to this part of it: more lanes only match neighbors."""
ROUNDS = 6
"""How often a budget is tightened by what a design took too much."""
SECONDS = 30.0
"""For one integer program."""
OUT_OF_TIME = 1
"""The status of `scipy.optimize.milp` at its limit of time."""


@dataclass(frozen=True)
class Folding:
    """Cycles that each node may take.

    Attributes:
        fold: of nodes without a choice of their own, as constants are.
        folds: of the others, by node.
        interval: cycles between two samples.
        usage: of the design.
        undecided: shorter intervals of which it was not found out in time whether one fits.
    """

    fold: int
    folds: Mapping[str, int]
    interval: int
    usage: Usage
    undecided: tuple[int, ...] = ()


@dataclass(frozen=True)
class Option:
    """A choice for a node.

    Attributes:
        fold: that gives it.
        cycles: that it takes.
        reads: lanes of each input.
        sends: lanes of its result.
        usage: of the instance.
    """

    fold: int
    cycles: int
    reads: tuple[int, ...]
    sends: int
    usage: Usage


@dataclass(frozen=True, eq=False)
class _Edge:
    """Nodes that are connected.

    Attributes:
        producer: index of the node.
        reader: of the node.
        place: which input of the reader it is.
        size: codes of a sample.
        width: bits of a code.
    """

    producer: int
    reader: int
    place: int
    size: int
    width: int


@dataclass(eq=False)
class Foldable:
    """A graph whose nodes are to be folded.

    Attributes:
        mg: of integers.
        device: that it has to fit.
        undecided: intervals whose integer program took too long.
    """

    mg: MaseGraph
    device: Device
    undecided: set[int] = field(default_factory=set)
    _plans: dict[tuple[str, int], Option] = field(default_factory=dict)

    @cached_property
    def slowest(self) -> Netlist:
        """The circuit with one lane everywhere."""
        return netlist(self.mg, UNFOLDED)

    @cached_property
    def nodes(self) -> list[Instance | Boundary]:
        """What has a choice: ports in, and operators of the graph."""
        operators = [part for part in self.slowest.instances if part.node]
        return [*self.slowest.inputs, *operators]

    def option(self, part: Instance | Boundary, fold: int) -> Option:
        """What a node is where it may take so many cycles."""
        if isinstance(part, Boundary):
            size = part.wire.stream.size
            lanes = next((n for n in part.choices if size <= n * fold), part.choices[-1])
            return Option(fold, size // lanes, (), lanes, Usage())
        key = part.node, fold
        if key not in self._plans:
            assert part.site is not None
            site = part.site.alone(fold)
            plan = COMPONENTS[type(site.operator)].plan(site)
            usage = plan_usage(part.module, plan, self.device.family)
            self._plans[key] = Option(fold, plan.cycles, plan.lanes, plan.out.lanes, usage)
        return self._plans[key]

    def options(self, part: Instance | Boundary, interval: int) -> list[Option]:
        """What a node may be in an interval, the fewest lanes first."""
        found: list[Option] = []
        fold = interval
        while fold * SPREAD >= interval and fold > 0:
            option = self.option(part, fold)
            if option.cycles > interval or (found and option.cycles >= found[-1].cycles):
                break
            found.append(option)
            fold = option.cycles - 1
        return found

    @cached_property
    def fastest(self) -> int:
        """Cycles of the slowest node where each is as fast as it can be."""
        return max((self.option(part, 1).cycles for part in self.nodes), default=1)

    def design(self, folds: Mapping[str, int], interval: int) -> tuple[Netlist, Connections]:
        """The circuit of a choice."""
        made = netlist(self.mg, interval, folds)
        return made, connect(made)

    def measured(self, folds: Mapping[str, int], interval: int) -> Folding:
        """A choice with what its design takes."""
        made, connections = self.design(folds, interval)
        usage = design_usage(made, connections, self.device.family)
        return Folding(interval, folds, max(made.interval, connections.interval), usage)


def fold_for(mg: MaseGraph, device: Device) -> Folding:
    """The folds of the fastest design of a device that is found.

    Args:
        mg: a graph of integers.
        device: what it may take.
    Raises:
        ConfigError: it does not fit with one lane everywhere; says by how much, and which device it
            fits.
    """
    graph = Foldable(mg, device)
    slowest = graph.measured({part.node: UNFOLDED for part in graph.nodes}, UNFOLDED)
    if excess(slowest.usage, device):
        raise ConfigError(_refusal(mg, slowest.usage, device))
    best, intervals = slowest, _intervals(graph, slowest.interval)
    low, high = 0, len(intervals) - 1
    while low <= high:
        middle = (low + high) // 2
        found = [_within(graph, intervals[middle]), _uniform(graph, intervals[middle])]
        best = min([best, *filter(None, found)], key=_rank)
        if best.interval <= intervals[middle]:
            high = min(middle, bisect.bisect_left(intervals, best.interval)) - 1
        else:
            low = middle + 1
    undecided = sorted(each for each in graph.undecided if each < best.interval)
    return replace(best, undecided=tuple(undecided))


def _rank(folding: Folding) -> tuple[int, float]:
    return folding.interval, folding.usage.lut


def _uniform(graph: Foldable, interval: int) -> Folding | None:
    """One fold for all nodes, whose lanes follow their producers; None where it does not fit."""
    found = graph.measured({}, interval)
    return None if excess(found.usage, graph.device) else found


def _intervals(graph: Foldable, slowest: int) -> list[int]:
    """Intervals that are tried, ascending: each 2 % longer than the one before."""
    count = math.ceil(math.log(max(slowest / graph.fastest, 1)) / math.log(1.02))
    return sorted({math.ceil(graph.fastest * 1.02**step) for step in range(count + 1)})


def excess(usage: Usage, device: Device) -> dict[str, float]:
    """What is taken beyond a device, by resource; empty where it fits."""
    pairs = {name: (getattr(usage, name), getattr(device, name)) for name in RESOURCES}
    return {name: taken - there for name, (taken, there) in pairs.items() if taken > there}


def _refusal(mg: MaseGraph, usage: Usage, device: Device) -> str:
    names = {"lut": "lookup tables", "ff": "flip-flops", "dsp": "multipliers", "bram": "memories"}
    missing = ", ".join(
        f"{getattr(usage, name):,.0f} {names[name]} of {getattr(device, name):,}"
        for name in excess(usage, device)
    )
    fitting = next((other.name for other in DEVICES.values() if _fits(mg, other)), None)
    larger = f"the smallest device that fits is {fitting}" if fitting else "no known device fits"
    return (
        f"device: {device.name} is too small: with one lane everywhere the design takes {missing}; "
        f"{larger}."
    )


def _fits(mg: MaseGraph, device: Device) -> bool:
    slowest = netlist(mg, UNFOLDED)
    return not excess(design_usage(slowest, connect(slowest), device.family), device)


def _within(graph: Foldable, interval: int) -> Folding | None:
    """The smallest design of an interval, or None where none fits."""
    budget = Usage(*(getattr(graph.device, name) for name in RESOURCES))
    for _ in range(ROUNDS):
        program = Program(graph, interval)
        folds = program.solve(budget)
        if folds is None:
            return None
        found = graph.measured(folds, interval)
        beyond = excess(found.usage, graph.device)
        if not beyond:
            return found
        budget = Usage(*(b - beyond.get(n, 0) for n, b in zip(RESOURCES, budget, strict=True)))
    return None


class Program:
    """The integer program of one interval.

    Args:
        graph: what is folded.
        interval: most cycles of every node and converter.
    """

    def __init__(self, graph: Foldable, interval: int) -> None:
        self.graph, self.interval = graph, interval
        self.options = [graph.options(part, interval) for part in graph.nodes]
        self.edges = list(_edges(graph))

    def share(self, usage: Usage) -> float:
        """What is minimized: the sum of the shares of each resource of the device."""
        device = self.graph.device
        sizes = [max(getattr(device, name), 1) for name in RESOURCES]
        return float(sum(taken / size for taken, size in zip(usage, sizes, strict=True)))

    def link_usage(self, edge: _Edge, sends: int, reads: int) -> Usage | None:
        """What stands between two nodes by their lanes; None where it is too slow."""
        common, family = math.gcd(sends, reads), self.graph.device.family
        slowest = edge.size // min(sends, reads)
        if common not in (sends, reads):
            slowest = edge.size // common
        if slowest > self.interval:
            return None
        total = module_usage("chop_skid", {"W": reads * edge.width}, family)
        ends = (("chop_downsize", sends, common), ("chop_upsize", common, reads))
        for module, first, second in ends:
            if first != second:
                lanes = {"W": edge.width, "IN_LANES": first, "OUT_LANES": second}
                total = total.plus(module_usage(module, lanes, family))
        return total

    def solve(self, budget: Usage) -> dict[str, int] | None:
        """The folds of the smallest choice within a budget, by node; None where there is none."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        if not all(self.options):
            return None
        usages, rows, limits, is_whole = self._columns()
        costs = np.array([self.share(usage) for usage in usages])
        row, column, value = zip(*rows, strict=True)
        equal = csr_array((value, (row, column)), shape=(len(limits), len(usages)))
        taken = np.array(usages, dtype=float).T
        found = milp(
            costs,
            integrality=is_whole,
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(equal, limits, limits),
                LinearConstraint(taken, -np.inf, np.array(budget, dtype=float)),
            ],
            options={"time_limit": SECONDS, "mip_rel_gap": 1e-6},
        )
        if found.x is None:
            if found.status == OUT_OF_TIME:
                self.graph.undecided.add(self.interval)
            return None
        folds, start = {}, 0
        for part, options in zip(self.graph.nodes, self.options, strict=True):
            chosen = int(np.argmax(found.x[start : start + len(options)]))
            folds[part.node] = options[chosen].fold
            start += len(options)
        return folds

    def _columns(
        self,
    ) -> tuple[list[Usage], list[tuple[int, int, float]], list[float], list[int]]:
        """Variables: one for each option, and one for each pair of lanes at an edge.

        Returns: what each takes; entries of the equations: row, column and factor; right sides;
            1 for each variable that is whole. A pair is whole by itself where options are.
        """
        usages = [option.usage for options in self.options for option in options]
        starts = np.cumsum([0, *(len(options) for options in self.options)])
        is_whole, limits = [1] * len(usages), list[float]()
        rows: list[tuple[int, int, float]] = []
        for start, options in zip(starts, self.options, strict=False):
            rows += [(len(limits), int(start) + k, 1.0) for k in range(len(options))]
            limits.append(1.0)
        for edge in self.edges:
            producers = _groups(option.sends for option in self.options[edge.producer])
            reads = [option.reads[edge.place] for option in self.options[edge.reader]]
            readers = _groups(reads)
            first = len(limits)
            limits += [0.0] * (len(producers) + len(readers))
            for line, (sends, owners) in enumerate(producers.items()):
                rows += [(first + line, int(starts[edge.producer]) + k, -1.0) for k in owners]
                for other, lanes in enumerate(readers):
                    usage = self.link_usage(edge, sends, lanes)
                    if usage is not None:
                        rows.append((first + line, len(usages), 1.0))
                        rows.append((first + len(producers) + other, len(usages), 1.0))
                        usages.append(usage)
                        is_whole.append(0)
            for other, owners in enumerate(readers.values()):
                line = first + len(producers) + other
                rows += [(line, int(starts[edge.reader]) + k, -1.0) for k in owners]
        return usages, rows, limits, is_whole


def _groups(lanes: Iterable[int]) -> dict[int, list[int]]:
    """By lanes, the numbers of the options that have them."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(lanes):
        found[each].append(number)
    return found


def _signal(part: Instance | Boundary) -> str:
    return part.name if isinstance(part, Instance) else part.wire.signal


def _edges(graph: Foldable) -> Iterator[_Edge]:
    """Edges between nodes that have a choice.

    What has none, as a part of a stream, follows its producers and stays out of the program.
    """
    numbers = {_signal(part): number for number, part in enumerate(graph.nodes)}
    for number, part in enumerate(graph.nodes):
        inputs = part.inputs if isinstance(part, Instance) else ()
        for place, wire in enumerate(inputs):
            if wire.signal in numbers:
                stream = wire.stream
                yield _Edge(numbers[wire.signal], number, place, stream.size, stream.width)
