"""Integer program of a folding: an option for each node, with compatible lanes between neighbors.

It is solved by HiGHS (`scipy.optimize.milp`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from chop.hardware.costs.devices import RESOURCES
from chop.hardware.costs.estimate import Usage, module_usage
from chop.hardware.design.instances import Boundary, Instance
from chop.hardware.folds.foldable import Foldable, Option

SECONDS = 30.0
"""Time limit of one integer program."""
OUT_OF_TIME = 1
"""Status of `scipy.optimize.milp` at its time limit."""


@dataclass(frozen=True, eq=False)
class Edge:
    """A connection between two nodes.

    Attributes:
        producer: index of the producer.
        reader: index of the reader.
        place: input index at the reader.
        size: codes of a sample.
        width: bits of a code.
    """

    producer: int
    reader: int
    place: int
    size: int
    width: int


class Program:
    """Integer program of one interval.

    Args:
        graph: graph to fold.
        interval: maximum cycles of every node and converter.
        may_be_soft: allows products built from lookup tables, per node.
    """

    def __init__(self, graph: Foldable, interval: int, may_be_soft: bool = False) -> None:
        self.graph, self.interval, self.may_be_soft = graph, interval, may_be_soft
        self.options = [graph.options(part, interval, may_be_soft) for part in graph.nodes]
        self.edges = list(_edges(graph))

    def share(self, usage: Usage) -> float:
        """Returns the objective: the summed shares of the device's resources.

        Multipliers are free if lookup tables can replace them.
        """
        free = "dsp" if self.may_be_soft else None
        sizes = {name: max(getattr(self.graph.device, name), 1) for name in RESOURCES}
        pairs = zip(RESOURCES, usage, strict=True)
        return float(sum(taken / sizes[name] for name, taken in pairs if name != free))

    def link_usage(self, edge: Edge, sends: int, reads: int) -> Usage | None:
        """Returns the resources of the link between two nodes, or None if it is too slow."""
        common, family = math.gcd(sends, reads), self.graph.device.family
        # A direct converter runs at the narrower end, two converters at the common divisor between
        # them.
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

    def solve(self, budget: Usage) -> dict[str, Option] | None:
        """Returns the smallest solution within a budget, by node; None if there is none."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        if not all(self.options):
            return None
        usages, rows, limits, is_whole = self._columns()
        costs = np.array([self.share(usage) for usage in usages])
        row, column, value = zip(*rows, strict=True)
        equal = csr_array((value, (row, column)), shape=(len(limits), len(usages)))
        # One constraint per resource of the device.
        taken = np.array(usages, dtype=float).T
        solution = milp(
            costs,
            integrality=is_whole,
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(equal, limits, limits),
                LinearConstraint(taken, -np.inf, np.array(budget, dtype=float)),
            ],
            options={"time_limit": SECONDS, "mip_rel_gap": 1e-6},
        )
        if solution.x is None:
            if solution.status == OUT_OF_TIME:
                self.graph.undecided.add(self.interval)
            return None
        choice, start = {}, 0
        for part, options in zip(self.graph.nodes, self.options, strict=True):
            chosen = int(np.argmax(solution.x[start : start + len(options)]))
            choice[part.node] = options[chosen]
            start += len(options)
        return choice

    def _columns(
        self,
    ) -> tuple[list[Usage], list[tuple[int, int, float]], list[float], list[int]]:
        """Builds the variables: one for each option, and one for each pair of lanes on an edge.

        Returns: resources of each variable; entries of the equations as row, column and factor;
            right sides; and 1 for each integer variable. Pairs are integral if the options are.
        """
        usages = [option.usage for options in self.options for option in options]
        starts = np.cumsum([0, *(len(options) for options in self.options)])
        is_whole, limits = [1] * len(usages), list[float]()
        rows: list[tuple[int, int, float]] = []
        for start, options in zip(starts, self.options, strict=False):
            rows += [(len(limits), int(start) + k, 1.0) for k in range(len(options))]
            # Exactly one option per node.
            limits.append(1.0)
        for edge in self.edges:
            producers = _groups(option.sends for option in self.options[edge.producer])
            reads = [option.reads[edge.place] for option in self.options[edge.reader]]
            readers = _groups(reads)
            first = len(limits)
            # Pairs with given lanes sum to the options with these lanes, at both ends.
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
    groups: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(lanes):
        groups[each].append(number)
    return groups


def _signal(part: Instance | Boundary) -> str:
    return part.name if isinstance(part, Instance) else part.wire.signal


def _edges(graph: Foldable) -> Iterator[Edge]:
    """Returns the edges between nodes that have options.

    Nodes without options, such as part of a stream, follow their producers outside the program.
    """
    numbers = {_signal(part): number for number, part in enumerate(graph.nodes)}
    for number, part in enumerate(graph.nodes):
        inputs = part.inputs if isinstance(part, Instance) else ()
        for place, wire in enumerate(inputs):
            if wire.signal in numbers:
                stream = wire.stream
                yield Edge(numbers[wire.signal], number, place, stream.size, stream.width)
