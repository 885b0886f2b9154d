"""Plan of sums, means and maxima along dimensions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.design.stream import OrderError, Stream
from chop.nn.integer import IntegerSum

SUM_STAGES = 2
"""Cycles of `chop_sum` from the last term to the sum."""


class _Groups(NamedTuple):
    """Arrangement of the terms of sums in a stream.

    Attributes:
        terms: terms of a sum.
        inner: distance between two terms of a sum, the number of interleaved sums.
        places: int64 (sums,): position of each sum in the result's stream.
    """

    terms: int
    inner: int
    places: Tensor


def plan_sum(site: Site) -> ComponentPlan:
    """Plans sums or maxima of codes at regular stream distances, over rows or over features."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, IntegerSum)
    groups = _groups(operator, read)
    across = groups.inner == 1

    def cycles(lanes: int) -> int:
        return max(read.size // lanes, converter_cycles(read.size, read.lanes, lanes))

    choices = divisors(groups.terms if across else groups.inner)
    lanes = first_within(choices, site.fold, cycles)
    shape = tuple(operator(torch.zeros(1, *read.shape, dtype=torch.int64)).shape[1:])
    out = Stream(groups.places.view(shape), operator.out, 1 if across else lanes)
    return ComponentPlan(
        parameters={
            "LANES": lanes,
            "IN_W": read.width,
            "OUT_W": out.width,
            "COUNT": groups.terms // lanes if across else groups.terms,
            "INNER": 1 if across else groups.inner // lanes,
            "ACROSS": int(across),
            "MAXIMUM": int(operator.is_maximum),
        },
        lanes=(lanes,),
        out=out,
        cycles=read.size // lanes,
        resources=Resources(memory_bits=groups.inner * out.width),
        holds=(groups.terms * groups.inner / read.size,),
        needs=() if across else (_last_terms(groups, lanes, out.beats),),
        buffers=(0,),
        latency=SUM_STAGES,
    )


def _last_terms(groups: _Groups, lanes: int, beats: int) -> Tensor:
    """Returns the input beat with the last terms of each beat of interleaved sums, int64."""
    rows, number = groups.inner // lanes, torch.arange(beats)
    return (number // rows * groups.terms + groups.terms - 1) * rows + number % rows


def _groups(operator: IntegerSum, read: Stream) -> _Groups:
    """Returns the arrangement of the terms of each sum.

    Raises:
        ConfigError: if samples are summed, or terms are not equally spaced.
    """
    if min(operator.dims) < -len(read.shape):
        raise ConfigError("it sums over the batch dimension")
    ends = range(-len(operator.dims), 0)
    # Positions are sorted because the order of the terms does not change an exact sum.
    terms = read.positions.movedim(operator.dims, tuple(ends)).flatten(-len(ends)).sort().values
    count = terms.size(-1)
    terms = terms.reshape(-1, count)
    inner = int(terms[0, 1] - terms[0, 0]) if count > 1 else 1
    first = terms[:, 0]
    is_regular = torch.equal(terms, first[:, None] + inner * torch.arange(count))
    if not is_regular or bool((first % (count * inner) >= inner).any()):
        last = read.positions.movedim(operator.dims, tuple(ends))
        wanted = torch.arange(read.size).view(last.shape).movedim(tuple(ends), operator.dims)
        text = f"the {count} terms of a sum are not equally spaced in the stream"
        raise OrderError(text, {0: wanted})
    return _Groups(count, inner, first // (count * inner) * inner + first % inner)
