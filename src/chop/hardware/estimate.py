"""Estimates of DSP blocks and block memories of 7-series devices, by the structure of a design."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chop.hardware.plan import Memory, Plan

DSP_WIDTHS = (25, 18)
"""Of a DSP48's signed multiplier, in bits."""
LEAST_PRODUCT = 9
"""Narrower products are made of lookup tables."""
BLOCK_SHAPES = {1: 16384, 2: 8192, 4: 4096, 9: 2048, 18: 1024, 36: 512}
"""Words of a block memory of 18 Kbit, by their width in bits."""
WIDEST = max(BLOCK_SHAPES)
LEAST_FILL = WIDEST * BLOCK_SHAPES[WIDEST] // 2
"""Bits of each block: Yosys 0.23 makes a read-only memory that fills less of lookup tables."""
TABLE_WORDS = 64
"""That one lookup table stores of one bit."""


@dataclass(frozen=True)
class Estimate:
    """What components take, without what is around multipliers and memories.

    Attributes:
        dsp: DSP48 blocks.
        ramb18: block memories of 18 Kbit.
        table_lut: lookup tables that store read-only memories.
    """

    dsp: int
    ramb18: int
    table_lut: int


def estimate(plans: Iterable[Plan]) -> Estimate:
    """Resources of components.

    Args:
        plans: one for each instance.
    """
    every = list(plans)
    memories = [memory for plan in every for memory in plan.memories.values()]
    return Estimate(
        sum(
            dsp_blocks(*widths) * count
            for plan in every
            for widths, count in plan.resources.multipliers.items()
        ),
        sum(block_memories(memory) * memory.copies for memory in memories),
        sum(table_luts(memory) * memory.copies for memory in memories),
    )


def dsp_blocks(a: int, b: int) -> int:
    """DSP48 blocks of a signed product of `a` by `b` bits.

    A wide factor is cut in parts; all but the highest are unsigned and lose the sign's bit.

    >>> [dsp_blocks(8, 8), dsp_blocks(25, 18), dsp_blocks(32, 16), dsp_blocks(4, 4)]
    [1, 1, 2, 0]
    """
    if a + b < LEAST_PRODUCT:
        return 0
    wide, narrow = DSP_WIDTHS
    return min(_parts(a, wide) * _parts(b, narrow), _parts(a, narrow) * _parts(b, wide))


def _parts(width: int, limit: int) -> int:
    return max(1, -(-(width - 1) // (limit - 1)))


def block_memories(memory: Memory) -> int:
    """Block memories of 18 Kbit of one copy of a memory; 0 where it is made of lookup tables."""
    depth = len(memory.words)
    columns = -(-memory.width // WIDEST)
    if depth * memory.width < columns * LEAST_FILL:
        return 0
    return min(
        -(-memory.width // width) * -(-depth // words) for width, words in BLOCK_SHAPES.items()
    )


def table_luts(memory: Memory) -> int:
    """Lookup tables of one copy of a memory; 0 where it is made of block memories."""
    if block_memories(memory):
        return 0
    return memory.width * -(-len(memory.words) // TABLE_WORDS)
