"""Estimates of DSP blocks and block memories of 7-series devices, by the structure of a design."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chop.hardware.plan import ComponentPlan, Memory

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


def estimate(plans: Iterable[ComponentPlan]) -> Estimate:
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
    """Lookup tables of one copy of a memory; 0 where it is made of block memories.

    The multiplexers beside lookup tables choose among 2 or 4 of them. Of more, each 4 take another
    lookup table that chooses: measured by Yosys 0.23, 6.25 tables of a bit for 5 times 64 random
    words, 7.5 for 6, 10 for 8, 14.5 for 12.

    >>> [table_luts(Memory(tuple(range(words)), 1)) for words in (64, 192, 320, 512)]
    [1, 4, 7, 10]
    """
    tables = -(-len(memory.words) // TABLE_WORDS)
    tables = 4 if tables == 3 else tables + (-(-tables // 4) if tables > 4 else 0)
    return table_registers(memory) * tables


def table_registers(memory: Memory) -> int:
    """Flip-flops of the word that was read of one copy of a memory.

    A bit that is the same in all words, or equals another bit in each of them, takes none. Block
    memories have registers of their own.

    >>> table_registers(Memory((0b001, 0b111), 3)), table_luts(Memory((5,), 3))
    (1, 0)
    """
    if block_memories(memory):
        return 0
    columns = {
        sum((word >> bit & 1) << place for place, word in enumerate(memory.words))
        for bit in range(memory.width)
    }
    return len(columns - {0, (1 << len(memory.words)) - 1})
