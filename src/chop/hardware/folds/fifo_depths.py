"""Depths of FIFOs: what a stream stores while the other inputs of its reader are on their way.

Where a value is forked and its branches meet again, the shorter branch has to store what the longer
one takes in before it gives anything: less would stop the fork that feeds both, for good. What the
longer one takes in follows from the components, beat by beat, and so does how late it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.hardware.design.netlist import Instance, Netlist
from chop.hardware.design.stream import Stream

SLACK = 1.25
"""Depth of a FIFO beside a longer path: how many times what the path takes in."""
MARGIN = 4
"""Beats that such a FIFO has on top."""
SKID_BEATS = 2
"""What a skid buffer stores."""
LINK_CYCLES = 6
"""From a component's output to the next one's input: a converter, a buffer, and some to spare."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """How samples travel through a design.

    Attributes:
        depths: by instance, beats of the FIFO ahead of each input.
        times: by signal, when each beat leaves, in samples since the first beat of its sample came.
        interval: cycles between two samples.
    """

    depths: Mapping[str, Sequence[int]]
    times: Mapping[str, Tensor]
    interval: int

    def latency(self, netlist: Netlist) -> int:
        """Cycles from the first code of a sample that comes to the last one that leaves."""
        signals = [port.wire.signal for port in netlist.outputs]
        ends = [float(self.times[signal][-1]) for signal in signals if signal in self.times]
        return math.ceil(max(ends, default=0.0) * self.interval)


def schedule(netlist: Netlist) -> Schedule:
    """When beats travel, and the depths of FIFOs: residual connections are sized here.

    Times are in samples: the inputs of the design arrive at its own pace, each beat of a component
    leaves when the beats of its inputs that it needs have come, and no faster than the component
    works. An instance of two inputs stores each from its arrival until it is taken.
    """
    times = {port.wire.signal: _evenly(port.wire.stream.beats) for port in netlist.inputs}
    found: dict[str, list[int]] = {}
    for instance in netlist.instances:
        wanted = instance.plan.buffers or (0,) * len(instance.inputs)
        arrivals = [
            _at_lanes(times[wire.signal], wire.stream, lanes) if wire.signal in times else None
            for wire, lanes in zip(instance.inputs, instance.plan.lanes, strict=True)
        ]
        if all(arrival is None for arrival in arrivals):  # constants wait for their readers
            found[instance.name] = list(wanted)
            continue
        needs = [_needs(instance, k) for k in range(len(arrivals))]
        leaves = _leaves(instance, arrivals, needs, netlist.interval)
        holds = instance.plan.holds or (0.0,) * len(arrivals)
        # What takes in a whole sample has a second place for the next one.
        waits = [hold < 1 for hold in holds]
        found[instance.name] = [
            max(depth, _depth(arrival, need, leaves) if is_waiting else 0)
            for depth, arrival, need, is_waiting in zip(wanted, arrivals, needs, waits, strict=True)
        ]
        late = (instance.plan.latency + LINK_CYCLES) / netlist.interval + max(max(holds) - 1, 0)
        times[instance.name] = leaves + late
    return Schedule(found, times, netlist.interval)


def _evenly(beats: int) -> Tensor:
    return torch.arange(1, beats + 1).double() / beats


def _at_lanes(times: Tensor, stream: Stream, lanes: int) -> Tensor:
    """When the beats of a converted stream have come."""
    last = torch.arange(1, stream.size // lanes + 1) * lanes - 1
    return times[last // stream.lanes]


def _needs(instance: Instance, k: int) -> Tensor:
    """int64 (beats out,): the last beat of input `k` that each beat out needs."""
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
    """When the beats of a component leave, without its latency."""
    given = [a[n] for a, n in zip(arrivals, needs, strict=True) if a is not None]
    ready = torch.stack(given).amax(0)
    pace = instance.plan.cycles / len(ready) / interval
    steps = torch.arange(2 * len(ready)).double() * min(pace, 1 / len(ready))
    # The second of two samples: the first one may still be leaving when it has come.
    both = torch.cat([ready - 1, ready])
    paced: Tensor = (both - steps).cummax(0).values + steps
    return paced[len(ready) :]


def _depth(arrival: Tensor | None, need: Tensor, leaves: Tensor) -> int:
    """Beats of a FIFO that stores beats from their arrival until they are taken."""
    if arrival is None:
        return 0
    # A beat is taken when the result before the first one that needs it has left.
    before = torch.cat([leaves[-1:] - 1, leaves[:-1]])
    first = torch.searchsorted(need, torch.arange(len(arrival)))
    taken = torch.maximum(arrival, before[first.clamp(max=len(leaves) - 1)])
    most = _most_stored(arrival, taken)
    return math.ceil(SLACK * most) + MARGIN if most > SKID_BEATS else 0


def _most_stored(arrival: Tensor, taken: Tensor) -> int:
    """The most beats that are stored at any time, where samples follow each other."""
    whole = int((taken.floor() - arrival.floor()).sum())
    at, ends = arrival.frac().sort().values, taken.frac().sort().values
    arrived = torch.searchsorted(at, at, right=True)
    gone = torch.searchsorted(ends, at, right=True)
    return whole + int((arrived - gone).max())
