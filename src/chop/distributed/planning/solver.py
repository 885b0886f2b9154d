"""Integer program of layouts: the fastest choice for every node within a memory budget.

Every node has a binary variable per layout in which it can compute. Along each edge, a continuous
variable per pair of layouts represents the flow from the produced to the read layout. A node that
represents several, such as those of repeated layers, counts with that multiplicity.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chop.distributed.planning.layouts import Layout
from chop.errors import PlanError

GAP = 1e-4
"""Relative optimality gap at which a solution counts as proven."""
ADDED = 8
"""Number of memory moments added to a program at a time."""


class SolverTimeoutError(PlanError):
    """Raised if the integer program exceeds its time limit."""


@dataclass(frozen=True)
class Choice:
    """A layout choice of a node.

    Attributes:
        reads: layout of each input.
        result: layout of the result.
        seconds: time of the node.
        result_bytes: local bytes while the result is needed.
        workspace_bytes: additional local bytes while it computes.
        tensors: layouts of parameters by name.
    """

    reads: tuple[Layout, ...]
    result: Layout
    seconds: float = 0.0
    result_bytes: int = 0
    workspace_bytes: int = 0
    tensors: Mapping[str, Layout] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """A node, or several tied ones.

    Attributes:
        name: name in reports.
        choices: at least one.
        count: number of nodes that it represents.
    """

    name: str
    choices: tuple[Choice, ...]
    count: int = 1


@dataclass(frozen=True)
class Move:
    """Cost of a transfer.

    Attributes:
        seconds: time of the transfer.
        copy_bytes: bytes of the copy while it is needed.
        passing_bytes: additional bytes while it is made.
    """

    seconds: float = 0.0
    copy_bytes: int = 0
    passing_bytes: int = 0


@dataclass(frozen=True)
class Fanout:
    """Readers of one value.

    Attributes:
        source: producing node.
        readers: reading nodes and their input indices.
        moves: transfers by layout pair; missing ones are impossible.
        count: number of such values.
    """

    source: int
    readers: tuple[tuple[int, int], ...]
    moves: Mapping[tuple[Layout, Layout], Move]
    count: int = 1


@dataclass(frozen=True)
class Moment:
    """Memory contents while a node runs, or while its inputs are transferred.

    Attributes:
        node: running node; None during transfers.
        values: nodes with live results, and how many of each.
        copies: fan-outs with live copies.
        arriving: fan-outs whose copies are being made.
    """

    node: int | None
    values: Mapping[int, int]
    copies: tuple[int, ...] = ()
    arriving: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Input of the solver.

    Attributes:
        nodes: nodes in order.
        fanouts: edges by value.
        tensors: local bytes by parameter and layout, including multiplicity.
        moments: memory contents over time.
        follows: nodes whose choice is determined by another node, which follows none: that node,
            and the follower's choice for each of its choices.
    """

    nodes: tuple[Node, ...]
    fanouts: tuple[Fanout, ...]
    tensors: Mapping[str, Mapping[Layout, int]]
    moments: tuple[Moment, ...] = ()
    follows: Mapping[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """A choice for every node.

    Attributes:
        choices: choice index of each node.
        seconds: time of all nodes and transfers.
        parameter_bytes: bytes of the parameters.
        peak_bytes: these plus the peak bytes of results and copies.
        gap: relative gap to the proven bound.
    """

    choices: tuple[int, ...]
    seconds: float
    parameter_bytes: int
    peak_bytes: int
    gap: float = 0.0


def _tensor_layouts(problem: Problem, choices: Sequence[int]) -> dict[str, Layout]:
    """Returns the layout of each parameter.

    Raises:
        PlanError: if two nodes have one parameter in different layouts.
    """
    layouts: dict[str, Layout] = {}
    for node, index in zip(problem.nodes, choices, strict=True):
        for name, layout in node.choices[index].tensors.items():
            if layouts.setdefault(name, layout) != layout:
                raise PlanError(f"'{name}' has the layouts {layouts[name]} and {layout}.")
    return layouts


def evaluate(problem: Problem, choices: Sequence[int]) -> Solution | None:
    """Returns time and memory of given choices; None if a transfer is impossible.

    This defines the objective of `solve`.
    """
    chosen = [node.choices[i] for node, i in zip(problem.nodes, choices, strict=True)]
    seconds = sum(n.count * c.seconds for n, c in zip(problem.nodes, chosen, strict=True))
    for fanout in problem.fanouts:
        copies = _copies(fanout, chosen)
        if copies is None:
            return None
        seconds += fanout.count * sum(move.seconds for move in copies)
    try:
        layouts = _tensor_layouts(problem, choices)
    except PlanError:
        return None
    parameter_bytes = sum(problem.tensors[name][layout] for name, layout in layouts.items())
    peak = max(moment_bytes(problem, choices), default=0)
    return Solution(tuple(choices), seconds, parameter_bytes, parameter_bytes + peak)


def moment_bytes(problem: Problem, choices: Sequence[int]) -> list[int]:
    """Returns the bytes of results, copies and workspaces at each moment, for feasible choices."""
    chosen = [node.choices[i] for node, i in zip(problem.nodes, choices, strict=True)]
    copies = [_copies(fanout, chosen) or [] for fanout in problem.fanouts]
    return [_bytes_at(moment, chosen, copies) for moment in problem.moments]


def _copies(fanout: Fanout, chosen: Sequence[Choice]) -> list[Move] | None:
    """Returns the transfers of a value, one per layout read; None if one is impossible."""
    given = chosen[fanout.source].result
    wanted = {chosen[reader].reads[place] for reader, place in fanout.readers}
    pairs = [(given, layout) for layout in sorted(wanted)]
    return None if any(p not in fanout.moves for p in pairs) else [fanout.moves[p] for p in pairs]


def _bytes_at(moment: Moment, chosen: Sequence[Choice], copies: Sequence[Sequence[Move]]) -> int:
    size = 0 if moment.node is None else chosen[moment.node].workspace_bytes
    size += sum(count * chosen[node].result_bytes for node, count in moment.values.items())
    size += sum(move.copy_bytes for index in moment.copies for move in copies[index])
    return size + sum(move.passing_bytes for index in moment.arriving for move in copies[index])


def solve(
    problem: Problem,
    budget: float = math.inf,
    time_limit_s: float = 120.0,
    least: bool = False,
) -> Solution | None:
    """Returns the fastest choices within a budget, solved by HiGHS.

    Args:
        problem: the problem.
        budget: memory of a process in bytes, see `Solution.peak_bytes`.
        time_limit_s: time limit in seconds, after which the best known choices are returned.
        least: minimizes memory instead of time.
    Returns: the solution; None if nothing fits.

    Raises:
        SolverTimeoutError: if no feasible choices were determined in time.
    """
    end = time.monotonic() + time_limit_s
    whole = moment_bytes(problem, [0] * len(problem.nodes))
    # Most memory constraints are never active, so only violated moments are added.
    moments = sorted(range(len(whole)), key=lambda i: -whole[i])[:ADDED]
    while True:
        result = _solve(problem, None if least else budget, moments, end)
        if result is None:
            return None
        solution, gap = result
        sizes = moment_bytes(problem, solution.choices)
        limit = budget - solution.parameter_bytes
        if least:
            limit = max((sizes[i] for i in moments), default=0)
        over = [i for i, size in enumerate(sizes) if size > limit + 0.5 and i not in moments]
        if not over:
            return replace(solution, gap=gap)
        over.sort(key=lambda i: -sizes[i])
        moments += over[:ADDED]  # the most violated constraints


def _solve(
    problem: Problem, budget: float | None, moments: Sequence[int], end: float
) -> tuple[Solution, float] | None:
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = _Program(problem)
    if budget is None or not math.isinf(budget):
        program.add_memory(budget, moments)
    options = {"mip_rel_gap": GAP, "time_limit": max(1.0, end - time.monotonic())}
    result = milp(
        program.cost(least=budget is None),
        constraints=LinearConstraint(program.matrix(), program.low, program.high),
        integrality=program.integrality,
        bounds=Bounds(0, program.upper),
        options=options,
    )
    if result.x is None:
        if result.status == 1:
            raise SolverTimeoutError(
                "the integer program reached its time limit without a solution; allow a longer "
                "time_limit_s, more memory, or a larger mesh."
            )
        return None
    solution = evaluate(problem, program.chosen(result.x))
    assert solution is not None
    return solution, float(result.mip_gap or 0.0)


Pair = tuple[Layout, Layout]
"""Layouts at both ends of a transfer."""


class _Program:
    """Rows and columns of the integer program."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs: list[float] = []
        self.integrality: list[int] = []
        self.upper: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self._entries: tuple[list[int], list[int], list[float]] = ([], [], [])
        self._leaders = [
            [] if i in problem.follows else [self._column(0.0, True) for _ in node.choices]
            for i, node in enumerate(problem.nodes)
        ]
        for columns in self._leaders:
            if columns:
                self._row(dict.fromkeys(columns, 1.0), 1, 1)
        self._picks = [list(self._get_picks(i)) for i in range(len(problem.nodes))]
        for picks in self._picks:
            for column, choice, count in picks:
                self.costs[column] += count * choice.seconds
        self._copies = [self._add_fanout(fanout) for fanout in problem.fanouts]
        self._places = self._add_tensors()
        self._peak: int | None = None

    def _get_picks(self, index: int) -> Iterator[tuple[int, Choice, int]]:
        """Returns the columns that select a node's choices, the choices, and the node's count."""
        node = self.problem.nodes[index]
        leader, mapped = self.problem.follows.get(index, (index, range(len(node.choices))))
        for column, choice in zip(self._leaders[leader], mapped, strict=True):
            yield column, node.choices[choice], node.count

    def cost(self, least: bool) -> list[float]:
        """Returns the objective: seconds relative to the longest, or bytes."""
        if least:
            return [float(i == self._peak) for i in range(len(self.costs))]
        unit = max(self.costs) or 1.0
        return [cost / unit for cost in self.costs]

    def matrix(self) -> Any:
        """Returns the rows as a sparse matrix."""
        from scipy.sparse import csr_array

        rows, columns, numbers = self._entries
        return csr_array((numbers, (rows, columns)), shape=(len(self.low), len(self.costs)))

    def chosen(self, x: Sequence[float]) -> list[int]:
        """Returns the choices of a solution."""
        choices = []
        for index, node in enumerate(self.problem.nodes):
            leader, mapped = self.problem.follows.get(index, (index, range(len(node.choices))))
            columns = self._leaders[leader]
            choices.append(mapped[max(range(len(columns)), key=lambda i: x[columns[i]])])
        return choices

    def _column(self, cost: float = 0.0, is_binary: bool = False, upper: float = 1.0) -> int:
        self.costs.append(cost)
        self.integrality.append(int(is_binary))
        self.upper.append(upper)
        return len(self.costs) - 1

    def _row(self, entries: Mapping[int, float], low: float, high: float) -> None:
        rows, columns, numbers = self._entries
        rows += [len(self.low)] * len(entries)
        columns += entries
        numbers += entries.values()
        self.low.append(low)
        self.high.append(high)

    def _add_fanout(self, fanout: Fanout) -> dict[Pair, list[int]]:
        """Returns the columns of each transfer; one transfer serves several readers."""
        each = [self._flows(fanout, reader, place) for reader, place in fanout.readers]
        moved = {
            pair: [columns[pair] for columns in each if pair in columns]
            for columns in each
            for pair in columns
            if pair[0] != pair[1]
        }
        columns_by_pair: dict[Pair, list[int]] = {}
        for pair, users in moved.items():
            seconds = fanout.count * fanout.moves[pair].seconds
            if len(users) == 1:
                columns_by_pair[pair] = users[0]
                for column in users[0]:
                    self.costs[column] += seconds
                continue
            # One copy serves all readers: its column is at least the flow to each of them.
            shared = self._column(seconds)
            columns_by_pair[pair] = [shared]
            for columns in users:
                self._row(dict.fromkeys(columns, -1.0) | {shared: 1.0}, 0, math.inf)
        return columns_by_pair

    def _flows(self, fanout: Fanout, reader: int, place: int) -> dict[Pair, list[int]]:
        """Returns the columns of each transfer to one reader."""
        source = fanout.source
        if self._leader(source) == self._leader(reader):
            return self._fixed_flows(fanout, reader, place)
        given = self._by_layout(source, lambda choice: choice.result)
        wanted = self._by_layout(reader, lambda choice: choice.reads[place])
        flows = {
            pair: [self._column()]
            for pair in itertools.product(given, wanted)
            if pair in fanout.moves
        }
        # The flows sum to the choices at both ends, a tighter relaxation than products of choices.
        for end, picks in enumerate((given, wanted)):
            for layout, columns in picks.items():
                row = {column: 1.0 for pair, (column,) in flows.items() if pair[end] == layout}
                self._row(row | dict.fromkeys(columns, -1.0), 0, 0)
        return flows

    def _fixed_flows(self, fanout: Fanout, reader: int, place: int) -> dict[Pair, list[int]]:
        """Returns the transfers between nodes whose layouts depend on the same choice."""
        flows: dict[Pair, list[int]] = {}
        ends = zip(self._picks[fanout.source], self._picks[reader], strict=True)
        for (column, given, _), (_, wanted, _) in ends:
            pair = given.result, wanted.reads[place]
            if pair in fanout.moves:
                flows.setdefault(pair, []).append(column)
            else:
                self.upper[column] = 0.0  # an impossible transfer excludes the choice
        return flows

    def _leader(self, node: int) -> int:
        return self.problem.follows.get(node, (node, ()))[0]

    def _by_layout(self, node: int, layout: Callable[[Choice], Layout]) -> dict[Layout, list[int]]:
        columns: dict[Layout, list[int]] = {}
        for column, choice, _ in self._picks[node]:
            columns.setdefault(layout(choice), []).append(column)
        return columns

    def _add_tensors(self) -> dict[str, dict[Layout, list[int]]]:
        """Adds constraints that nodes with a shared parameter use one layout."""
        first: dict[str, dict[Layout, list[int]]] = {}
        for index, node in enumerate(self.problem.nodes):
            for name in node.choices[0].tensors:
                own = self._by_layout(index, lambda choice, name=name: choice.tensors[name])  # type: ignore[misc]
                known = first.setdefault(name, own)
                for layout in dict.fromkeys([*known, *own]) if known is not own else ():
                    row = Counter(known.get(layout, ()))
                    row.subtract(own.get(layout, ()))  # equal columns cancel out
                    self._row(row, 0, 0)
        return first

    def add_memory(self, budget: float | None, moments: Sequence[int]) -> None:
        """Constrains memory at some moments to the budget; None adds a column for the peak.

        Parameter bytes have their own column, since all moments include them. Bytes are scaled by
        the total of all parameters for numerical stability.
        """
        sizes: dict[int, float] = {}
        for name, layouts in self._places.items():
            for layout, columns in layouts.items():
                for column in columns:
                    sizes[column] = sizes.get(column, 0.0) + self.problem.tensors[name][layout]
        self._unit = sum(max(x.values()) for x in self.problem.tensors.values()) or 1
        own = self._column(upper=math.inf)
        self._row({c: size / self._unit for c, size in sizes.items()} | {own: -1.0}, 0, 0)
        if budget is None:
            self._peak = self._column(upper=math.inf)
        for row in [
            {own: 1.0},
            *(self._bytes_at(self.problem.moments[i]) | {own: 1.0} for i in moments),
        ]:
            if self._peak is None:
                assert budget is not None
                self._row(row, -math.inf, budget / self._unit)
            else:
                self._row(row | {self._peak: -1.0}, -math.inf, 0)

    def _bytes_at(self, moment: Moment) -> dict[int, float]:
        row: dict[int, float] = {}

        def add(column: int, size: float) -> None:
            if size:
                row[column] = row.get(column, 0.0) + size / self._unit

        for column, choice, _ in self._picks[moment.node] if moment.node is not None else ():
            add(column, choice.workspace_bytes)
        for node, count in moment.values.items():
            for column, choice, _ in self._picks[node]:
                add(column, count * choice.result_bytes)
        for indices, name in ((moment.copies, "copy_bytes"), (moment.arriving, "passing_bytes")):
            for index in indices:
                for pair, columns in self._copies[index].items():
                    for column in columns:
                        add(column, getattr(self.problem.fanouts[index].moves[pair], name))
        return row
