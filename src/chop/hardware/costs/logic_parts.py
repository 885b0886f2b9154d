"""Lookup tables and flip-flops of what components are made of, and of what stands between them.

Registers are those of the sources in `rtl/`, counted as they are declared there. A bit of a sum or
of a choice between two values takes one lookup table; constants of control were fitted to what
Yosys 0.23 counts of the designs of `benchmarks/hardware_estimates.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Parameters = Mapping[str, Any]
HANDSHAKE = 4
"""Lookup tables of `valid`, `ready` and the enable of a pipeline."""
LARGE_FIFO = 50
"""Depth from which on a FIFO has a second register, LARGE of `chop_fifo`."""
WINDOW_LOGIC = 1.5
"""Lookup tables for each bit of a place in an image."""
WIDEST = 10**9


class Logic(NamedTuple):
    """What a module takes.

    Attributes:
        lut: lookup tables of 6 inputs, without those of products and memories.
        ff: flip-flops, without those of multipliers and memories.
        rams: read-write memories: words, and bits of a word.
        bits: of sums and of choices between two values: a lookup table each, however many inputs
            it has.
        enabled: flip-flops beside multipliers that have an enable, or that are the second ones
            behind a product: not every multiplier takes them.
        added: bits of sums of two products, which some multipliers add up themselves.
        factors: flip-flops of factors, which each multiplier takes; of products that none makes
            they are flip-flops.
    """

    lut: float
    ff: float
    rams: tuple[tuple[int, int], ...] = ()
    bits: float = 0
    enabled: float = 0
    added: float = 0
    factors: float = 0

    def plus(self, other: Logic) -> Logic:
        """Both."""
        return Logic(
            self.lut + other.lut,
            self.ff + other.ff,
            self.rams + other.rams,
            self.bits + other.bits,
            self.enabled + other.enabled,
            self.added + other.added,
            self.factors + other.factors,
        )

    def times(self, count: int) -> Logic:
        """So many of it."""
        rams = self.rams * count
        numbers = (self.bits, self.enabled, self.added, self.factors)
        return Logic(self.lut * count, self.ff * count, rams, *(n * count for n in numbers))


def count_bits(n: int) -> int:
    """Bits of a counter of `n` states."""
    return max(n - 1, 1).bit_length()


def skid_logic(p: Parameters) -> Logic:
    """`chop_skid`: two registers, and a choice between them."""
    return Logic(3, 2 * p["W"] + 2, bits=p["W"])


def fifo_logic(p: Parameters) -> Logic:
    """`chop_fifo`: a beat is in the register of the memory's output, and of large ones one more."""
    depth, bits = p["DEPTH"], p["W"]
    if depth <= 2:
        return skid_logic(p)
    is_large = depth >= LARGE_FIFO
    words = depth - 1 - is_large
    index, count = count_bits(words), count_bits(words + 1)
    logic = Logic(7 * index + 4, 2 * index + count + 1, ((words, bits),))
    return logic.plus(Logic(8, bits + 1)) if is_large else logic


def credits_logic(bits: int, latency: int, every: int = 1, places: int = 0) -> Logic:
    """`chop_credits`, which ends each pipeline: a FIFO with a place for each credit."""
    places = places or (latency + 4) // every + 2
    count = places.bit_length()
    return fifo_logic({"W": bits, "DEPTH": places}).plus(Logic(3.5 * count, count + 1))


def fork_logic(p: Parameters) -> Logic:
    """`chop_fork`: who has taken the beat."""
    return Logic(2 * p["N"] + 1, p["N"])


def downsize_logic(p: Parameters) -> Logic:
    """`chop_downsize`: a register that is loaded or shifted; its last lanes are only loaded."""
    bits, count = p["IN_LANES"] * p["W"], count_bits(p["IN_LANES"] // p["OUT_LANES"] + 1)
    return Logic(2 * count, bits + count, bits=2 * (bits - p["OUT_LANES"] * p["W"]))


def upsize_logic(p: Parameters) -> Logic:
    """`chop_upsize`: a register that is shifted."""
    if p["IN_LANES"] == p["OUT_LANES"]:
        return Logic(HANDSHAKE, p["OUT_LANES"] * p["W"] + 1)
    count = count_bits(p["OUT_LANES"] // p["IN_LANES"])
    return Logic(count + HANDSHAKE, p["OUT_LANES"] * p["W"] + count + 1)


def words_logic(beats: int) -> Logic:
    """`chop_words` without its memory and the register behind: a sum, and a choice at the end."""
    count = count_bits(beats)
    return Logic(2 * count + 2, count)


def constant_logic(beats: int, bits: int) -> Logic:
    """`chop_constant`, without its memory."""
    return words_logic(beats).plus(credits_logic(bits, 2)).plus(Logic(1, 2))


def repeat_logic(bits: int, beats: int, times: int) -> Logic:
    """`chop_repeat`: rows that are read again."""
    if times == 1:
        return Logic(0, 2 * bits)
    counts = count_bits(beats) + count_bits(times)
    return Logic(4 * counts, 2 * bits + counts + 2, ((beats, bits),), bits=bits)


def tree_logic(inputs: int, term: int, total: int = WIDEST) -> Logic:
    """An adder tree of pairs, with a register behind each node; sums of `total` bits at most.

    >>> nine = tree_logic(9, 13)  # 5, 3, 2 and 1 nodes, of which 4, 2, 1 and 1 are sums
    >>> nine.ff, nine.added, nine.bits
    (164, 56, 63)
    """
    nodes, registers, sums = inputs, 0, list[int]()
    while nodes > 1:
        width = min(term + len(sums) + 1, total)
        sums.append(nodes // 2 * width)
        nodes = -(-nodes // 2)
        registers += nodes * width
    return Logic(0, registers, bits=sum(sums[1:]), added=sum(sums[:1]))


def rows_logic(bits: int, beats: int, groups: int, stages: int) -> Logic:
    """What sends rows of a product again, and what tells their first and last terms."""
    count = count_bits(beats)
    return repeat_logic(bits, beats, groups).plus(
        Logic(3 * count + HANDSHAKE, count + 3 * stages + 2)
    )


def sums_logic(outputs: int, tree: Logic, total: int, beats: int) -> Logic:
    """Of each output a tree, and a register that adds up `beats` of its sums."""
    own = Logic(0, outputs * total, bits=outputs * total * (beats > 1))
    return tree.times(outputs).plus(own)


def round_logic(width: int, shift: int, out: int) -> Logic:
    """`chop_round_saturate`: a sum, comparisons with both ends beside it, a choice.

    Of the sum the bits of a result alone are kept. What it adds up has its sign twice; bits of a
    result beyond those that are kept are equal, but for its sign.
    """
    kept = max(width - max(shift, 0) + 1, 2) if shift > 0 else width
    below = max(min(shift, width), 0)
    registers = kept + 2 + min(kept, out) + min(kept + 1 + (shift < 0), out)
    return Logic(1.7 * kept + below / 4 + out / 2, registers)


def reciprocal_logic(width: int, out: int) -> Logic:
    """`chop_reciprocal`: a difference, and a choice by its sign."""
    count = count_bits(out + 1)
    return Logic(2 * count + 6, 2 * width + out + count + 1, bits=2 * width)


def isqrt_logic(width: int) -> Logic:
    """`chop_isqrt`: a difference, and a choice by its sign."""
    root = (width + 1) // 2
    count = count_bits(root + 1)
    return Logic(2 * count + 6, 4 * root + count + 2, bits=2 * root + 4)


def window_logic(p: Parameters) -> Logic:
    """`chop_window`: places in the image and in the ring."""
    bits, words = p["LANES"] * p["IN_W"], p["RING"] * p["IN_WIDTH"] * p["FOLDS"]
    taps = p.get("TAP_LANES", 1)
    across = min(taps, p["KERNEL_X"])
    down = taps // across
    reach = (p["KERNEL_Y"] - 1) * p["DILATION_Y"] + 1
    rows = p["OUT_HEIGHT"] * p["STRIDE_Y"] + reach + p["PADDING_Y"] + p["IN_HEIGHT"] + p["RING"]
    columns = p["OUT_WIDTH"] * p["STRIDE_X"] + p["KERNEL_X"] * p["DILATION_X"]
    columns = (columns + p["PADDING_X"] + p["IN_WIDTH"]) * p["FOLDS"]
    slot, y, x = count_bits(words), count_bits(rows) + 2, count_bits(columns) + 2
    places = 5 * slot + count_bits(p["IN_WIDTH"] * p["FOLDS"]) + 8 * y + 4 * x
    counts = (p["KERNEL_Y"] // down, p["KERNEL_X"] // across)
    counts = (*counts, *(p[name] for name in ("FOLDS", "OUT_WIDTH", "OUT_HEIGHT")))
    state = places + sum(map(count_bits, counts))
    own = Logic(WINDOW_LOGIC * state, state + bits + 7, ((words, bits),), bits=bits)
    # Of further taps: what is read, and by columns and rows of the kernel where. In pixels of one
    # beat a place is counted once, in columns and in words.
    tap = Logic(0, slot + bits + 2, ((words, bits),), bits=slot + bits)
    column = Logic(0, x * min(p["FOLDS"], 2) + 1, bits=x * (min(p["FOLDS"], 2) + 1))
    row = Logic(0, slot + y + 1, bits=3 * slot + 2 * y)
    own = own.plus(tap.times(taps - 1)).plus(column.times(across - 1)).plus(row.times(down - 1))
    return own.plus(credits_logic(taps * bits, 4))
