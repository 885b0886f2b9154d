"""Plan of a stream in another order: a frame in memory, and an address from nested counters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.design.stream import Stream
from chop.nn.integer import IntegerResample
from chop.nn.integer.resample import ZERO

LEVELS = 6
"""Counters of `chop_reorder`."""
REORDER_STAGES = 6
"""Cycles of `chop_reorder` and of the FIFO behind it, after the last beat of a frame."""


@dataclass(frozen=True)
class Loop:
    """A counter of an address.

    Attributes:
        count: number of values, from 0.
        step: distance of the addresses of two values.
        first: smallest value inside the frame; the beats below are zeros.
        last: largest value inside the frame.
    """

    count: int
    step: int
    first: int
    last: int


class Loops(NamedTuple):
    """Nested counters that visit addresses in order.

    Attributes:
        base: address at which all counters are 0.
        loops: the counters, the fastest first.
    """

    base: int
    loops: tuple[Loop, ...]

    @classmethod
    def of(cls, addresses: Tensor) -> Loops:
        """Returns the counters that visit the addresses, int64 (n,); `ZERO` outside a frame.

        Raises:
            ConfigError: if `LEVELS` counters do not suffice.
        """
        is_inside, loops = addresses != ZERO, list[Loop]()
        while len(addresses) > 1:
            choices = (_loop(addresses, is_inside, n) for n in divisors(len(addresses))[:0:-1])
            loop = next(filter(None, choices), None)
            if loop is None or len(loops) == LEVELS:
                raise ConfigError(f"its order is no nest of {LEVELS} loops over the stream")
            loops.append(loop)
            rows, inside = (x.view(-1, loop.count) for x in (addresses, is_inside))
            addresses = rows[:, loop.first] - loop.first * loop.step
            is_inside = inside.any(1)
        return cls(int(addresses[0]) if bool(is_inside[0]) else 0, tuple(loops))


def _loop(addresses: Tensor, is_inside: Tensor, count: int) -> Loop | None:
    """Returns the counter of `count` values that visits each row of addresses, or None."""
    rows, inside = addresses.view(-1, count), is_inside.view(-1, count)
    used = inside.any(1)
    if not bool(used.any()):
        return Loop(count, 0, 0, count - 1)
    pattern, visited = inside[used][0], rows[used]
    if bool((inside[used] != pattern).any()):
        return None
    first, last = int(pattern.nonzero()[0]), int(pattern.nonzero()[-1])
    if last - first + 1 != int(pattern.sum()):
        return None
    step = int(visited[0, first + 1] - visited[0, first]) if last > first else 0
    expected = visited[:, first, None] + step * torch.arange(last - first + 1)
    is_even = torch.equal(visited[:, first : last + 1], expected)
    return Loop(count, step, first, last) if is_even else None


def reorder_plan(stream: Stream, places: Tensor, wanted: Tensor, fold: int) -> ComponentPlan:
    """Returns the plan of `chop_reorder`, with the smallest frames and the fewest lanes in a fold.

    Args:
        stream: input stream.
        places: int64, result shape: stream position of each element, or `ZERO`.
        wanted: int64, result shape: position of each element in the result's stream.
        fold: maximum cycles per sample.
    Raises:
        ConfigError: if the order is no nest of `LEVELS` loops.
    """
    order = torch.empty(places.numel(), dtype=torch.int64)
    order[wanted.flatten()] = places.flatten()
    frames = _frames(order, stream.size)
    frame, size = order[: len(order) // frames], stream.size // frames

    def cycles(lanes: int) -> int:
        converted = converter_cycles(stream.size, stream.lanes, lanes)
        return max(len(order) // lanes, stream.size // lanes, converted)

    choices = [n for n in divisors(math.gcd(size, len(frame))) if _are_beats(frame, n)]
    lanes = first_within(choices, fold, cycles)
    loops = Loops.of(torch.where(frame == ZERO, ZERO, frame // lanes)[::lanes])
    edge = stream.edge
    if bool((frame == ZERO).any()):
        edge = replace(edge, low=min(edge.low, 0), high=max(edge.high, 0))
    out, words = Stream(wanted, edge, lanes), size // lanes
    parameters = {"W": lanes * edge.bits, "WORDS": words, "BASE": loops.base}
    for level, loop in enumerate(loops.loops):
        parameters |= {f"COUNT_{level}": loop.count, f"STEP_{level}": loop.step}
        if (loop.first, loop.last) != (0, loop.count - 1):
            parameters |= {f"FIRST_{level}": loop.first, f"LAST_{level}": loop.last}
    number = torch.arange(out.beats) // (len(frame) // lanes)
    return ComponentPlan(
        parameters,
        lanes=(lanes,),
        out=out,
        cycles=max(out.beats, stream.size // lanes),
        resources=Resources(memory_bits=2 * words * out.bits),
        # The next frame has a bank of its own, so that no FIFO has to store it.
        holds=(1.0,),
        needs=((number + 1) * words - 1,),
        buffers=(0,),
        latency=REORDER_STAGES,
    )


def _frames(order: Tensor, size: int) -> int:
    """Returns the largest number of equal parts of a stream that are reordered alike."""
    for count in divisors(math.gcd(size, len(order)))[::-1]:
        own = size // count
        rows = order.view(count, -1)
        starts = torch.arange(count)[:, None] * own
        shifted = torch.where(rows == ZERO, ZERO, rows - starts)
        is_own = (rows == ZERO) | ((shifted >= 0) & (shifted < own))
        if bool(is_own.all()) and torch.equal(shifted, shifted[:1].expand_as(shifted)):
            return count
    raise AssertionError("a stream is one frame")


def _are_beats(order: Tensor, lanes: int) -> bool:
    """Returns whether beats of these lanes stay together."""
    beats = order.view(-1, lanes)
    whole = (beats == beats[:, :1] + torch.arange(lanes)).all(1) & (beats[:, 0] % lanes == 0)
    return bool((whole | (beats == ZERO).all(1)).all())


def plan_resample(site: Site) -> ComponentPlan:
    """Plans padding, upsampling or the insertion of zeros, in the order of dimensions sent."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, IntegerResample)
    places = operator.gathered(read.positions, ZERO)
    plan = reorder_plan(read, places, ordered_like(read, tuple(places.shape)), site.fold)
    return replace(plan, out=plan.out.of(operator.out))


def ordered_like(stream: Stream, shape: Sequence[int]) -> Tensor:
    """Returns positions of a shape, int64, with the dimensions in the order of a stream's."""
    dims = slowest_first(stream)
    count = torch.Size(shape).numel()
    places = torch.arange(count).view([shape[dim] for dim in dims])
    return places.permute([dims.index(dim) for dim in range(len(shape))])


def slowest_first(stream: Stream) -> list[int]:
    """Returns the dimensions of a stream, the one that varies slowest first."""
    distances = [
        int(stream.positions.select(dim, 1).flatten()[0] - stream.positions.flatten()[0])
        if stream.shape[dim] > 1
        else 0
        for dim in range(len(stream.shape))
    ]
    return sorted(range(len(distances)), key=lambda dim: -abs(distances[dim]))
