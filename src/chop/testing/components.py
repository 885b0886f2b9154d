"""Laws of circuit components: RTL, plan and integer twin of an operator."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.hardware.check.testbench import BenchRun
from chop.hardware.design.components import get_component
from chop.hardware.design.plan import (
    NO_LOAD,
    RTL,
    Component,
    ComponentPlan,
    Site,
    has_load_port,
)
from chop.hardware.design.port import Port
from chop.hardware.design.stream import Stream
from chop.nn.integer import Edge
from chop.nn.integer.mask import KeptKeys
from chop.testing.circuit_bench import PROFILES, Bench, check_passed
from chop.testing.laws import obeys

FULL_SPEED = "none"
"""Stall profile without stalls, under which timing equals the plan."""
SPARE_CYCLES = 12
"""Cycles by which a first result may precede its plan."""
MAX_CYCLES_BEFORE_RESET = 2000
RESET_CYCLES = (1, 2, 5)
"""Lengths of the resets within a sample."""


class Driven(NamedTuple):
    """Samples for an input stream.

    Attributes:
        stream: order of the codes in the stream.
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
    """Draws random codes of an edge, including the extremes.

    Args:
        edge: bounds and step of the codes.
        shape: shape of one sample.
        samples: number of samples.
        seed: seed of the codes.
        lanes: lanes of the producer. The plan may require others.
        positions: positions in the stream, as in `Stream`. Default: the last dimension varies
            fastest.
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
        inputs: samples for each input, by `draw_codes` or `Driven(stream, codes)`. Sizes with few
            divisors find most errors.
        fold: maximum number of cycles of the operator per sample, as in `Site`.
        profiles: stall profiles, names of `chop.hardware.check.profiles.PROFILES`. Timing is
            checked if "none" is included.
        kept: mask of a softmax, made from the last input, (1, 1, keys).
        is_soft: builds multipliers from lookup tables, as in `Site`.
    Returns:
        The plan, for further checks.
    Raises:
        AssertionError: if a law is broken; the message names it.
        ConfigError: if the component does not support these streams.
        UnavailableError: if a tool is not installed.

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
                raise error.__cause__ from None  # rejected streams are not a broken law
            raise
    return case.plan


@dataclass(frozen=True, eq=False)
class Case:
    """Operator with samples and cached results."""

    operator: nn.Module
    inputs: Sequence[Driven]
    fold: int
    profiles: Sequence[str]
    kept: KeptKeys | None
    is_soft: bool

    @property
    def label(self) -> str:
        """Name of the class, for messages."""
        return type(self.operator).__name__

    @cached_property
    def component(self) -> Component:
        """Component of the operator."""
        component = get_component(type(self.operator))
        assert component is not None, f"chop.hardware.design.components has no row for {self.label}"
        return component

    @cached_property
    def plan(self) -> ComponentPlan:
        """Plan of the operator for these streams."""
        streams = [stream for stream, _ in self.inputs]
        return self.component.planned(
            Site(self.operator, streams, self.fold, self.kept, self.is_soft)
        )

    @cached_property
    def expected(self) -> Tensor:
        """Codes computed by the integer twin."""
        given = [codes for _, codes in self.inputs]
        if self.kept is not None:
            given = [*given[:-1], self.kept(given[-1].flatten(1))]
        codes: Tensor = self.operator(*given)
        return codes

    @cached_property
    def bench(self) -> Bench:
        """Test bench of the module with the parameters of the plan."""
        plan = self.plan
        beats = {
            Port.of(f"data_in_{k}", stream.with_lanes(lanes), True): stream.with_lanes(lanes).sent(
                codes
            )
            for k, ((stream, codes), lanes) in enumerate(zip(self.inputs, plan.lanes, strict=True))
        }
        beats[Port.of("data_out_0", plan.out, False)] = plan.out.sent(self.expected)
        files = {key: f"memory/{key.lower()}.hex" for key in plan.memories}
        module = plan.module or self.component.module
        return Bench(
            module,
            {**plan.parameters, **files},
            beats,
            {files[key]: memory for key, memory in plan.memories.items()},
            self.component.folder,
            is_beat_by_beat=True,
            source=plan.source,
            tied=NO_LOAD if has_load_port(module, self.component.folder, plan.source) else {},
        )

    @cached_property
    def runs(self) -> Mapping[str, BenchRun]:
        """Simulation runs by profile."""
        with self.bench.compiled() as bench:
            return bench.run(self.profiles)

    @property
    def output_cycles(self) -> Sequence[int]:
        """Cycle of each output beat without stalls."""
        return self.runs[FULL_SPEED].ends["data_out_0"]


def _it_has_a_row_by_its_class(case: Case) -> None:
    """Emission finds the component by class, and the source by its module and folder."""
    file, folder = f"{case.component.module}.sv", case.component.folder
    assert any((home / file).is_file() for home in (folder, RTL)), f"there is no {folder / file}"


def _the_plan_fits_its_streams(case: Case) -> None:
    """Lanes divide the inputs, and the output shape equals that of the integer twin."""
    plan = case.plan
    assert len(plan.lanes) == len(case.inputs), f"it has lanes for {len(plan.lanes)} inputs"
    for (stream, _), lanes in zip(case.inputs, plan.lanes, strict=True):
        assert stream.size % lanes == 0, f"{lanes} lanes do not divide {stream.size} codes"
    shape = tuple(case.expected.shape[1:])
    assert plan.out.shape == shape, f"it plans samples of {plan.out.shape}, the twin's are {shape}"
    most = max(port.beats for port in case.bench.beats)
    assert plan.cycles >= most, f"{most} beats of a sample cannot pass in {plan.cycles} cycles"


def _codes_stay_within_the_proven_bounds(case: Case) -> None:
    """All codes of the integer twin are within the bounds of its edge."""
    edge, codes = case.plan.out.edge, case.expected
    low, high = int(codes.min()), int(codes.max())
    assert edge.low <= low and high <= edge.high, (
        f"codes range from {low} to {high}, but the edge allows {edge.low} to {edge.high}"
    )


def _linters_are_silent(case: Case) -> None:
    """Verilator with all warnings and Yosys report nothing."""
    with case.bench.compiled() as bench:
        complaints = bench.complaints()
    assert not complaints, complaints


def _rtl_equals_integer_under_all_stalls(case: Case) -> None:
    """Output codes equal those of the integer twin, and streams follow the handshake protocol."""
    check_passed(case.runs)


def _samples_leave_as_often_as_planned(case: Case) -> None:
    """Without stalls, the interval between samples equals the plan within 3 % or 2 cycles."""
    beats = case.plan.out.beats
    check_interval(case.output_cycles[beats - 1 :: beats], case.plan.cycles)


def check_interval(output_cycles: Sequence[int], cycles: int) -> None:
    """Checks the interval between samples in the steady state; a single sample has none."""
    if len(output_cycles) < 2:
        return
    first = len(output_cycles) // 2 - 1 if len(output_cycles) < 4 else len(output_cycles) // 2
    interval = (output_cycles[-1] - output_cycles[first]) / (len(output_cycles) - 1 - first)
    assert abs(interval - cycles) <= max(2, 0.03 * cycles), (
        f"{cycles} cycles are planned between samples, the circuit needs {interval:g}: "
        f"{output_cycles}"
    )


def _the_first_result_leaves_when_planned(case: Case) -> None:
    """The first beat leaves no later than planned, and at most a few cycles earlier."""
    planned, first_cycle = planned_cycles(case), case.output_cycles[0] - 1
    assert first_cycle <= planned <= first_cycle + SPARE_CYCLES, (
        f"the first result is planned after {planned} cycles, and leaves after {first_cycle}: see "
        "`latency`, `holds` and `needs` of the plan"
    )


def planned_cycles(case: Case) -> int:
    """Returns the cycles from the first input beat to the first output beat without stalls."""
    plan, needed = case.plan, [0]
    for k, ((stream, _), lanes) in enumerate(zip(case.inputs, plan.lanes, strict=True)):
        size, hold = stream.size // lanes, plan.holds[k] if plan.holds else 0.0
        last = max(math.ceil(min(hold, 1) * size) - 1, 0)
        last = int(plan.needs[k][0]) if plan.needs else last
        needed.append(last + math.ceil(max(hold - 1, 0) * size))
    return max(needed) + plan.latency


def _a_reset_starts_afresh(case: Case) -> None:
    """After a reset in the middle of a sample, results equal those of a new circuit."""
    latest = min(case.plan.cycles * 3 // 2 + 3, MAX_CYCLES_BEFORE_RESET)
    draw = random.Random(latest)
    resets = [(draw.randint(1, latest), length) for length in RESET_CYCLES]
    with case.bench.compiled(case.bench.top_with_reset()) as bench:
        bench.run_with_resets([(latest, RESET_CYCLES[0]), *resets], case.profiles[0])
