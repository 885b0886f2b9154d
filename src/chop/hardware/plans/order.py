"""Plans of circuits without an operator: constants, concatenation, selection and repetition."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Memory, Resources
from chop.hardware.design.stream import Stream
from chop.hardware.design.values import Pieces, copied, joined, part

COPY_STAGES = 4
"""Cycles of `chop_copies` and of the FIFO behind it."""


def constant_plan(codes: Tensor, stream: Stream, is_loadable: bool = False) -> ComponentPlan:
    """Returns the plan of `chop_constant`.

    Args:
        codes: int64 codes of one sample.
        stream: stream with the order and beats to use.
        is_loadable: True if the codes are written at run time.
    """
    memory = Memory.of(stream.sent(codes.unsqueeze(0)).tolist(), stream.width)
    memory = replace(memory, is_loadable=is_loadable)
    parameters = {"W": stream.bits, "BEATS": stream.beats}
    return ComponentPlan(parameters, (), stream, stream.beats, {"FILE": memory})


def concat_plan(first: Stream, second: Stream, dim: int) -> ComponentPlan:
    """Returns the plan of `chop_concat`.

    Args:
        first: stream that is sent first.
        second: stream that is sent after it.
        dim: dimension of the concatenation, counted from the end.
    Raises:
        ConfigError: if the streams' order or the meaning of their codes does not fit.
    """
    edges = first.edge, second.edge
    if len({(*edge.steps, edge.divisor) for edge in edges}) > 1 or len(first.edge.steps) > 1:
        raise ConfigError("its inputs have different steps; use the same format for all inputs")
    low, high = min(edge.low for edge in edges), max(edge.high for edge in edges)
    edge = replace(first.edge, low=low, high=high)
    positions = joined(first, second, dim)
    turns = math.prod(first.shape[:dim])
    beats = first.size // turns, second.size // turns
    # With these lanes no beat has codes of both inputs.
    lanes = math.gcd(first.lanes, second.lanes, *beats)
    out = Stream(positions, edge, lanes)
    parameters = {
        "LANES": lanes,
        "IN_0_W": first.width,
        "IN_1_W": second.width,
        "OUT_W": out.width,
        "BEATS_0": beats[0] // lanes,
        "BEATS_1": beats[1] // lanes,
    }
    place = torch.arange(out.beats)
    own = [count // lanes for count in beats]
    turn, rest = place // sum(own), place % sum(own)
    # While one input is sent, no further beat of the other one is needed.
    needs = (
        turn * own[0] + rest.clamp(max=own[0] - 1),
        turn * own[1] + (rest - own[0]).clamp(min=-1),
    )
    return ComponentPlan(
        parameters, (lanes, lanes), out, out.beats, needs=(needs[0], needs[1].clamp(min=0))
    )


def select_plan(stream: Stream, places: Tensor) -> ComponentPlan:
    """Returns the plan of `chop_select`.

    Args:
        stream: input stream.
        places: int64, result shape: selected stream positions.
    Raises:
        ConfigError: if they do not form segments of one length.
    """
    pieces, out = Pieces.of(stream, places), part(stream, places)
    period, first, beats = (number // out.lanes for number in pieces)
    parameters = {"W": out.bits, "PERIOD": period, "FIRST": first, "LAST": first + beats - 1}
    place = torch.arange(out.beats)
    needs = place // beats * period + first + place % beats
    return ComponentPlan(parameters, (out.lanes,), out, stream.size // out.lanes, needs=(needs,))


def copies_plan(stream: Stream, places: Tensor, fold: int) -> ComponentPlan:
    """Returns the plan of `chop_copies`, with the longest runs along the last dimension.

    Args:
        stream: input stream.
        places: int64, result shape: stream position of each element.
        fold: maximum cycles per sample.
    Raises:
        ConfigError: if some codes are repeated more often than others.
    """
    counts = places.flatten().bincount(minlength=stream.size)
    times = int(counts[0])
    if bool((counts != times).any()):
        raise ConfigError("it repeats some codes more often than others, which no circuit supports")
    run = next(n for n in reversed(divisors(places.size(-1))) if _are_runs(places, n))

    def cycles(lanes: int) -> int:
        return max(places.numel() // lanes, converter_cycles(stream.size, stream.lanes, lanes))

    lanes = first_within(divisors(run), fold, cycles)
    out, beats = copied(stream.with_lanes(lanes), places, run), run // lanes
    place = torch.arange(out.beats)
    row, rest = place // (beats * times), place % (beats * times)
    return ComponentPlan(
        {"W": out.bits, "BEATS": beats, "TIMES": times},
        (lanes,),
        out,
        out.beats,
        resources=Resources(memory_bits=beats * out.bits),
        needs=(row * beats + rest.clamp(max=beats - 1),),
        latency=COPY_STAGES,
    )


def _are_runs(places: Tensor, size: int) -> bool:
    """Returns whether elements form runs of this size that begin at multiples of it."""
    runs = places.reshape(-1, size)
    return bool((runs == runs[:, :1] + torch.arange(size)).all() and (runs[:, 0] % size == 0).all())
