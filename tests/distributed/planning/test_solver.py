"""The integer program finds what trying all choices finds, on small random problems."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from chop.distributed.planning.layouts import Layout
from chop.distributed.planning.solver import (
    Choice,
    Fanout,
    Moment,
    Move,
    Node,
    Problem,
    Solution,
    SolverTimeoutError,
    evaluate,
    moment_bytes,
    solve,
)
from chop.errors import PlanError

R, S, P = ("R",), ("S0",), ("P",)
LAYOUTS: list[Layout] = [R, S, ("S1",), P]


def brute_force(problem: Problem) -> list[Solution]:
    """All choices that can be made; those of followers are their leaders'."""
    leaders = [i for i in range(len(problem.nodes)) if i not in problem.follows]
    found = []
    for given in itertools.product(*(range(len(problem.nodes[i].choices)) for i in leaders)):
        chosen = dict(zip(leaders, given, strict=True))
        for member, (leader, mapped) in problem.follows.items():
            chosen[member] = mapped[chosen[leader]]
        found.append(evaluate(problem, [chosen[i] for i in range(len(problem.nodes))]))
    return [each for each in found if each is not None]


class Generator:
    """Random problems of a few nodes, with all that a graph can have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tensors: dict[str, dict[Layout, int]] = {}

    def problem(self) -> Problem:
        count = self.random.randint(3, 6)
        edges = list(self._edges(count))
        nodes = tuple(self._node(i, sum(e[1] == i for e in edges)) for i in range(count))
        fanouts = tuple(self._fanouts(edges))
        moments = tuple(self._moment(count, len(fanouts)) for _ in range(self.random.randint(0, 4)))
        return Problem(nodes, fanouts, self.tensors, moments, self._follows(nodes))

    def _edges(self, count: int) -> Iterator[tuple[int, int, int]]:
        """(source, reader, place); a node that stands for several may read what it gives."""
        for reader in range(1, count):
            sources = self.random.sample(range(reader), self.random.randint(0, min(2, reader)))
            if self.random.random() < 0.15:
                sources.append(reader)
            for place, source in enumerate(sources):
                yield source, reader, place

    def _node(self, index: int, inputs: int) -> Node:
        pick = self.random.choice
        name = self._tensor(index)
        choices = tuple(
            Choice(
                tuple(pick(LAYOUTS) for _ in range(inputs)),
                pick(LAYOUTS),
                self.random.choice([0.0, self.random.uniform(0, 3)]),
                self.random.randint(0, 20),
                self.random.randint(0, 10),
                {name: pick(list(self.tensors[name]))} if name else {},
            )
            for _ in range(self.random.randint(1, 4))
        )
        return Node(f"n{index}", choices, self.random.randint(1, 3))

    def _tensor(self, index: int) -> str | None:
        """A parameter: none, a new one, or that of an earlier node."""
        if self.random.random() < 0.5:
            return None
        if self.tensors and self.random.random() < 0.4:
            return self.random.choice(list(self.tensors))
        layouts = self.random.sample(LAYOUTS[:3], self.random.randint(1, 3))
        self.tensors[f"w{index}"] = {layout: self.random.randint(1, 40) for layout in layouts}
        return f"w{index}"

    def _fanouts(self, edges: list[tuple[int, int, int]]) -> Iterator[Fanout]:
        for source in sorted({source for source, _, _ in edges}):
            readers = tuple((reader, place) for s, reader, place in edges if s == source)
            moves = {
                (given, wanted): Move()
                if given == wanted
                else Move(self.random.uniform(0, 2), *(self.random.randint(0, 9) for _ in "ab"))
                for given, wanted in itertools.product(LAYOUTS, LAYOUTS)
                if self.random.random() < 0.85
            }
            yield Fanout(source, readers, moves, self.random.randint(1, 3))

    def _moment(self, nodes: int, fanouts: int) -> Moment:
        alive = self.random.sample(range(nodes), self.random.randint(1, nodes))
        copies = self.random.sample(range(fanouts), self.random.randint(0, fanouts))
        arriving = self.random.sample(range(fanouts), self.random.randint(0, fanouts))
        values = {i: self.random.randint(1, 2) for i in alive}
        return Moment(self.random.choice(alive), values, tuple(copies), tuple(arriving))

    def _follows(self, nodes: tuple[Node, ...]) -> dict[int, tuple[int, tuple[int, ...]]]:
        """In every second problem some nodes follow the first one or the second."""
        if self.random.random() < 0.5:
            return {}
        found = {}
        for index in range(2, len(nodes)):
            if self.random.random() < 0.4:
                leader = self.random.randint(0, 1)
                own = range(len(nodes[index].choices))
                mapped = tuple(self.random.choice(own) for _ in nodes[leader].choices)
                found[index] = leader, mapped
        return found


def check(seed: int) -> set[str]:
    """Compares at several budgets; says what the problem had."""
    problem = Generator(seed).problem()
    every = brute_force(problem)
    if not every:
        assert solve(problem) is None
        return {"impossible"}
    least = solve(problem, least=True)
    sizes = sorted({each.peak_bytes for each in every})
    assert least is not None and least.peak_bytes == sizes[0]
    assert evaluate(problem, least.choices) == least_without_gap(least)
    assert solve(problem, sizes[0] - 1) is None
    for budget in (*(sizes[len(sizes) * i // 4] for i in range(4)), math.inf):
        best = min(each.seconds for each in every if each.peak_bytes <= budget)
        found = solve(problem, budget)
        assert found is not None and found.peak_bytes <= budget
        assert found.choices in {each.choices for each in every}
        assert found.seconds == pytest.approx(best, rel=2e-4, abs=1e-9)
    return features(problem, sizes)


def least_without_gap(solution: Solution) -> Solution:
    return Solution(
        solution.choices, solution.seconds, solution.parameter_bytes, solution.peak_bytes
    )


def features(problem: Problem, sizes: list[int]) -> set[str]:
    owners = [name for node in problem.nodes for name in node.choices[0].tensors]
    has = {
        "follows": bool(problem.follows),
        "tied": len(set(owners)) < len(owners),
        "moments": bool(problem.moments),
        "several readers": any(len(fanout.readers) > 1 for fanout in problem.fanouts),
        "reads itself": any((f.source, 0) in f.readers for f in problem.fanouts),
        "budgets": len(sizes) > 3,
    }
    return {name for name, is_there in has.items() if is_there}


@pytest.mark.long
def test_solutions_are_those_of_trying_all():
    found = [check(seed) for seed in range(500)]
    names = ("impossible", "follows", "tied", "moments", "several readers", "reads itself")
    counts = {name: sum(name in each for each in found) for name in (*names, "budgets")}
    assert min(counts.values()) >= 2, counts
    assert counts["budgets"] >= 30, counts


def example() -> Problem:
    """A tied layer of two, whose value two nodes read."""
    layer = (
        Choice((), R, 4.0, 8, 2, {"w": R}),
        Choice((), P, 1.0, 8, 0, {"w": S}),
    )
    readers = (Choice((R,), R, 1.0, 4), Choice((S,), S, 0.5, 2))
    moves = {
        (R, R): Move(),
        (R, S): Move(0.0, 4),
        (P, R): Move(2.0, 8, 3),
        (P, S): Move(1.0, 4, 1),
    }
    return Problem(
        (Node("layer", layer, 2), Node("a", readers), Node("b", readers)),
        (Fanout(0, ((1, 0), (2, 0)), moves, 2),),
        {"w": {R: 20, S: 10}},
        (Moment(0, {0: 1}), Moment(1, {0: 2, 1: 1}, (0,), (0,)), Moment(2, {1: 1, 2: 1}, (0,))),
    )


def test_time_and_memory_of_an_example_by_hand():
    problem = example()
    whole = evaluate(problem, (0, 0, 0))
    assert whole == Solution((0, 0, 0), 2 * 4 + 1 + 1, 20, 20 + 16 + 4)
    assert moment_bytes(problem, (0, 0, 0)) == [8 + 2, 2 * 8 + 4, 4 + 4]
    once = evaluate(problem, (1, 0, 0))  # one copy serves both readers
    assert once == Solution((1, 0, 0), 2 * 1 + 1 + 1 + 2 * 2, 10, 10 + 16 + 4 + 8 + 3)
    both = evaluate(problem, (1, 0, 1))
    assert both is not None
    assert (both.seconds, both.parameter_bytes) == (2 * 1 + 1 + 0.5 + 2 * (2 + 1), 10)
    assert both.peak_bytes == 10 + 16 + 4 + (8 + 4) + (3 + 1)


def test_the_budget_decides_which_choices_of_an_example_are_taken():
    problem = example()
    fastest = solve(problem)
    assert fastest is not None and fastest.choices == (1, 1, 1)
    assert fastest.seconds == 2 * 1 + 2 * 0.5 + 2 * 1
    assert fastest.peak_bytes == 10 + 16 + 2 + 4 + 1
    least = solve(problem, least=True)
    assert least is not None and least.peak_bytes == fastest.peak_bytes
    assert solve(problem, fastest.peak_bytes - 1) is None


def test_one_parameter_has_one_layout():
    own = [tuple(Choice((), R, 1.0, tensors={"w": x}) for x in each) for each in ((R, S), (R,))]
    problem = Problem((Node("a", own[0]), Node("b", own[1])), (), {"w": {R: 8, S: 4}})
    assert evaluate(problem, (1, 0)) is None
    found = solve(problem)
    assert found is not None and (found.choices, found.parameter_bytes) == ((0, 0), 8)
    assert solve(problem, 7) is None


def hard() -> Problem:
    """Nodes are parted so that several rows of numbers are halved: nobody finds that soon."""
    pick, count, rows = random.Random(1), 40, 5
    nodes: list[Node] = []
    moments, follows = [], {}
    for _ in range(rows):
        sizes = [pick.randrange(100) for _ in range(count)]
        half = sum(sizes) // 2
        for limit, is_taken in ((half, True), (sum(sizes) - half, False)):
            first = len(nodes)
            for index, size in enumerate(sizes):
                pair = (size, 0) if is_taken else (0, size)
                nodes.append(Node("", tuple(Choice((), R, 1.0, x) for x in pair)))
                if first:
                    follows[first + index] = index, (0, 1)
            nodes.append(Node("", (Choice((), R, 0.0, 10_000 - limit),)))
            alive = dict.fromkeys(range(first, len(nodes)), 1)
            moments.append(Moment(len(nodes) - 1, alive))
    return Problem(tuple(nodes), (), {}, tuple(moments), follows)


def test_a_program_that_is_not_solved_in_time_raises():
    with pytest.raises(SolverTimeoutError, match=r"more memory, or a larger mesh") as caught:
        solve(hard(), 10_000, time_limit_s=1.0)
    assert isinstance(caught.value, PlanError)
