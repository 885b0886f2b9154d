"""Plan of the softmax."""

from __future__ import annotations

from dataclasses import replace

import torch

from chop.errors import ConfigError
from chop.hardware.design.lanes import divisors
from chop.hardware.design.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.design.stream import Rows, Stream
from chop.nn.integer import IntegerSoftmax
from chop.nn.integer.edge import bit_width
from chop.nn.integer.mask import KeptKeys

PIPELINE = 12
"""Registers that a row passes beside the stages that are counted, and some to spare."""
STAGES = 17
"""The same of the first result of a row, from the last code: a row is summed after that."""
MASK_STAGES = 4
"""Cycles that a mask adds."""


def plan_softmax(site: Site) -> ComponentPlan:
    """Rows one code at a time, along whatever dimension they travel.

    Raises:
        ConfigError: it is over samples, codes of a row do not travel one after another, or a mask
            does not travel as they do.
    """
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerSoftmax)
    rows = _rows(operator, read)
    plan = _plan(operator, read, rows)
    return plan if site.kept is None else _masked(plan, site, rows, site.kept)


def _plan(operator: IntegerSoftmax, read: Stream, rows: Rows) -> ComponentPlan:
    table = operator.exponentials.tolist()
    table_width = max(table).bit_length()
    reciprocal_width = operator.places - table_width + 1
    division = reciprocal_cycles(reciprocal_width)
    out = read.of(operator.out).with_lanes(1)
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
    """int64 (beats,): for each beat the last one of its row, which its result needs."""
    return torch.arange(beats) // row * row + row - 1


def _masked(plan: ComponentPlan, site: Site, rows: Rows, kept: KeptKeys) -> ComponentPlan:
    """The plan of `chop_masked_softmax`, whose codes reach below those of `chop_softmax`."""
    read, mask = site.inputs
    low, high, table = read.edge.low, read.edge.high, plan.memories["TABLE_FILE"]
    order = torch.arange(rows.features)
    if not torch.equal(mask.positions.flatten(), rows.order):
        raise ConfigError(
            f"a mask of {mask.shape} does not travel as the {rows.features} scores do"
        )
    if kept.is_causal and not torch.equal(rows.order, order):
        raise ConfigError("the keys of a causal mask do not travel in order")
    hidden = low - len(table.words)
    # Once a row is taken in, so are all numbers of the mask.
    needs = (*plan.needs, plan.needs[0].clamp(max=mask.size - 1))
    return replace(
        plan,
        module="chop_masked_softmax",
        parameters={
            **plan.parameters,
            "ROWS": rows.count,
            "INNER": _rows_of_a_query(rows) if kept.is_causal else 1,
            "QUERIES": kept.queries,
            "CAUSAL": int(kept.is_causal),
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
    """How many rows travel one after another that have one query: those of all heads, or one.

    Raises:
        ConfigError: queries do not travel in order.
    """
    queries = rows.places.size(-1)
    of_row = (
        torch.arange(queries).expand(rows.places.shape).flatten()[rows.places.flatten().argsort()]
    )
    for inner in divisors(rows.count // queries):
        if torch.equal(of_row, torch.arange(rows.count) // inner % queries):
            return inner
    raise ConfigError("the queries of a causal mask do not travel in order")


def reciprocal_cycles(width: int) -> int:
    """Cycles of `chop_reciprocal` between two numbers, for the quotient's width in bits."""
    return width + 1


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
