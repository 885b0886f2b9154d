"""FIFO depths that balance the paths of a design.

If a value is forked and its branches rejoin, the shorter branch has to store as much as the longer
one consumes before its first output. A smaller buffer would block the fork that feeds both, and
deadlock. The amount and the delay follow from the components, beat by beat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.hardware.design.components import get_component
from chop.hardware.design.instances import Instance, Netlist
from chop.hardware.design.plan import DIRECT
from chop.hardware.design.stream import Stream

SLACK = 1.25
"""Depth of a balancing FIFO relative to the amount that the longer path stores."""
MARGIN = 4
"""Additional beats of such a FIFO."""
SKID_BEATS = 2
"""Beats in a skid buffer."""
LINK_CYCLES = 6
"""Cycles from a component's output to the next one's input: converter, buffer and a margin."""
SKID_CYCLES = 1
"""Cycles of a skid buffer."""
LARGE_FIFO = 50
"""Depth from which `chop_fifo` has a second output register."""


def buffer_cycles(depth: int) -> int:
    """Returns the cycles from the input of a skid buffer or `chop_fifo` to its output."""
    if depth == DIRECT:
        return 0
    return SKID_CYCLES if depth <= SKID_BEATS else 2 + (depth >= LARGE_FIFO)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Times at which samples pass through a design.

    Attributes:
        depths: by instance, the beats of the FIFO ahead of each input.
        times: by signal, the output time of each beat, in samples since the first beat of its
            sample entered the design.
        interval: cycles between two samples.
    """

    depths: Mapping[str, Sequence[int]]
    times: Mapping[str, Tensor]
    interval: int

    def latency(self, netlist: Netlist) -> int:
        """Returns the cycles from the first input code to the last output code in an empty circuit.

        A beat of each input arrives in every cycle, as a single sample is sent.
        """
        times = {p.wire.signal: torch.arange(p.wire.stream.beats) for p in netlist.inputs}
        for instance in netlist.instances:
            rows = instance.inputs, instance.plan.lanes, self.depths[instance.name]
            arrivals = [
                _through(times[wire.signal], wire.stream, lanes, depth)
                if wire.signal in times
                else None
                for wire, lanes, depth in zip(*rows, strict=True)
            ]
            if any(arrival is not None for arrival in arrivals):
                times[instance.name] = _first_leaves(instance, arrivals)
        ends = [times[p.wire.signal] for p in netlist.outputs if p.wire.signal in times]
        return max((int(end[-1]) + 1 + SKID_CYCLES for end in ends), default=0)


def schedule(netlist: Netlist) -> Schedule:
    """Computes beat times and FIFO depths, those of residual connections included.

    Times are in samples. Design inputs arrive at the design's pace. A component outputs a beat when
    the input beats that it depends on have arrived, at most at the component's own rate. An
    instance with two inputs buffers each beat from its arrival until it is consumed.
    """
    times = {port.wire.signal: _evenly(port.wire.stream.beats) for port in netlist.inputs}
    depths: dict[str, list[int]] = {}
    for instance in netlist.instances:
        wanted = instance.plan.buffers or (0,) * len(instance.inputs)
        arrivals = [
            _at_lanes(times[wire.signal], wire.stream, lanes) if wire.signal in times else None
            for wire, lanes in zip(instance.inputs, instance.plan.lanes, strict=True)
        ]
        if all(arrival is None for arrival in arrivals):  # constants wait for their readers
            depths[instance.name] = list(wanted)
            continue
        needs = [_needs(instance, k) for k in range(len(arrivals))]
        leaves = _leaves(instance, arrivals, needs, netlist.interval)
        holds = instance.plan.holds or (0.0,) * len(arrivals)
        # A component that stores a whole sample has room for the next one.
        waits = [hold < 1 for hold in holds]
        balancing = [
            _depth(arrival, need, leaves) if is_waiting else 0
            for arrival, need, is_waiting in zip(arrivals, needs, waits, strict=True)
        ]
        depths[instance.name] = [
            max(depth, least) if least else depth
            for depth, least in zip(wanted, balancing, strict=True)
        ]
        # Results of several samples in the pipeline are late by whole intervals.
        late = (instance.plan.latency + LINK_CYCLES) / netlist.interval + max(max(holds) - 1, 0)
        times[instance.name] = leaves + late
    return Schedule(depths, times, netlist.interval)


def _evenly(beats: int) -> Tensor:
    return torch.arange(1, beats + 1).double() / beats


def _at_lanes(times: Tensor, stream: Stream, lanes: int) -> Tensor:
    """Returns the arrival times of the beats of a converted stream."""
    # A wider beat has arrived when its last code has.
    last = torch.arange(1, stream.size // lanes + 1) * lanes - 1
    return times[last // stream.lanes]


def _through(times: Tensor, stream: Stream, lanes: int, depth: int) -> Tensor:
    """Returns the cycles in which beats leave the converter and the buffer ahead of an input."""
    common = math.gcd(stream.lanes, lanes)
    cycles = (common != stream.lanes) + (common != lanes) + buffer_cycles(depth)
    # Between two converters, a beat has the greatest common divisor of the lanes.
    narrow = _at_lanes(times, stream, common)
    narrow = _paced(narrow, torch.arange(len(narrow)))
    return _at_lanes(narrow, stream.with_lanes(common), lanes) + cycles


def _ready(arrivals: Sequence[Tensor | None], needs: Sequence[Tensor]) -> Tensor:
    """Returns the times at which all inputs of each output beat have arrived."""
    given = [a[n] for a, n in zip(arrivals, needs, strict=True) if a is not None]
    return torch.stack(given).amax(0)


def _paced(ready: Tensor, steps: Tensor) -> Tensor:
    """Returns the times of beats that leave when ready, and at least a step after the one before.

    Args:
        ready: earliest times.
        steps: sums of the steps up to each beat.
    """
    paced: Tensor = (ready - steps).cummax(0).values + steps
    return paced


def _needs(instance: Instance, k: int) -> Tensor:
    """Returns the last beat of input `k` that each output beat needs, int64 (output beats,)."""
    plan = instance.plan
    if plan.needs:
        return plan.needs[k]
    beats = instance.inputs[k].stream.size // plan.lanes[k]
    hold = min(plan.holds[k], 1.0) if plan.holds else 0.0
    share = torch.arange(plan.out.beats).double() / plan.out.beats
    amount = (hold + share * (1 - hold)) * beats
    last = amount.ceil() - 1 if hold else amount.floor()
    return last.long().clamp(0, beats - 1)


def _leaves(
    instance: Instance, arrivals: Sequence[Tensor | None], needs: Sequence[Tensor], interval: int
) -> Tensor:
    """Returns the output times of a component's beats, without its latency."""
    ready = _ready(arrivals, needs)
    pace = instance.plan.cycles / len(ready) / interval
    steps = torch.arange(2 * len(ready)).double() * min(pace, 1 / len(ready))
    # The second of two samples is scheduled: the first one may still be leaving when it arrives.
    both = torch.cat([ready - 1, ready])
    return _paced(both, steps)[len(ready) :]


def _first_leaves(instance: Instance, arrivals: Sequence[Tensor | None]) -> Tensor:
    """Returns the output cycles of the first sample in a component."""
    plan, beats = instance.plan, instance.plan.out.beats
    if plan.leaves is not None and arrivals[0] is not None:
        return plan.leaves(arrivals[0]) + plan.latency
    pace = torch.arange(beats) * plan.cycles // beats
    if plan.needs:
        # Outputs do not spread over the cycles of the component: a selection can end early, and
        # those of a row leave together. Only the rows keep the pace of the component.
        arrived = [len(arrival) for arrival in arrivals if arrival is not None]
        most = max(beats, *arrived)
        starts = torch.stack([(need - need[0]) * plan.cycles // most for need in plan.needs])
        inside = [torch.arange(beats) - torch.searchsorted(need, need) for need in plan.needs]
        pace = torch.maximum((starts + torch.stack(inside)).amax(0), torch.arange(beats))
    ready = _ready(arrivals, [_first_needs(instance, k) for k in range(len(arrivals))])
    return _paced(ready, pace) + plan.latency


def _first_needs(instance: Instance, k: int) -> Tensor:
    """Returns the same as `_needs`, exact for operators that take in whole rows.

    FIFO depths, which files of earlier circuits contain, come from the evenly spread ones.
    """
    plan = instance.plan
    hold = plan.holds[k] if plan.holds and not plan.needs else 0.0
    row = get_component(type(instance.site.operator)) if instance.site else None
    if not 0 < hold < 1 or row is None or row.spatial:
        return _needs(instance, k)
    rows = round(1 / hold)
    beats = instance.inputs[k].stream.size // plan.lanes[k]
    number = torch.arange(plan.out.beats) * rows // plan.out.beats
    return (number + 1) * beats // rows - 1


def _depth(arrival: Tensor | None, need: Tensor, leaves: Tensor) -> int:
    """Returns the depth in beats of a FIFO that stores beats from arrival to consumption."""
    if arrival is None:
        return 0
    # A beat is consumed when the result before the first one that needs it has left.
    before = torch.cat([leaves[-1:] - 1, leaves[:-1]])
    first = torch.searchsorted(need, torch.arange(len(arrival)))
    taken = torch.maximum(arrival, before[first.clamp(max=len(leaves) - 1)])
    most = _most_stored(arrival, taken)
    return math.ceil(SLACK * most) + MARGIN if most > SKID_BEATS else 0


def _most_stored(arrival: Tensor, taken: Tensor) -> int:
    """Returns the highest number of stored beats, with samples back to back."""
    # Beats that wait for whole intervals are always stored, the others only in some phases.
    whole = int((taken.floor() - arrival.floor()).sum())
    at, ends = arrival.frac().sort().values, taken.frac().sort().values
    arrived = torch.searchsorted(at, at, right=True)
    gone = torch.searchsorted(ends, at, right=True)
    return whole + int((arrived - gone).max())
