"""Plan of the softmax."""

from __future__ import annotations

from dataclasses import replace

from chop.errors import ConfigError
from chop.hardware.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.stream import Rows, Stream
from chop.nn.integer import IntegerSoftmax

PIPELINE = 8
"""Registers that a row passes beside the stages that are counted, and some to spare."""


def plan_softmax(site: Site) -> ComponentPlan:
    """Rows one code at a time, along whatever dimension they travel.

    Raises:
        ConfigError: there is a mask, it is over samples, or codes of a row do not travel one after
            another.
    """
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerSoftmax)
    if len(site.inputs) > 1:
        raise ConfigError("a softmax with a mask has no circuit")
    rows = _rows(operator, read)
    table = operator.exponentials.tolist()
    table_width = max(table).bit_length()
    reciprocal_width = operator.places - table_width + 1
    division = reciprocal_cycles(reciprocal_width)
    out = read.of(operator.out).with_lanes(1)
    depth = rows.features + min(division, 2 * rows.features) + PIPELINE
    absorbed = 2 * rows.features + division + PIPELINE
    return ComponentPlan(
        parameters={
            "FEATURES": rows.features,
            "IN_W": read.width,
            "TABLE_W": table_width,
            "TABLE_DEPTH": len(table),
            "POWER": operator.places,
            "OUT_W": out.width,
            "DEPTH": depth,
        },
        lanes=(1,),
        out=out,
        cycles=rows.count * max(rows.features, division),
        memories={"TABLE_FILE": Memory(tuple(table), table_width)},
        resources=Resources(
            {(table_width, reciprocal_width): 1},
            (rows.features + PIPELINE) * read.width + depth * table_width,
        ),
        holds=(absorbed / read.size,),
        buffers=(0,),
    )


def reciprocal_cycles(width: int) -> int:
    """Cycles of `chop_reciprocal` between two numbers, for the quotient's width in bits."""
    return -(-width // 2) + 1


def _rows(operator: IntegerSoftmax, read: Stream) -> Rows:
    """The rows along the operator's dimension, which may be counted with the batch.

    Raises:
        ConfigError: it is the batch itself.
    """
    rank = len(read.shape)
    dim = operator.dim if operator.dim < 0 else operator.dim - rank - 1
    if dim < -rank:
        raise ConfigError("it is a softmax over the samples of a batch, which pass one by one")
    return replace(read, positions=read.positions.movedim(dim, -1)).rows()
