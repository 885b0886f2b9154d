"""Plans of the state of a decoder that reads one token at a time."""

from __future__ import annotations

import torch

from chop.hardware.design.lanes import divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.design.stream import Stream
from chop.nn.integer import IntegerCache, IntegerPosition

CACHE_STAGES = 5
"""Cycles of `chop_cache` from a beat of a row to the same beat of its result."""


def plan_position(site: Site) -> ComponentPlan:
    """Plans the position counter, one token at a time."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, IntegerPosition)
    out = Stream.in_order(read.shape, operator.out)
    return ComponentPlan(
        {"LENGTH": operator.length, "IN_W": read.width, "OUT_W": out.width}, (1,), out, 1
    )


def plan_cache(site: Site) -> ComponentPlan:
    """Plans a cache whose rows leave in the order of their positions, each as it arrived."""
    operator, (read, position) = site.operator, site.inputs
    assert isinstance(operator, IntegerCache)
    length = operator.length

    def cycles(lanes: int) -> int:
        return length * (read.size // lanes)

    lanes = first_within(divisors(read.size), site.fold, cycles)
    row = torch.arange(length).view(-1, 1) * read.size
    out, beats = Stream(read.positions + row, operator.out, lanes), read.size // lanes
    return ComponentPlan(
        parameters={"W": out.bits, "BEATS": beats, "LENGTH": length, "IN_W": position.width},
        lanes=(lanes, 1),
        out=out,
        cycles=cycles(lanes),
        resources=Resources(memory_bits=length * read.size * read.width),
        # The first token of a sequence is the last to be complete: its row is ahead of all zeros.
        needs=(
            torch.arange(out.beats).clamp(max=beats - 1),
            torch.zeros(out.beats, dtype=torch.int64),
        ),
        buffers=(beats, 0),
        latency=CACHE_STAGES,
    )
