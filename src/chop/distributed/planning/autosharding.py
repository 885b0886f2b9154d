"""Autosharding: search for the fastest plan within a memory budget, with baseline plans."""

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
"""Maximum number of solutions with a reduced budget after a simulation exceeds the memory."""
UNPROVEN = 1.0
"""Gap of a plan that is not a proven optimum of the integer program."""
LARGEST = 1024
"""Maximum number of processes of the meshes that are tried for a model that does not fit."""


@dataclass(frozen=True)
class Sharding:
    """Result of a sharding search.

    Attributes:
        simulation: simulated forward pass of the plan.
        alternatives: simulated baseline plans by name, without those that cannot run.
        failures: by name, the reason why a baseline cannot run.
        fallbacks: matrix products that have to be replicated, with their share of all operations.
        without_rule: operators without a DTensor rule among all in this process; they compute on
            whole tensors.
        gap: relative gap between the integer program's solution and its proven bound; 1 without a
            bound. Unless `exact`, the bound assumes equal layouts in repeated layers and
            elementwise nodes that follow an input.
        planning_seconds: seconds per phase: "layouts", "solving", "simulation".
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
    """Searches the plan with the fastest forward pass that fits the memory.

    Every node may compute in any layout that needs no communication. An integer program selects one
    layout per node. A simulated forward pass then measures DTensor's communication and memory. If
    this exceeds the budget, the program is solved again with a smaller one. The search runs in a
    separate process, so a process group may already exist.

    Args:
        mg: the graph; it is not changed, and may be on the meta device.
        inputs: inputs of the forward pass by name; their values do not matter.
        machine: mesh, speeds and memory.
        exact: allows different layouts in repeated layers, which takes longer.
        time_limit_s: time limit of each integer program, in seconds.
        compare: also simulates the baseline plans, and returns the best of all.
        report: called with a text at the start of each phase.
    Returns: the plan and its baselines.

    Raises:
        PlanError: if no plan fits (the message names the smallest mesh that fits, if any), or the
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
    """Returns the smallest mesh that fits, doubling its last axis; None if none does.

    Args:
        mg: see `find_sharding`.
        inputs: see `find_sharding`.
        machine: machine with a memory budget and a mesh that is too small.
        exact: see `find_sharding`.
        time_limit_s: see `find_sharding`.
    Raises:
        PlanError: if the model cannot run on DTensors.
    """
    whole = sum({id(x): x.nbytes for _, x in named_tensors(mg.model)}.values())
    mesh, budget = machine.mesh, machine.memory_bytes
    assert budget is not None
    while True:
        mesh = (*mesh[:-1], mesh[-1] * 2)
        if math.prod(mesh) > LARGEST:
            return None
        # Even if all tensors were divided evenly, the mesh would be too small.
        if whole / math.prod(mesh) > budget:
            continue
        larger = machine.on(mesh)
        search = _Search(mg, inputs, larger, time_limit_s, _Clock(lambda text: None))
        alternatives = _alternatives(mg, inputs, larger, search.clock)[0]
        try:
            simulation, _ = search.fastest(graph_problem(mg, inputs, larger, exact))
        except SolverTimeoutError:
            simulation = None
        if any(x is not None and search.fits(x) for x in (simulation, *alternatives.values())):
            return mesh


@dataclass(frozen=True)
class _Search:
    """Search for one graph, mesh and forward pass.

    Attributes:
        mg: the graph.
        inputs: inputs of the forward pass.
        machine: mesh, speeds and memory.
        time_limit_s: time limit of each integer program.
        clock: timer of the phases.
    """

    mg: MaseGraph
    inputs: Mapping[str, Any]
    machine: Machine
    time_limit_s: float
    clock: _Clock

    @property
    def budget(self) -> float:
        """Memory budget of a process in bytes."""
        return math.inf if self.machine.memory_bytes is None else self.machine.memory_bytes

    def fits(self, simulation: Simulation) -> bool:
        """Returns whether a simulated forward pass fits the memory."""
        return simulation.peak_bytes <= self.budget

    def fastest(self, built: GraphProblem) -> tuple[Simulation, float]:
        """Returns the fastest forward pass that fits, or the one with least memory, and its gap."""
        allowed = self.budget
        for _ in range(ATTEMPTS):
            built, solution = self._in_time(built, allowed)
            if solution is None:
                break
            simulation = self._simulated(built, solution)
            if self.fits(simulation):
                return simulation, solution.gap
            # The program's memory is an estimate. The budget is reduced by the excess of the
            # simulation.
            allowed = min(allowed, solution.peak_bytes) - max(
                simulation.peak_bytes - self.budget, 1
            )
        # No estimate within the budget fits. The least estimate may still fit in a simulation, and
        # then raises the budget by the difference.
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
        """Returns a solution; None if nothing fits, or after a timeout."""
        try:
            return self._solved(built, budget)
        except SolverTimeoutError as error:
            log.warning("%s", error)
            return built, None

    def _solved(
        self, built: GraphProblem, budget: float = math.inf, least: bool = False
    ) -> tuple[GraphProblem, Solution | None]:
        """Returns a solution with valid choices only, and the problem without the invalid ones."""
        while True:
            with self.clock("solving"):
                solution = solve(built.problem, budget, self.time_limit_s, least)
            if solution is None and built.problem.follows:
                # Followers make the program smaller, but may exclude every plan that fits.
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
    simulations: dict[str, Simulation] = {}
    failures: dict[str, str] = {}
    for name, make in PLANS.items():
        with clock("simulation"):
            try:
                simulations[name] = simulate(mg, make(mg, machine.mesh), inputs, machine)
            except PlanError as error:
                failures[name] = str(error)
    return simulations, failures


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
        f"smallest plan needs {least.peak_bytes:,}; {hint}."
    )


class _Clock:
    """Timer of phases, in seconds."""

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
