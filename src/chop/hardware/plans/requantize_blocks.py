"""Plan of requantizers to blocks with shared exponents (MXINT)."""

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
from chop.hardware.design.stream import Stream
from chop.hardware.plans.elementwise import plan_requantize
from chop.nn.integer import BlockGrid, Edge, Grid, Requantize, RequantizeBlocks

LOAD_STAGES = 6
"""Cycles from the last code of a block to its exponent, and of the FIFO behind it."""
SEND_STAGES = 8
"""Cycles from a code to its result, and of the FIFO behind it."""
WAITING = 12
"""Beats that come until a block that is complete has its exponent, and some to spare."""


class _Runs(NamedTuple):
    """How the codes of blocks travel: one block after another.

    Attributes:
        block: codes of a block.
        features: codes after which the lengths of blocks are those from the start again: the last
            one of them may be shorter.
    """

    block: int
    features: int

    @property
    def rest(self) -> int:
        """Codes of the last block of a row."""
        return self.features % self.block or self.block


def plan_requantize_blocks(site: Site) -> ComponentPlan:
    """A block is stored until its exponent is known; beats have codes of one block each.

    In a window of one exponent there is nothing to know: it is a plain requantizer.

    Raises:
        ConfigError: blocks have codes of several samples, do not travel one after another, or
            have codes that a mask hides.
    """
    operator, (read, *others) = site.operator, site.inputs
    if others:
        raise ConfigError(
            "exponents that blocks of masked scores share have no circuit; give the attention's "
            "data_in a format without shared exponents, such as integer"
        )
    assert isinstance(operator, RequantizeBlocks)
    grid = BlockGrid(*operator.grid)
    window, base = grid.highest - grid.lowest, grid.lowest - operator.exponent
    if not window:
        edge = Edge.of(2.0**operator.exponent, read.edge.low, read.edge.high)
        plain = Requantize(edge, Grid(grid.step, -grid.limit, grid.limit))
        return replace(plan_requantize(replace(site, operator=plain)), module="chop_requantize")
    get_block = _block_of_each(grid.groups, read)
    runs = _runs(get_block)

    def cycles(lanes: int) -> int:
        return max(read.size // lanes, converter_cycles(read.size, read.lanes, lanes))

    choices = divisors(math.gcd(runs.block, runs.rest))
    lanes = first_within(choices, site.fold, cycles)
    out = read.of(operator.out).with_lanes(lanes)
    of_beat = get_block[::lanes].contiguous()
    ends = torch.searchsorted(of_beat, of_beat, right=True) - 1
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


def _block_of_each(groups: Blocks, read: Stream) -> Tensor:
    """int64 (size,): at each place of the stream, how many blocks were there before its own.

    Raises:
        ConfigError: samples share blocks, or a block is interrupted by others.
    """
    shape = (2, *read.shape)
    split = groups.split(torch.zeros(shape, dtype=torch.int64))
    numbers = torch.arange(split.shape[:-1].numel()).view(*split.shape[:-1], 1)
    first, second = groups.join(numbers.expand(split.shape), shape).contiguous()
    if bool(torch.isin(first, second).any()):
        raise ConfigError("blocks that share exponents have codes of several samples")
    travels = first.flatten()[read.positions.flatten().argsort()]
    changes = travels.diff() != 0
    if int(changes.sum()) + 1 != len(travels.unique()):
        raise ConfigError(
            f"blocks of {groups.nominal_size} codes do not travel one after another; let blocks "
            "run along the last dimension"
        )
    return torch.cat([torch.zeros(1, dtype=torch.int64), changes.long().cumsum(0)])


def _runs(get_block: Tensor) -> _Runs:
    """The lengths of blocks.

    Raises:
        ConfigError: others than the last one of a row are shorter.
    """
    lengths = get_block.bincount()
    block, total = int(lengths[0]), len(get_block)
    short = (lengths != block).nonzero().flatten().tolist()
    features = int(lengths[: short[0] + 1].sum()) if short else block
    runs = _Runs(block, features)
    row = torch.tensor([block] * (features // block) + [runs.rest] * bool(features % block))
    if total % features or not torch.equal(lengths, row.repeat(total // features)):
        raise ConfigError(f"blocks of {sorted(set(lengths.tolist()))} codes travel in no order")
    return runs
