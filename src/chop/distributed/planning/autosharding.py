"""Autosharding: the fastest plan within a budget of memory, beside plans that need no search."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chop.distributed.builtin_plans import PLANS
from chop.distributed.plan import ShardingPlan, format_mesh, named_tensors
from chop.distributed.planning.machine import Machine
from chop.distributed.planning.own_process import Report, in_own_process
from chop.distributed.planning.problem import GraphProblem, graph_problem
from chop.distributed.planning.simulation import Simulation, simulate
from chop.distributed.planning.solver import Solution, SolverTimeoutError, solve
from chop.errors import PlanError
from chop.ir.graph import MaseGraph
from chop.private.dtensor import operators_without_rule

log = logging.getLogger(__name__)
NAME = "auto"
ATTEMPTS = 8
"""How often the program is solved again with less memory, where a simulated forward needs more."""
UNPROVEN = 1.0
"""The gap of a plan that the program has not found, or not as the fastest."""
LARGEST = 1024
"""Processes of the largest mesh that is tried where a model does not fit."""


@dataclass(frozen=True)
class Sharding:
    """A plan that was found.

    Attributes:
        simulation: of a forward by the plan.
        alternatives: by name, of plans that need no search; those that cannot run are left out.
        failures: by name, why an alternative cannot run.
        fallbacks: nodes that multiply matrices and have to be replicated, with their share of all
            operations.
        without_rule: operators that DTensor has no rule for, of all that this process has met; they
            compute on whole tensors.
        gap: relative distance of the integer program's solution from its proven bound, 1 where
            nothing is proven; repeated layers are alike in it and elementwise nodes follow an
            input, unless `exact`.
        planning_seconds: by phase: "layouts", "solving", "simulation".
    """

    simulation: Simulation
    alternatives: Mapping[str, Simulation]
    failures: Mapping[str, str] = field(default_factory=dict)
    fallbacks: Mapping[str, float] = field(default_factory=dict)
    without_rule: tuple[str, ...] = ()
    gap: float = 0.0
    planning_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def plan(self) -> ShardingPlan:
        """The plan."""
        return self.simulation.plan


def find_sharding(
    mg: MaseGraph,
    inputs: Mapping[str, Any],
    machine: Machine,
    exact: bool = False,
    time_limit_s: float = 120.0,
    compare: bool = True,
    report: Report = lambda text: None,
) -> Sharding:
    """The plan by which a forward is fastest, of those whose memory fits.

    Every node may compute in any layout in which it sends nothing; an integer program chooses one
    for each. A simulated forward then says what DTensor sends and needs; where that is more than
    the budget, the program is solved again with less. All of it is done in a process of its own,
    so that processes may be joined already.

    Args:
        mg: the graph; it is not changed, and may be on the meta device.
        inputs: of the forward, by name; their numbers do not matter.
        machine: the mesh, speeds and memory.
        exact: repeated layers may have plans of their own; takes longer.
        time_limit_s: for each integer program.
        compare: simulates the plans that need no search too, and takes the best of all.
        report: called with a text at the beginning of each phase.
    Returns: the plan, beside plans that need no search.

    Raises:
        PlanError: no plan fits; the message names the smallest mesh that fits, if one does. Or the
            model cannot run on DTensors.
    """

    def find(report: Report) -> Sharding:
        mg.keep_evaluation("a sharded graph has the nodes of eval()")
        return _find(_Search(mg, inputs, machine, time_limit_s, _Clock(report)), exact, compare)

    return in_own_process(find, report)


def _find(search: _Search, exact: bool, compare: bool) -> Sharding:
    mg, inputs, machine, clock = search.mg, search.inputs, search.machine, search.clock
    with clock("layouts"):
        built = graph_problem(mg, inputs, machine, exact)
    others, failures = _alternatives(mg, inputs, machine, clock) if compare else ({}, {})
    fitting = [x for x in others.values() if search.fits(x)]
    try:
        simulation, gap = search.fastest(built)
    except SolverTimeoutError:
        if not fitting:
            raise
        simulation, gap = fitting[0], UNPROVEN
    best = min(fitting, key=lambda x: x.seconds, default=simulation)
    if not search.fits(simulation) or best.seconds < simulation.seconds:
        simulation = replace(best, plan=replace(best.plan, name=NAME))
    if not search.fits(simulation):
        least = min([simulation, *others.values()], key=lambda x: x.peak_bytes)
        raise PlanError(_does_not_fit(search, least, exact))
    return Sharding(
        simulation,
        others,
        failures,
        built.fallbacks,
        tuple(operators_without_rule()),
        gap,
        clock.seconds,
    )


def _smallest_mesh(
    mg: MaseGraph,
    inputs: Mapping[str, Any],
    machine: Machine,
    exact: bool = False,
    time_limit_s: float = 120.0,
) -> tuple[int, ...] | None:
    """The smallest mesh that fits, its last axis doubled again and again; None where none does.

    Args:
        mg: see `find_sharding`.
        inputs: the same.
        machine: the same; with a budget, and a mesh that is too small.
        exact: the same.
        time_limit_s: the same.
    Raises:
        PlanError: the model cannot run on DTensors.
    """
    whole = sum({id(x): x.nbytes for _, x in named_tensors(mg.model)}.values())
    mesh, budget = machine.mesh, machine.memory_bytes
    assert budget is not None
    while True:
        mesh = (*mesh[:-1], mesh[-1] * 2)
        if math.prod(mesh) > LARGEST:
            return None
        if whole / math.prod(mesh) > budget:
            continue
        larger = machine.on(mesh)
        search = _Search(mg, inputs, larger, time_limit_s, _Clock(lambda text: None))
        found = _alternatives(mg, inputs, larger, search.clock)[0]
        try:
            simulation, _ = search.fastest(graph_problem(mg, inputs, larger, exact))
        except SolverTimeoutError:
            simulation = None
        if any(x is not None and search.fits(x) for x in (simulation, *found.values())):
            return mesh


@dataclass(frozen=True)
class _Search:
    """The search for one graph, mesh and forward.

    Attributes:
        mg: the graph.
        inputs: of the forward.
        machine: the mesh, speeds and memory.
        time_limit_s: for each integer program.
        clock: for the phases.
    """

    mg: MaseGraph
    inputs: Mapping[str, Any]
    machine: Machine
    time_limit_s: float
    clock: _Clock

    @property
    def budget(self) -> float:
        """Bytes of a process."""
        return math.inf if self.machine.memory_bytes is None else self.machine.memory_bytes

    def fits(self, simulation: Simulation) -> bool:
        """Whether a forward has enough memory."""
        return simulation.peak_bytes <= self.budget

    def fastest(self, built: GraphProblem) -> tuple[Simulation, float]:
        """The fastest forward found that fits, and its gap; else the one that needs least.

        The program's memory is an estimate: it is solved again with less where a simulated forward
        needs more than it said, and with more where even the least fits only in truth.
        """
        allowed = self.budget
        for _ in range(ATTEMPTS):
            built, solution = self._in_time(built, allowed)
            if solution is None:
                break
            simulation = self._simulated(built, solution)
            if self.fits(simulation):
                return simulation, solution.gap
            allowed = min(allowed, solution.peak_bytes) - max(
                simulation.peak_bytes - self.budget, 1
            )
        built, least = self._solved(built, least=True)
        assert least is not None
        simulation = self._simulated(built, least)
        if not self.fits(simulation):
            return simulation, UNPROVEN
        built, solution = self._in_time(
            built, least.peak_bytes + self.budget - simulation.peak_bytes
        )
        other = simulation if solution is None else self._simulated(built, solution)
        if self.fits(other) and other.seconds < simulation.seconds and solution is not None:
            return other, solution.gap
        return simulation, UNPROVEN

    def _in_time(self, built: GraphProblem, budget: float) -> tuple[GraphProblem, Solution | None]:
        """A solution; None also where its time is over, and that of least memory may still fit."""
        try:
            return self._solved(built, budget)
        except SolverTimeoutError as error:
            log.warning("%s", error)
            return built, None

    def _solved(
        self, built: GraphProblem, budget: float = math.inf, least: bool = False
    ) -> tuple[GraphProblem, Solution | None]:
        """A solution all of whose choices hold, and the problem without those that do not."""
        while True:
            with self.clock("solving"):
                solution = solve(built.problem, budget, self.time_limit_s, least)
            if solution is None and built.problem.follows:
                built = replace(built, problem=replace(built.problem, follows={}))
                continue
            if solution is None:
                return built, None
            with self.clock("layouts"):
                repaired = built.repaired(solution, self.machine.mesh)
            if repaired is built:
                return built, solution
            built = repaired

    def _simulated(self, built: GraphProblem, solution: Solution) -> Simulation:
        with self.clock("simulation"):
            plan = built.plan(solution, self.machine.mesh, NAME)
            return simulate(self.mg, plan, self.inputs, self.machine)


def _alternatives(
    mg: MaseGraph, inputs: Mapping[str, Any], machine: Machine, clock: _Clock
) -> tuple[dict[str, Simulation], dict[str, str]]:
    found: dict[str, Simulation] = {}
    failures: dict[str, str] = {}
    for name, make in PLANS.items():
        with clock("simulation"):
            try:
                found[name] = simulate(mg, make(mg, machine.mesh), inputs, machine)
            except PlanError as error:
                failures[name] = str(error)
    return found, failures


def _does_not_fit(search: _Search, least: Simulation, exact: bool) -> str:
    memory, shape = search.machine.memory_bytes, search.machine.mesh
    mesh = _smallest_mesh(search.mg, search.inputs, search.machine, exact, search.time_limit_s)
    hint = (
        f"the smallest mesh that fits is {format_mesh(mesh)} (its last axis doubled)"
        if mesh is not None
        else f"no mesh of up to {LARGEST} processes fits"
    )
    return (
        f"no plan on a mesh of {format_mesh(shape)} fits into {memory:,} bytes per process: the "
        f"least that was found is {least.peak_bytes:,}; {hint}."
    )


class _Clock:
    """Seconds by phase."""

    def __init__(self, report: Report) -> None:
        self.seconds: dict[str, float] = {}
        self._report, self._phase, self._start = report, "", 0.0

    def __call__(self, phase: str) -> _Clock:
        self._report(phase)
        self._phase = phase
        return self

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self._start
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + spent
