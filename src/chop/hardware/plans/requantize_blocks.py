"""Plan of requantizers to shared block exponents (MXINT)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.groups import Blocks
from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.design.stream import OrderError, Stream
from chop.hardware.plans.elementwise import plan_requantize
from chop.nn.integer import BlockGrid, Edge, Grid, Requantize, RequantizeBlocks

LOAD_STAGES = 6
"""Cycles from the last code of a block to its exponent, with the FIFO behind it."""
SEND_STAGES = 8
"""Cycles from a code to its result, with the FIFO behind it."""
WAITING = 12
"""Input beats between a complete block and its exponent, with a margin."""


class _Runs(NamedTuple):
    """Lengths of blocks that are transferred one after another.

    Attributes:
        block: codes of a block.
        features: codes of a row of blocks; the last block of a row may be shorter.
    """

    block: int
    features: int

    @property
    def rest(self) -> int:
        """Codes of the last block of a row."""
        return self.features % self.block or self.block


def plan_requantize_blocks(site: Site) -> ComponentPlan:
    """Plans a requantizer that stores a block until its exponent is known.

    Each beat belongs to one block. A window of one exponent is a plain requantizer.

    Raises:
        ConfigError: if blocks span several samples, have no regular order, or contain masked codes.
        OrderError: if blocks are interleaved.
    """
    operator, (read, *others) = site.operator, site.inputs
    if others:
        raise ConfigError(
            "masked scores with shared block exponents have no circuit; give the attention's "
            "data_in a format without shared exponents, such as integer"
        )
    assert isinstance(operator, RequantizeBlocks)
    grid = BlockGrid(*operator.grid)
    window, base = grid.highest - grid.lowest, grid.lowest - operator.exponent
    # All blocks have one possible exponent, so none has to be stored until its maximum is known.
    if not window:
        return _plain_plan(site, operator, grid)
    block_numbers = _block_of_each(grid.groups, read)
    runs = _runs(block_numbers)
    lanes = _lanes(runs, read, site.fold)
    out = read.of(operator.out).with_lanes(lanes)
    beat_blocks = block_numbers[::lanes].contiguous()
    ends = torch.searchsorted(beat_blocks, beat_blocks, right=True) - 1
    return ComponentPlan(
        parameters={
            "LANES": lanes,
            "FEATURES": runs.features,
            "BLOCK": runs.block,
            "IN_W": read.width,
            "OUT_W": out.width,
            # Beyond these ends every block has the same exponent.
            "BASE": min(max(base, -window), read.width),
            "WINDOW": window,
            "SHIFT": base - grid.places + window,
            "LIMIT": grid.limit,
        },
        lanes=(lanes,),
        out=out,
        cycles=out.beats,
        resources=Resources(memory_bits=(runs.block // lanes + WAITING) * (lanes * read.width + 1)),
        holds=(runs.block / read.size,),
        needs=(ends,),
        buffers=(0,),
        latency=LOAD_STAGES + SEND_STAGES,
    )


def _plain_plan(site: Site, operator: RequantizeBlocks, grid: BlockGrid) -> ComponentPlan:
    """Returns the plan of a plain requantizer, for a window of one exponent."""
    read = site.inputs[0].edge
    edge = Edge.of(2.0**operator.exponent, read.low, read.high)
    plain = Requantize(edge, Grid(grid.step, -grid.limit, grid.limit))
    plan = plan_requantize(replace(site, operator=plain))
    return plan if plan.module else replace(plan, module="chop_requantize")


def _lanes(runs: _Runs, read: Stream, fold: int) -> int:
    """Returns the fewest lanes that reach a fold."""

    def cycles(lanes: int) -> int:
        return max(read.size // lanes, converter_cycles(read.size, read.lanes, lanes))

    # No beat may have codes of two blocks, also at the shorter end of a row.
    return first_within(divisors(math.gcd(runs.block, runs.rest)), fold, cycles)


def _block_of_each(groups: Blocks, read: Stream) -> Tensor:
    """Returns int64 (size,): the index of the block at each stream position.

    Raises:
        ConfigError: if samples share blocks.
        OrderError: if a block is interrupted by others.
    """
    # Two samples reveal blocks that reach from one sample into the next.
    shape = (2, *read.shape)
    split = groups.split(torch.zeros(shape, dtype=torch.int64))
    numbers = torch.arange(split.shape[:-1].numel()).view(*split.shape[:-1], 1)
    first, second = groups.join(numbers.expand(split.shape), shape).contiguous()
    if bool(torch.isin(first, second).any()):
        raise ConfigError("blocks with a shared exponent span several samples")
    blocks = first.flatten()
    places: Tensor
    sent = blocks[read.positions.flatten().argsort()]
    travels, places = sent.unique_consecutive(return_inverse=True)
    if len(travels) != len(travels.unique()):
        raise OrderError(
            f"blocks of {groups.nominal_size} codes are interleaved in the stream",
            {0: blocks.argsort(stable=True).argsort().view(read.shape)},
        )
    return places


def _runs(block_numbers: Tensor) -> _Runs:
    """Returns the lengths of blocks.

    Raises:
        ConfigError: if blocks other than the last one of a row are shorter.
    """
    lengths = block_numbers.bincount()
    block, total = int(lengths[0]), len(block_numbers)
    short = (lengths != block).nonzero().flatten().tolist()
    features = int(lengths[: short[0] + 1].sum()) if short else block
    runs = _Runs(block, features)
    row = torch.tensor([block] * (features // block) + [runs.rest] * bool(features % block))
    if total % features or not torch.equal(lengths, row.repeat(total // features)):
        raise ConfigError(
            f"blocks of {sorted(set(lengths.tolist()))} codes are in no regular order"
        )
    return runs
