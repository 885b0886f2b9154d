"""Plans of what has no operator: constants, streams joined, and parts of streams."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.plan import ComponentPlan, Memory
from chop.hardware.stream import Stream
from chop.hardware.values import joined, part


def constant_plan(codes: Tensor, stream: Stream) -> ComponentPlan:
    """Plan of `chop_constant`.

    Args:
        codes: int64, of one sample.
        stream: in whose order and beats they leave.
    """
    memory = Memory.of(stream.sent(codes.unsqueeze(0)).tolist(), stream.width)
    parameters = {"W": stream.bits, "BEATS": stream.beats}
    return ComponentPlan(parameters, (), stream, stream.beats, {"FILE": memory})


def concat_plan(first: Stream, second: Stream, dim: int) -> ComponentPlan:
    """Plan of `chop_concat`.

    Args:
        first: sent first.
        second: sent after it.
        dim: along which they are joined, from the end.
    Raises:
        ConfigError: they travel in another order, or codes mean different things.
    """
    edges = first.edge, second.edge
    if len({(*edge.steps, edge.divisor) for edge in edges}) > 1 or len(first.edge.steps) > 1:
        raise ConfigError("what it joins has different steps; give all inputs the same format")
    low, high = min(edge.low for edge in edges), max(edge.high for edge in edges)
    edge = replace(first.edge, low=low, high=high)
    positions = joined(first, second, dim)
    turns = math.prod(first.shape[:dim])
    beats = first.size // turns, second.size // turns
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
    # In the turn of one nothing more is needed of the other.
    needs = (
        turn * own[0] + rest.clamp(max=own[0] - 1),
        turn * own[1] + (rest - own[0]).clamp(min=-1),
    )
    return ComponentPlan(
        parameters, (lanes, lanes), out, out.beats, needs=(needs[0], needs[1].clamp(min=0))
    )


def select_plan(stream: Stream, places: Tensor) -> ComponentPlan:
    """Plan of `chop_select`.

    Args:
        stream: what is read.
        places: int64, shape of the result: the places of the stream that are kept.
    Raises:
        ConfigError: they do not travel one after another.
    """
    first, out = int(places.min()), part(stream, places)
    parameters = {
        "W": out.bits,
        "PERIOD": stream.size // out.lanes,
        "FIRST": first // out.lanes,
        "LAST": first // out.lanes + out.beats - 1,
    }
    needs = first // out.lanes + torch.arange(out.beats)
    return ComponentPlan(parameters, (out.lanes,), out, stream.size // out.lanes, needs=(needs,))
