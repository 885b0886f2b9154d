"""Integer program of layouts: the fastest choice for every node within a budget of memory.

Every node has a binary variable per layout in which it can compute. Along each edge the layout that
is given flows into the layout that is read: a continuous variable per pair, whose sums are the
choices at both ends. So the relaxation is tight, where products of choices would not be. A copy in
another layout is made once for all readers of a value.

Nodes that stand for several, as those of repeated layers do, count as often.
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
"""Relative distance from the optimum at which a solution counts as proven."""
ADDED = 8
"""Moments that are added to a program at a time."""


class SolverTimeoutError(PlanError):
    """The integer program takes longer than it may."""


@dataclass(frozen=True)
class Choice:
    """One way in which a node computes.

    Attributes:
        reads: the layout of each of its inputs.
        result: the layout of what it gives.
        seconds: its time.
        result_bytes: that a process keeps while the result is needed.
        workspace_bytes: that it needs beyond, while it computes.
        tensors: the layouts of parameters, by name.
    """

    reads: tuple[Layout, ...]
    result: Layout
    seconds: float = 0.0
    result_bytes: int = 0
    workspace_bytes: int = 0
    tensors: Mapping[str, Layout] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """A node, or several that are tied.

    Attributes:
        name: for reports.
        choices: at least one.
        count: how many nodes it stands for.
    """

    name: str
    choices: tuple[Choice, ...]
    count: int = 1


@dataclass(frozen=True)
class Move:
    """What a transfer costs.

    Attributes:
        seconds: its time.
        copy_bytes: of the copy, while it is needed.
        passing_bytes: beyond, while it is made.
    """

    seconds: float = 0.0
    copy_bytes: int = 0
    passing_bytes: int = 0


@dataclass(frozen=True)
class Fanout:
    """The readers of one value.

    Attributes:
        source: the node that gives it.
        readers: the nodes that read it, and at which of their inputs.
        moves: from one layout to another; those that are left out are not possible.
        count: how many such values there are.
    """

    source: int
    readers: tuple[tuple[int, int], ...]
    moves: Mapping[tuple[Layout, Layout], Move]
    count: int = 1


@dataclass(frozen=True)
class Moment:
    """What is in memory while a node runs, or while what it reads is sent.

    Attributes:
        node: that runs; None: values are sent.
        values: the nodes whose results are there, and how many of each.
        copies: the fan-outs whose copies are there.
        arriving: those whose copies are made now.
    """

    node: int | None
    values: Mapping[int, int]
    copies: tuple[int, ...] = ()
    arriving: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """What is to be solved.

    Attributes:
        nodes: in order.
        fanouts: the edges by value.
        tensors: bytes of a process by parameter and layout, each as often as it is there.
        moments: of memory.
        follows: nodes whose choice another node's decides, which follows none: that node, and for
            each of its choices the one of the follower.
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
        choices: an index for each node.
        seconds: of all nodes and transfers.
        kept_bytes: of the parameters.
        peak_bytes: of these, and of results and copies at the worst moment.
        gap: relative distance from the proven bound.
    """

    choices: tuple[int, ...]
    seconds: float
    kept_bytes: int
    peak_bytes: int
    gap: float = 0.0


def _tensor_layouts(problem: Problem, choices: Sequence[int]) -> dict[str, Layout]:
    """The layout of each parameter; no two nodes have it in different ones.

    Raises:
        PlanError: two nodes have one parameter in different layouts.
    """
    found: dict[str, Layout] = {}
    for node, index in zip(problem.nodes, choices, strict=True):
        for name, layout in node.choices[index].tensors.items():
            if found.setdefault(name, layout) != layout:
                raise PlanError(f"'{name}' would lie as {found[name]} and as {layout}.")
    return found


def evaluate(problem: Problem, choices: Sequence[int]) -> Solution | None:
    """Time and memory of given choices; None where a transfer is not possible.

    This is the definition of what `solve` minimizes.
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
    kept = sum(problem.tensors[name][layout] for name, layout in layouts.items())
    peak = max(moment_bytes(problem, choices), default=0)
    return Solution(tuple(choices), seconds, kept, kept + peak)


def moment_bytes(problem: Problem, choices: Sequence[int]) -> list[int]:
    """Bytes of results, copies and workspaces at each moment, for choices that can be made."""
    chosen = [node.choices[i] for node, i in zip(problem.nodes, choices, strict=True)]
    copies = [_copies(fanout, chosen) or [] for fanout in problem.fanouts]
    return [_bytes_at(moment, chosen, copies) for moment in problem.moments]


def _copies(fanout: Fanout, chosen: Sequence[Choice]) -> list[Move] | None:
    """The transfers of a value, one for each layout that is read; None: one is impossible."""
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
    """The fastest choices within a budget, by HiGHS.

    Most moments of memory never matter, so the program has only those at which an earlier solution
    did not fit.

    Args:
        problem: what is to be solved.
        budget: bytes that a process has; see `Solution.peak_bytes`.
        time_limit_s: after which the best choices so far are taken.
        least: minimizes memory, and not time.
    Returns: None where nothing fits.

    Raises:
        SolverTimeoutError: the time was over before choices were found that fit.
    """
    end = time.monotonic() + time_limit_s
    whole = moment_bytes(problem, [0] * len(problem.nodes))
    moments = sorted(range(len(whole)), key=lambda i: -whole[i])[:ADDED]
    while True:
        found = _solve(problem, None if least else budget, moments, end)
        if found is None:
            return None
        solution, gap = found
        sizes = moment_bytes(problem, solution.choices)
        limit = (
            max((sizes[i] for i in moments), default=0) if least else budget - solution.kept_bytes
        )
        over = [i for i, size in enumerate(sizes) if size > limit + 0.5 and i not in moments]
        if not over:
            return replace(solution, gap=gap)
        over.sort(key=lambda i: -sizes[i])
        moments += over[:ADDED]


def _solve(
    problem: Problem, budget: float | None, moments: Sequence[int], end: float
) -> tuple[Solution, float] | None:
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = _Program(problem)
    if budget is None or not math.isinf(budget):
        program.add_memory(budget, moments)
    options = {"mip_rel_gap": GAP, "time_limit": max(1.0, end - time.monotonic())}
    found = milp(
        program.cost(least=budget is None),
        constraints=LinearConstraint(program.matrix(), program.low, program.high),
        integrality=program.integrality,
        bounds=Bounds(0, program.upper),
        options=options,
    )
    if found.x is None:
        if found.status == 1:
            raise SolverTimeoutError(
                "the integer program has no solution yet when its time is over; allow a longer "
                "time_limit_s, more memory, or a larger mesh."
            )
        return None
    solution = evaluate(problem, program.chosen(found.x))
    assert solution is not None
    return solution, float(found.mip_gap or 0.0)


Pair = tuple[Layout, Layout]
"""The layouts at both ends of a transfer."""


class _Program:
    """The rows and columns of the integer program."""

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
        """The columns that make a node take a choice, the choices, and how many nodes it is."""
        node = self.problem.nodes[index]
        leader, mapped = self.problem.follows.get(index, (index, range(len(node.choices))))
        for column, choice in zip(self._leaders[leader], mapped, strict=True):
            yield column, node.choices[choice], node.count

    def cost(self, least: bool) -> list[float]:
        """What is minimized: seconds in units of the longest, or bytes."""
        if least:
            return [float(i == self._peak) for i in range(len(self.costs))]
        unit = max(self.costs) or 1.0
        return [cost / unit for cost in self.costs]

    def matrix(self) -> Any:
        """The rows, sparse."""
        from scipy.sparse import csr_array

        rows, columns, numbers = self._entries
        return csr_array((numbers, (rows, columns)), shape=(len(self.low), len(self.costs)))

    def chosen(self, x: Sequence[float]) -> list[int]:
        """The choices of a solution."""
        found = []
        for index, node in enumerate(self.problem.nodes):
            leader, mapped = self.problem.follows.get(index, (index, range(len(node.choices))))
            columns = self._leaders[leader]
            found.append(mapped[max(range(len(columns)), key=lambda i: x[columns[i]])])
        return found

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
        """By transfer the columns that make it happen; what several readers need is sent once."""
        each = [self._flows(fanout, reader, place) for reader, place in fanout.readers]
        moved = {
            pair: [columns[pair] for columns in each if pair in columns]
            for columns in each
            for pair in columns
            if pair[0] != pair[1]
        }
        found: dict[Pair, list[int]] = {}
        for pair, users in moved.items():
            seconds = fanout.count * fanout.moves[pair].seconds
            if len(users) == 1:
                found[pair] = users[0]
                for column in users[0]:
                    self.costs[column] += seconds
                continue
            shared = self._column(seconds)
            found[pair] = [shared]
            for columns in users:
                self._row(dict.fromkeys(columns, -1.0) | {shared: 1.0}, 0, math.inf)
        return found

    def _flows(self, fanout: Fanout, reader: int, place: int) -> dict[Pair, list[int]]:
        """By transfer to one reader the columns that make it happen."""
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
        for end, picks in enumerate((given, wanted)):
            for layout, columns in picks.items():
                row = {column: 1.0 for pair, (column,) in flows.items() if pair[end] == layout}
                self._row(row | dict.fromkeys(columns, -1.0), 0, 0)
        return flows

    def _fixed_flows(self, fanout: Fanout, reader: int, place: int) -> dict[Pair, list[int]]:
        """Between nodes that one choice decides, that choice makes the transfer."""
        found: dict[Pair, list[int]] = {}
        ends = zip(self._picks[fanout.source], self._picks[reader], strict=True)
        for (column, given, _), (_, wanted, _) in ends:
            pair = given.result, wanted.reads[place]
            if pair in fanout.moves:
                found.setdefault(pair, []).append(column)
            else:
                self.upper[column] = 0.0
        return found

    def _leader(self, node: int) -> int:
        return self.problem.follows.get(node, (node, ()))[0]

    def _by_layout(self, node: int, layout: Callable[[Choice], Layout]) -> dict[Layout, list[int]]:
        found: dict[Layout, list[int]] = {}
        for column, choice, _ in self._picks[node]:
            found.setdefault(layout(choice), []).append(column)
        return found

    def _add_tensors(self) -> dict[str, dict[Layout, list[int]]]:
        """Nodes with one parameter have it in one layout."""
        first: dict[str, dict[Layout, list[int]]] = {}
        for index, node in enumerate(self.problem.nodes):
            for name in node.choices[0].tensors:
                own = self._by_layout(index, lambda choice, name=name: choice.tensors[name])  # type: ignore[misc]
                known = first.setdefault(name, own)
                for layout in dict.fromkeys([*known, *own]) if known is not own else ():
                    row = Counter(known.get(layout, ()))
                    row.subtract(own.get(layout, ()))  # what one choice decides cancels out
                    self._row(row, 0, 0)
        return first

    def add_memory(self, budget: float | None, moments: Sequence[int]) -> None:
        """At some moments no more than the budget; None adds a column of what is the most.

        What parameters keep is a column of its own, since all moments have it. Bytes are written in
        units of all that is kept, for the sake of the solver.
        """
        sizes: dict[int, float] = {}
        for name, layouts in self._places.items():
            for layout, columns in layouts.items():
                for column in columns:
                    sizes[column] = sizes.get(column, 0.0) + self.problem.tensors[name][layout]
        self._unit = sum(max(x.values()) for x in self.problem.tensors.values()) or 1
        kept = self._column(upper=math.inf)
        self._row({c: size / self._unit for c, size in sizes.items()} | {kept: -1.0}, 0, 0)
        if budget is None:
            self._peak = self._column(upper=math.inf)
        for row in [
            {kept: 1.0},
            *(self._bytes_at(self.problem.moments[i]) | {kept: 1.0} for i in moments),
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
