"""Lookup tables and flip-flops of component parts and of the links between components.

Registers are counted as declared in the sources in `rtl/`. A bit of a sum or a 2:1 multiplexer
takes one lookup table. Constants for control logic were fitted to the counts of Yosys 0.23 for the
designs of `benchmarks/hardware_estimates.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any, NamedTuple

from chop.hardware.plans.window import Axis

Parameters = Mapping[str, Any]
HANDSHAKE = 4
"""Lookup tables of `valid`, `ready` and the enable of a pipeline."""
LARGE_FIFO = 50
"""FIFO depth from which a second output register is used, LARGE of `chop_fifo`."""
WINDOW_LOGIC = 1.5
"""Lookup tables per bit of an image position."""
WIDEST = 10**9
_ROWS = ("IN_HEIGHT", "OUT_HEIGHT", "KERNEL_Y", "STRIDE_Y", "PADDING_Y", "DILATION_Y")


class Ram(NamedTuple):
    """A memory with a read port and a write port.

    Attributes:
        words: number of words.
        width: bits of a word.
        behind: bits of a register without enable behind the word that was read. Some block memories
            absorb it.
    """

    words: int
    width: int
    behind: int = 0


class Logic(NamedTuple):
    """Logic resources of a module.

    Attributes:
        lut: lookup tables with 6 inputs, without those of products and memories.
        ff: flip-flops, without those of multipliers and memories.
        rams: read-write memories, with the registers behind.
        bits: bits of sums and 2:1 multiplexers; each takes one lookup table on any family.
        enabled: flip-flops beside multipliers with an enable, or the second register behind a
            product. Not every multiplier can absorb them.
        added: bits of sums of two products, which some multipliers compute themselves.
        factors: flip-flops of factors, which multipliers absorb. They remain flip-flops if the
            product is built from lookup tables.
    """

    lut: float
    ff: float
    rams: tuple[Ram, ...] = ()
    bits: float = 0
    enabled: float = 0
    added: float = 0
    factors: float = 0

    def plus(self, other: Logic) -> Logic:
        """Returns the sum of both."""
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
        """Returns the resources of several copies."""
        rams = self.rams * count
        numbers = (self.bits, self.enabled, self.added, self.factors)
        return Logic(self.lut * count, self.ff * count, rams, *(n * count for n in numbers))


def count_bits(n: int) -> int:
    """Returns the bits of a counter with `n` states."""
    return max(n - 1, 1).bit_length()


def skid_logic(p: Parameters) -> Logic:
    """Estimates `chop_skid`: two registers and a multiplexer."""
    return Logic(3, 2 * p["W"] + 2, bits=p["W"])


def fifo_logic(p: Parameters) -> Logic:
    """Estimates `chop_fifo`: one register at the memory's output, two if it is large."""
    depth, bits = p["DEPTH"], p["W"]
    if depth <= 2:
        return skid_logic(p)
    is_large = depth >= LARGE_FIFO
    # The registers behind the memory hold the other beats of the depth.
    words = depth - 1 - is_large
    index, count = count_bits(words), count_bits(words + 1)
    logic = Logic(7 * index + 4, 2 * index + count + 1, (Ram(words, bits),))
    return logic.plus(Logic(8, bits + 1)) if is_large else logic


def credits_logic(bits: int, latency: int, every: int = 1, places: int = 0) -> Logic:
    """Estimates `chop_credits`, the end of each pipeline: a FIFO with a slot for each credit."""
    # The default of PLACES in the module.
    places = places or (latency + 4) // every + 2
    count = places.bit_length()
    return fifo_logic({"W": bits, "DEPTH": places}).plus(Logic(3.5 * count, count + 1))


def fork_logic(p: Parameters) -> Logic:
    """Estimates `chop_fork`: a bit per reader that has accepted the beat."""
    return Logic(2 * p["N"] + 1, p["N"])


def downsize_logic(p: Parameters) -> Logic:
    """Estimates `chop_downsize`: a register with load and shift; its last lanes only load."""
    bits, count = p["IN_LANES"] * p["W"], count_bits(p["IN_LANES"] // p["OUT_LANES"] + 1)
    return Logic(2 * count, bits + count, bits=2 * (bits - p["OUT_LANES"] * p["W"]))


def upsize_logic(p: Parameters) -> Logic:
    """Estimates `chop_upsize`: a shift register."""
    if p["IN_LANES"] == p["OUT_LANES"]:
        return Logic(HANDSHAKE, p["OUT_LANES"] * p["W"] + 1)
    count = count_bits(p["OUT_LANES"] // p["IN_LANES"])
    return Logic(count + HANDSHAKE, p["OUT_LANES"] * p["W"] + count + 1)


def words_logic(beats: int) -> Logic:
    """Estimates `chop_words` without memory and output register: an adder and a wrap-around."""
    count = count_bits(beats)
    return Logic(2 * count + 2, count)


def constant_logic(beats: int, bits: int) -> Logic:
    """Estimates `chop_constant` without its memory."""
    return words_logic(beats).plus(credits_logic(bits, 2)).plus(Logic(1, 2))


def repeat_logic(bits: int, beats: int, times: int) -> Logic:
    """Estimates `chop_repeat`, which reads rows several times."""
    if times == 1:
        return Logic(0, 2 * bits)
    counts = count_bits(beats) + count_bits(times)
    return Logic(4 * counts, 2 * bits + counts + 2, (Ram(beats, bits),), bits=bits)


def tree_logic(inputs: int, term: int, total: int = WIDEST) -> Logic:
    """Estimates a pairwise adder tree with a register per node and sums of at most `total` bits.

    >>> nine = tree_logic(9, 13)  # 5, 3, 2 and 1 nodes, of which 4, 2, 1 and 1 are sums
    >>> nine.ff, nine.added, nine.bits
    (164, 56, 63)
    """
    nodes, registers, sums = inputs, 0, list[int]()
    while nodes > 1:
        # A level adds one bit. Bits above those of the result are dropped at every level.
        width = min(term + len(sums) + 1, total)
        sums.append(nodes // 2 * width)
        # A node without a partner passes through a register, so that all paths have equal latency.
        nodes = -(-nodes // 2)
        registers += nodes * width
    # The first level adds pairs of products, which the multipliers of some families do themselves.
    return Logic(0, registers, bits=sum(sums[1:]), added=sum(sums[:1]))


def taps_logic(p: Parameters, width: int, gates: int) -> Logic:
    """Estimates `chop_taps`, a tree for each lane with a register per node.

    Args:
        p: parameters of a component with a window.
        width: bits of a result.
        gates: lookup tables for each bit of a node with two operands.
    """
    nodes, registers, pairs = p.get("TAP_LANES", 1), 0, 0
    while nodes > 1:
        pairs += nodes // 2
        nodes = -(-nodes // 2)
        registers += nodes
    levels = (p.get("TAP_LANES", 1) - 1).bit_length()
    bits = p["LANES"] * width
    return Logic(HANDSHAKE * (levels > 0), registers * bits + levels, bits=gates * pairs * bits)


def rows_logic(bits: int, beats: int, groups: int, stages: int) -> Logic:
    """Estimates the repetition of rows for a product, and its first-term and last-term flags."""
    count = count_bits(beats)
    return repeat_logic(bits, beats, groups).plus(
        Logic(3 * count + HANDSHAKE, count + 3 * stages + 2)
    )


def sums_logic(outputs: int, tree: Logic, total: int, beats: int) -> Logic:
    """Estimates a tree per output, with a register that accumulates `beats` sums."""
    own = Logic(0, outputs * total, bits=outputs * total * (beats > 1))
    return tree.times(outputs).plus(own)


def round_logic(width: int, shift: int, out: int) -> Logic:
    """Estimates `chop_round_saturate`: an adder, comparisons with both limits, a multiplexer.

    Only the result bits of the sum are kept. Its operand has its sign bit twice, and the dropped
    high bits equal each other except for the sign.
    """
    sum_bits = max(width - max(shift, 0) + 1, 2) if shift > 0 else width
    below = max(min(shift, width), 0)
    registers = sum_bits + 2 + min(sum_bits, out) + min(sum_bits + 1 + (shift < 0), out)
    return Logic(1.7 * sum_bits + below / 4 + out / 2, registers)


def reciprocal_logic(width: int, out: int) -> Logic:
    """Estimates `chop_reciprocal`: a subtraction and a multiplexer controlled by its sign."""
    count = count_bits(out + 1)
    return Logic(2 * count + 6, 2 * width + out + count + 1, bits=2 * width)


def isqrt_logic(width: int) -> Logic:
    """Estimates `chop_isqrt`: a subtraction and a multiplexer controlled by its sign."""
    root = (width + 1) // 2
    count = count_bits(root + 1)
    return Logic(2 * count + 6, 4 * root + count + 2, bits=2 * root + 4)


def window_logic(p: Parameters) -> Logic:
    """Estimates `chop_window`: counters of positions in the image and in the ring buffer."""
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
    ring = (Ram(words, bits, behind=bits),)
    registers = state - 3 * y + _row_registers(p)
    own = Logic(WINDOW_LOGIC * state, registers + 7, ring, bits=bits)
    # Each further tap has a memory port and a ring slot; kernel columns and rows have positions.
    # With pixels of one beat, columns and words share a position counter.
    tap = Logic(0, slot + 2, ring, bits=slot + bits)
    column = Logic(0, x * min(p["FOLDS"], 2) + 1, bits=x * (min(p["FOLDS"], 2) + 1))
    row = Logic(0, slot + y + 1, bits=3 * slot + 2 * y)
    own = own.plus(tap.times(taps - 1)).plus(column.times(across - 1)).plus(row.times(down - 1))
    return own.plus(credits_logic(taps * bits, 4))


def _row_registers(p: Parameters) -> int:
    """Counts the bits of rows that windows wait for and release; constant bits take no register."""
    y = Axis(*(p[name] for name in _ROWS))
    needed = [y.needed(row) for row in range(y.windows)]
    finished = [y.finished(row) for row in range(y.windows)]
    waits = [b - a for a, b in pairwise([*needed, y.size + needed[0]])]
    releases = [b - a for a, b in pairwise([0, *finished])]
    changing = [reduce(or_, (row ^ rows[0] for row in rows)) for rows in (waits, releases)]
    # Two more registers have the released rows, or none.
    bits = sum(map(int.bit_count, changing)) + 2 * reduce(or_, releases).bit_count()
    return bits + count_bits(y.windows) * any(changing)
