"""Plan of the softmax."""

from __future__ import annotations

from dataclasses import replace

import torch

from chop.errors import ConfigError
from chop.hardware.design.lanes import divisors
from chop.hardware.design.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.design.stream import OrderError, Rows, Stream
from chop.nn.integer import IntegerSoftmax
from chop.nn.integer.edge import bit_width
from chop.nn.integer.mask import KeptKeys

PIPELINE = 12
"""Pipeline registers of a row in addition to the counted stages, with a margin."""
STAGES = 11
"""Registers ahead of a row's first result, which waits for the sum of the row."""
MASK_STAGES = 6
"""Additional cycles of a mask."""


def plan_softmax(site: Site) -> ComponentPlan:
    """Plans a softmax over rows, one code at a time, along the dimension in which they are sent.

    Raises:
        ConfigError: if it is over samples, rows are interleaved, or a mask has another order.
    """
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerSoftmax)
    rows = _rows(operator, read)
    plan = _plan(operator, read, rows)
    return plan if site.mask_keys is None else _masked(plan, site, rows, site.mask_keys)


def _plan(operator: IntegerSoftmax, read: Stream, rows: Rows) -> ComponentPlan:
    table = operator.exponentials.tolist()
    table_width = max(table).bit_length()
    reciprocal_width = operator.places - table_width + 1
    division = reciprocal_cycles(reciprocal_width)
    out = read.of(operator.out).with_lanes(1)
    # A row of exponentials waits for its sum, and those that arrive during the division wait as
    # well.
    depth = rows.features + min(division, 2 * rows.features) + PIPELINE
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
        holds=(rows.features / read.size,),
        needs=(row_ends(read.size, rows.features),),
        buffers=(0,),
        latency=rows.features + division + STAGES,
    )


def row_ends(beats: int, row: int) -> torch.Tensor:
    """Returns int64 (beats,): the last beat of each beat's row, on which its result depends."""
    return torch.arange(beats) // row * row + row - 1


def _masked(plan: ComponentPlan, site: Site, rows: Rows, mask_keys: KeptKeys) -> ComponentPlan:
    """Returns the plan of `chop_masked_softmax`, with codes below those of `chop_softmax`."""
    read, mask = site.inputs
    low, high, table = read.edge.low, read.edge.high, plan.memories["TABLE_FILE"]
    order = torch.arange(rows.features)
    if not torch.equal(mask.positions.flatten(), rows.order):
        raise ConfigError(f"a mask of {mask.shape} and the {rows.features} scores differ in order")
    if mask_keys.is_causal and not torch.equal(rows.order, order):
        raise ConfigError("the keys of a causal mask are not in order")
    # A hidden code is so far below every visible maximum that its table entry lies in the added
    # half, which is 0.
    hidden = low - len(table.words)
    # The whole mask has been read when the first row has.
    needs = (*plan.needs, plan.needs[0].clamp(max=mask.size - 1))
    return replace(
        plan,
        module="chop_masked_softmax",
        parameters={
            **plan.parameters,
            "ROWS": rows.count,
            "INNER": _rows_of_a_query(rows) if mask_keys.is_causal else 1,
            "QUERIES": mask_keys.queries,
            "CAUSAL": int(mask_keys.is_causal),
            "SCORE_W": read.width,
            "MASK_W": mask.width,
            "IN_W": bit_width(hidden, high),
            "HIDDEN": hidden,
            "TABLE_DEPTH": 2 * len(table.words),
        },
        lanes=(1, 1),
        memories={"TABLE_FILE": replace(table, words=table.words + (0,) * len(table.words))},
        resources=replace(
            plan.resources, memory_bits=plan.resources.memory_bits + 2 * rows.features
        ),
        holds=(*plan.holds, 0.0),
        latency=plan.latency + MASK_STAGES,
        needs=needs,
        buffers=(0, rows.features),
    )


def _rows_of_a_query(rows: Rows) -> int:
    """Returns the number of consecutive rows that belong to one query: one per head, or one.

    Raises:
        ConfigError: if queries are not in order.
    """
    queries = rows.places.size(-1)
    row_queries = (
        torch.arange(queries).expand(rows.places.shape).flatten()[rows.places.flatten().argsort()]
    )
    for inner in divisors(rows.count // queries):
        if torch.equal(row_queries, torch.arange(rows.count) // inner % queries):
            return inner
    raise ConfigError("the queries of a causal mask are not in order")


def reciprocal_cycles(width: int) -> int:
    """Returns the cycles of `chop_reciprocal` per number, by the quotient's width in bits."""
    return width + 1


def _rows(operator: IntegerSoftmax, read: Stream) -> Rows:
    """Returns the rows along the operator's dimension, which may count the batch.

    Raises:
        ConfigError: if it is the batch dimension.
    """
    rank = len(read.shape)
    dim = operator.dim if operator.dim < 0 else operator.dim - rank - 1
    if dim < -rank:
        raise ConfigError(
            "it is a softmax over the batch dimension, and samples are sent one by one"
        )
    try:
        return replace(read, positions=read.positions.movedim(dim, -1)).rows()
    except OrderError as error:
        wanted = error.wanted[0].movedim(-1, dim)
        raise OrderError(str(error), {0: wanted}) from None
