"""Laws of circuit components: RTL, plan and integer twin of an operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.hardware.check.testbench import BenchRun
from chop.hardware.design.components import get_component
from chop.hardware.design.plan import RTL, Component, ComponentPlan, Site
from chop.hardware.design.port import Port
from chop.hardware.design.stream import Stream
from chop.nn.integer import Edge
from chop.nn.integer.mask import KeptKeys
from chop.testing.circuit_bench import (
    MOST_CYCLES_BEFORE_RESET,
    PROFILES,
    Bench,
    check_passed,
)
from chop.testing.laws import obeys

FULL_SPEED = "none"
"""Profile without stalls, in which times are those of the plan."""
SPARE_CYCLES = 12
"""Cycles by which a first result may leave ahead of its plan."""


class Driven(NamedTuple):
    """Samples that enter by a stream.

    Attributes:
        stream: order of the codes.
        codes: int64 (samples, *stream.shape).
    """

    stream: Stream
    codes: Tensor


def draw_codes(
    edge: Edge,
    *shape: int,
    samples: int = 5,
    seed: int = 0,
    lanes: int = 1,
    positions: Tensor | None = None,
) -> Driven:
    """Draws random codes of an edge, the extremes among them.

    Args:
        edge: bounds and step of the codes.
        shape: shape of one sample.
        samples: number of samples.
        seed: seed of the codes.
        lanes: lanes that the producer sends; the plan may ask for others.
        positions: places in the stream, as in `Stream`. Default: the last dimension fastest.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(edge.low, edge.high + 1, (samples, *shape), generator=generator)
    flat = codes.view(-1)
    places = torch.randperm(flat.numel(), generator=generator)[: max(flat.numel() // 8, 2)]
    flat[places] = torch.tensor([edge.low, edge.high]).repeat(len(places))[: len(places)]
    if positions is not None:
        return Driven(Stream(positions, edge, lanes), codes)
    return Driven(Stream.in_order(shape, edge, lanes), codes)


def check_component(
    operator: nn.Module,
    *inputs: Driven,
    fold: int = 1,
    profiles: Collection[str] = PROFILES,
    kept: KeptKeys | None = None,
    is_soft: bool = False,
) -> ComponentPlan:
    """Checks the circuit of an integer operator by all laws that apply to it.

    Needs Verilator, Icarus Verilog and Yosys.

    Args:
        operator: integer twin, an `IntegerOperator` with a row in
            `chop.hardware.design.components`.
        inputs: samples for each input, by `draw_codes` or `Driven(stream, codes)`; sizes that
            divide nothing find most mistakes.
        fold: cycles that the operator may take for a sample, as in `Site`.
        profiles: stall profiles, names of `chop.hardware.check.profiles.PROFILES`. Times are
            checked where "none" is among them.
        kept: mask of a softmax, made of the last input, (1, 1, keys).
        is_soft: multipliers are made of lookup tables, as in `Site`.
    Returns:
        The plan, for checks of one's own.
    Raises:
        AssertionError: names the law that is broken.
        ConfigError: the component refuses these streams.
        UnavailableError: a tool is not installed.

    Example:
        >>> from chop.nn.integer import Edge, IntegerReLU
        >>> edge = Edge.of(0.5, -8, 7)
        >>> plan = check_component(IntegerReLU(edge), draw_codes(edge, 3))  # doctest: +SKIP
    """
    case = Case(operator, inputs, fold, tuple(profiles), kept, is_soft)
    laws: list[Callable[[Case], None]] = [
        _it_has_a_row_by_its_class,
        _the_plan_fits_its_streams,
        _codes_stay_within_the_proven_bounds,
        _linters_are_silent,
        _rtl_equals_integer_under_all_stalls,
    ]
    if FULL_SPEED in profiles:
        laws += [_samples_leave_as_often_as_planned, _the_first_result_leaves_when_planned]
    for law in [*laws, _a_reset_starts_afresh]:
        try:
            obeys(law, case)
        except AssertionError as error:
            if isinstance(error.__cause__, ConfigError):
                raise error.__cause__ from None  # a refusal of these streams, not a broken law
            raise
    return case.plan


@dataclass(frozen=True, eq=False)
class Case:
    """An operator and its samples; what they give is computed once."""

    operator: nn.Module
    inputs: Sequence[Driven]
    fold: int
    profiles: Sequence[str]
    kept: KeptKeys | None
    is_soft: bool

    @property
    def label(self) -> str:
        """Returns the name of the class, for messages."""
        return type(self.operator).__name__

    @cached_property
    def component(self) -> Component:
        """Row of the operator."""
        found = get_component(type(self.operator))
        assert found is not None, f"chop.hardware.design.components has no row of {self.label}"
        return found

    @cached_property
    def plan(self) -> ComponentPlan:
        """Plan of the operator where these streams arrive."""
        streams = [stream for stream, _ in self.inputs]
        return self.component.plan(Site(self.operator, streams, self.fold, self.kept, self.is_soft))

    @cached_property
    def expected(self) -> Tensor:
        """Codes that the integer twin computes."""
        given = [codes for _, codes in self.inputs]
        if self.kept is not None:
            given = [*given[:-1], self.kept(given[-1].flatten(1))]
        found: Tensor = self.operator(*given)
        return found

    @cached_property
    def bench(self) -> Bench:
        """Bench of the module with the parameters of the plan."""
        plan = self.plan
        beats = {
            Port.of(f"data_in_{k}", stream.with_lanes(lanes), True): stream.with_lanes(lanes).sent(
                codes
            )
            for k, ((stream, codes), lanes) in enumerate(zip(self.inputs, plan.lanes, strict=True))
        }
        beats[Port.of("data_out_0", plan.out, False)] = plan.out.sent(self.expected)
        files = {key: f"memory/{key.lower()}.hex" for key in plan.memories}
        return Bench(
            plan.module or self.component.module,
            {**plan.parameters, **files},
            beats,
            {files[key]: memory for key, memory in plan.memories.items()},
            self.component.folder,
            is_beat_by_beat=True,
        )

    @cached_property
    def runs(self) -> Mapping[str, BenchRun]:
        """Runs by profile."""
        with self.bench.compiled() as bench:
            return bench.run(self.profiles)

    @property
    def left(self) -> Sequence[int]:
        """Cycle in which each beat leaves at full speed."""
        return self.runs[FULL_SPEED].left["data_out_0"]


def _it_has_a_row_by_its_class(case: Case) -> None:
    """Emission finds the row by the class, and the source by the row's module and folder."""
    file, folder = f"{case.component.module}.sv", case.component.folder
    assert any((home / file).is_file() for home in (folder, RTL)), f"there is no {folder / file}"


def _the_plan_fits_its_streams(case: Case) -> None:
    """Lanes divide the inputs, and the shape that leaves is that of the integer twin."""
    plan = case.plan
    assert len(plan.lanes) == len(case.inputs), f"it has lanes for {len(plan.lanes)} inputs"
    for (stream, _), lanes in zip(case.inputs, plan.lanes, strict=True):
        assert stream.size % lanes == 0, f"{lanes} lanes do not divide {stream.size} codes"
    shape = tuple(case.expected.shape[1:])
    assert plan.out.shape == shape, f"it plans samples of {plan.out.shape}, the twin's are {shape}"
    most = max(port.beats for port in case.bench.beats)
    assert plan.cycles >= most, f"{most} beats of a sample cannot pass in {plan.cycles} cycles"


def _codes_stay_within_the_proven_bounds(case: Case) -> None:
    """No code of the integer twin is outside of the edge that it declares."""
    edge, found = case.plan.out.edge, case.expected
    low, high = int(found.min()), int(found.max())
    assert edge.low <= low and high <= edge.high, (
        f"codes reach from {low} to {high}, the edge from {edge.low} to {edge.high}"
    )


def _linters_are_silent(case: Case) -> None:
    """Verilator with all warnings and Yosys have no complaint."""
    with case.bench.compiled() as bench:
        complaints = bench.complaints()
    assert not complaints, complaints


def _rtl_equals_integer_under_all_stalls(case: Case) -> None:
    """Each code that leaves is that of the integer twin, and streams keep their rules."""
    check_passed(case.runs)


def _samples_leave_as_often_as_planned(case: Case) -> None:
    """At full speed the cycles between samples are those of the plan, within 3 % or 2."""
    beats = case.plan.out.beats
    check_interval(case.left[beats - 1 :: beats], case.plan.cycles)


def check_interval(left: Sequence[int], cycles: int) -> None:
    """Checks the interval of the samples after the first ones; a single sample has none."""
    if len(left) < 2:
        return
    first = len(left) // 2 - 1 if len(left) < 4 else len(left) // 2
    interval = (left[-1] - left[first]) / (len(left) - 1 - first)
    assert abs(interval - cycles) <= max(2, 0.03 * cycles), (
        f"{cycles} cycles are planned between samples, the circuit takes {interval:g}: {left}"
    )


def _the_first_result_leaves_when_planned(case: Case) -> None:
    """The first beat leaves no later than the plan says, and hardly earlier."""
    planned, left = planned_cycles(case), case.left[0] - 1
    assert left <= planned <= left + SPARE_CYCLES, (
        f"the first result is planned after {planned} cycles, and leaves after {left}: see "
        "`latency`, `holds` and `needs` of the plan"
    )


def planned_cycles(case: Case) -> int:
    """Returns the cycles from the first beat in to the first out, where a beat comes in each."""
    plan, needed = case.plan, [0]
    for k, ((stream, _), lanes) in enumerate(zip(case.inputs, plan.lanes, strict=True)):
        size, hold = stream.size // lanes, plan.holds[k] if plan.holds else 0.0
        last = max(math.ceil(min(hold, 1) * size) - 1, 0)
        last = int(plan.needs[k][0]) if plan.needs else last
        needed.append(last + math.ceil(max(hold - 1, 0) * size))
    return max(needed) + plan.latency


def _a_reset_starts_afresh(case: Case) -> None:
    """After a reset in the middle of a sample, results are those of a new circuit."""
    cycles = min(case.plan.cycles * 3 // 2 + 3, MOST_CYCLES_BEFORE_RESET)
    with case.bench.compiled(case.bench.top_with_reset(cycles)) as bench:
        check_passed(bench.run(case.profiles[:1]))
