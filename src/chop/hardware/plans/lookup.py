"""Plan of embeddings: table rows selected by indices."""

from __future__ import annotations

import torch

from chop.hardware.design.lanes import divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Memory, Site
from chop.hardware.design.stream import Stream
from chop.nn.integer import IntegerEmbedding

TABLE_STAGES = 7
"""Cycles of `chop_embedding` from an index to the first beat of its row."""


def plan_embedding(site: Site) -> ComponentPlan:
    """Plans an embedding with one index at a time. Rows are sent in turn with columns in order."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, IntegerEmbedding)
    rows, columns = operator.codes.shape

    def cycles(lanes: int) -> int:
        return read.size * (columns // lanes)

    lanes = first_within(divisors(columns), site.fold, cycles)
    beats = columns // lanes
    places = read.positions[..., None] * columns + torch.arange(columns)
    out = Stream(places, operator.out, lanes)
    words = operator.codes.reshape(rows * beats, lanes)
    return ComponentPlan(
        parameters={
            "LANES": lanes,
            "ROWS": rows,
            "BEATS": beats,
            "IN_W": read.width,
            "OUT_W": out.width,
        },
        lanes=(1,),
        out=out,
        cycles=cycles(lanes),
        memories={"TABLE_FILE": Memory.from_codes(words, out.width)},
        # All beats of a row depend on one index, which the shares of `holds` cannot express.
        needs=(torch.arange(out.beats) // beats,),
        buffers=(0,),
        latency=TABLE_STAGES,
    )
