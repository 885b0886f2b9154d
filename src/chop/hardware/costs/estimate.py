"""Resource estimates of a design from its structure, without synthesis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chop.hardware.costs.devices import XC7, Family, SmallRam
from chop.hardware.costs.logic import estimate_logic
from chop.hardware.design.connect import Connections, connect
from chop.hardware.design.instances import Instance, Netlist
from chop.hardware.design.load import WORD_BITS, loadable
from chop.hardware.design.netlist import netlist
from chop.hardware.design.plan import ComponentPlan, Memory, Resources
from chop.hardware.design.products import cut, soft_parts
from chop.ir.graph import MaseGraph

ESTIMATED = (
    "Estimated from the structure. For most designs compared with Yosys, lookup tables and "
    "flip-flops are within 20 %."
)
"""Footnote of a report of estimates."""
SOFT_PRODUCT = 1.35
"""Lookup tables per bit of the sums in a product built from lookup tables, measured in Yosys."""
ADDER_PAIRS = 2.0
"""Lookup tables for each two bits of an adder with a constant shift."""
CHOICE = 1.0
"""Lookup tables with 6 inputs per word of small memories, for each multiplexed bit."""
WEIGHTS = "WEIGHT_FILE"
"""Parameter of the memory whose words are factors of multipliers."""


def describe_estimate(family: str) -> str:
    """Returns the footnote of estimates, with the family that they are counted for."""
    return f"Counted with the cost tables of {family}. {ESTIMATED}"


class Usage(NamedTuple):
    """Resource counts, named as in `chop.hardware.costs.devices`."""

    lut: float = 0.0
    ff: float = 0.0
    dsp: float = 0.0
    bram: float = 0.0

    def plus(self, other: Usage) -> Usage:
        """Returns the sum of two counts."""
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class DesignCost:
    """Resource use and timing of a design.

    Attributes:
        usage: device resources.
        interval: cycles between two samples.
        latency: cycles from the first code of a sample to its last result.
    """

    usage: Usage
    interval: int
    latency: int


@cache
def estimates_id() -> str:
    """Returns a digest of this package's sources. Only estimates of one digest are comparable."""
    digest = hashlib.sha256()
    # The plans decide an estimate as much as the formulas, so all sources of the package count.
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def design_cost(mg: MaseGraph, fold: int, family: Family = XC7) -> DesignCost:
    """Estimates the cost of an integer graph's circuit, without writing it.

    Args:
        mg: the graph.
        fold: maximum cycles of an operator per sample.
        family: device family.
    Raises:
        ConfigError: if operators have no circuit; the message names all of them.
    """
    made = netlist(mg, fold)
    return estimate_cost(made, connect(made), family)


def estimate_cost(made: Netlist, connections: Connections, family: Family = XC7) -> DesignCost:
    """Estimates the cost of a design."""
    interval = max(made.interval, connections.interval)
    latency = connections.schedule.latency(made)
    return DesignCost(design_usage(made, connections, family), interval, latency)


@dataclass(frozen=True)
class Estimate:
    """Resources of components, without the registers around multipliers and memories.

    Attributes:
        dsp: DSP48 blocks.
        ramb18: block memories of 18 Kbit.
        table_lut: lookup tables that store read-only memories.
    """

    dsp: int
    ramb18: int
    table_lut: int


def estimate(plans: Iterable[ComponentPlan]) -> Estimate:
    """Estimates the resources of components."""
    every = list(plans)
    memories = [m for plan in every for m in plan.memories.values() if not m.is_loadable]
    return Estimate(
        sum(
            dsp_blocks(*widths) * count
            for plan in every
            if not plan.resources.is_soft
            for widths, count in plan.resources.parts
        ),
        sum(block_memories(memory) * memory.copies for memory in memories),
        sum(table_luts(memory) * memory.copies for memory in memories),
    )


def design_usage(made: Netlist, connections: Connections, family: Family = XC7) -> Usage:
    """Estimates the resources of a design: its components and the links between them."""
    total = Usage()
    for part in made.instances:
        total = total.plus(_part_usage(part, family))
    for link in connections.links:
        total = total.plus(module_usage(link.module, link.parameters, family))
    if (load := loadable(made.instances)) is not None:
        total = total.plus(_loader_usage(load.port.beats))
    return Usage(round(total.lut), round(total.ff), total.dsp, total.bram)


def _loader_usage(words: int) -> Usage:
    """Estimates `chop_load`: a counter, its comparison, and the register of a word."""
    count = words.bit_length()
    return Usage(2 * count, 2 * count + WORD_BITS + 4)


def _part_usage(part: Instance, family: Family = XC7) -> Usage:
    """Estimates a component with its products and memories."""
    return plan_usage(part.module, part.plan, family)


def plan_usage(module: str, plan: ComponentPlan, family: Family = XC7) -> Usage:
    """Estimates an instance of a module with its products and memories."""
    total = _products(plan.resources, family)
    has_multipliers = total.dsp > 0
    for name, memory in plan.memories.items():
        # With two registers per factor, a multiplier takes in the output register of its weight
        # memory as well as the register of the factor.
        feeds = has_multipliers and name == WEIGHTS
        if memory.is_loadable:
            each = _loadable_usage(memory, family)
        else:
            each = _memory_usage(memory, family, feeds and family.input_registers > 1)
        total = total.plus(Usage(*(memory.copies * number for number in each)))
    if plan.source:  # all of it is in the resources
        return total
    return total.plus(module_usage(module, plan.parameters, family, has_multipliers))


def _products(resources: Resources, family: Family) -> Usage:
    """Returns the resources of products, with the register behind each."""
    total = Usage(ADDER_PAIRS * sum(-(-bits // 2) for bits in resources.sums), resources.registers)
    if resources.is_soft:
        for (a, b), count in resources.multipliers.items():
            parts = soft_parts(a, b)
            luts = parts.sums + family.soft_gates * parts.gates
            total = total.plus(Usage(luts * count, parts.registers * count))
        return total
    for (a, b), count in resources.parts:
        blocks = dsp_blocks(a, b, family)
        # Adding one row per bit of the narrower factor takes one sum less than there are rows.
        soft = 0.0 if blocks else SOFT_PRODUCT * max(min(a, b) - 1, 1) * (a + b)
        register = 0 if blocks else a + b
        total = total.plus(Usage(soft * count, register * count, blocks * count))
    return total


def _memory_usage(memory: Memory, family: Family, is_absorbed: bool) -> Usage:
    """Returns the resources of one copy of a read-only memory and of its output register."""
    blocks = block_memories(memory, family)
    ffs = table_registers(memory, family)
    if not is_absorbed and not (blocks and family.absorbs_words):
        ffs += _distinct_columns(memory)
    return Usage(table_luts(memory, family), ffs, 0, blocks)


def _loadable_usage(memory: Memory, family: Family) -> Usage:
    """Returns the resources of a memory of `chop_ram`: its parts, and the register of a write.

    Its output register is not absorbed by a multiplier.
    """
    parts = -(-memory.width // WORD_BITS)
    offset = (len(memory.words) * parts).bit_length()
    total = Usage(2 * offset + parts, 1 + offset + WORD_BITS + memory.width)
    for first in range(0, memory.width, WORD_BITS):
        bits = min(memory.width - first, WORD_BITS)
        total = total.plus(_ram(len(memory.words), bits, family))
    return total


def module_usage(
    module: str,
    parameters: Mapping[str, Any],
    family: Family = XC7,
    has_multipliers: bool = False,
) -> Usage:
    """Estimates an instance of a module without products and read-only memories.

    Args:
        module: module name.
        parameters: parameters of the instance.
        family: device family.
        has_multipliers: products use multipliers of the device.
    """
    logic = estimate_logic(module, parameters)
    # Multipliers with a single register per factor cannot absorb registers with an enable.
    takes_all = has_multipliers and family.input_registers > 1
    registers = logic.ff + (not takes_all) * logic.enabled + (not has_multipliers) * logic.factors
    added = logic.added * (1 - family.added * has_multipliers)
    total = Usage(logic.lut * family.logic + logic.bits + added, registers)
    for ram in logic.rams:
        used = _ram(ram.words, ram.width, family)
        is_absorbed = used.bram and family.absorbs_words
        total = total.plus(used).plus(Usage(ff=0 if is_absorbed else ram.behind))
    return total


def _ram(words: int, width: int, family: Family) -> Usage:
    """Returns the resources of a writable memory: blocks, or lookup tables and a register."""
    blocks = _blocks(words, width, family)
    costs = {small: _small_cost(words, width, small) for small in family.small_rams}
    cheapest = min(costs, key=costs.__getitem__, default=None)
    # memory_libmap takes the mapping with the lower cost, not the one with fewer lookup tables.
    if cheapest is None or costs[cheapest] >= blocks * family.block_cost:
        return Usage(bram=blocks)
    rows = -(-words // cheapest.words)
    # A multiplexer selects the row of tables to read, a decoder the row to write.
    choice = family.logic * (CHOICE * (rows - 1) * width + 2 * (rows - 1))
    return Usage(rows * -(-width // cheapest.width) * cheapest.luts + choice, width)


def _small_cost(words: int, width: int, small: SmallRam) -> float:
    """Returns the cost in Yosys 0.23's `memory_libmap`: tables and half a table per multiplexer."""
    rows = -(-words // small.words)
    tables = rows * -(-width // small.width)
    cost = (small.cost - small.by_width) * tables + small.by_width * rows * width / small.width
    return cost + ((rows - 1) * width + rows * (rows > 1)) / 2


def _blocks(words: int, width: int, family: Family) -> int:
    shapes = family.block_shapes.items()
    return min(-(-width // wide) * -(-words // deep) for wide, deep in shapes)


def dsp_blocks(a: int, b: int, family: Family = XC7) -> int:
    """Returns the multipliers of a signed `a` by `b` bit product; 0 if it uses lookup tables.

    >>> [dsp_blocks(8, 8), dsp_blocks(25, 18), dsp_blocks(32, 16), dsp_blocks(4, 4)]
    [1, 2, 2, 0]
    """
    if not family.dsp_width:
        return 0
    parts = [(x, y) for x in cut(a) for y in cut(b)]
    return sum(x + y >= family.least_product and min(x, y) > 1 for x, y in parts)


def block_memories(memory: Memory, family: Family = XC7) -> int:
    """Returns the block memories of one copy of a memory; 0 if it is built from lookup tables.

    Yosys 0.23 builds a read-only memory from lookup tables if it fills less than a share of each
    block: half in the family XC7, a ninth in the family ECP5. Bits that are equal in all words are
    not stored.
    """
    depth, width = len(memory.words), max(_varying_columns(memory), 1)
    columns = -(-width // max(family.block_shapes))
    if depth * width < columns * family.least_rom:
        return 0
    return _blocks(depth, width, family)


def table_luts(memory: Memory, family: Family = XC7) -> int:
    """Returns the lookup tables of one copy of a memory; 0 if it is built from block memories.

    The multiplexers of a slice select among 2 or 4 lookup tables. Above that, every 4 need another
    lookup table as a multiplexer. Yosys 0.23 measures, per bit of random words, 6.25 tables for 5
    times 64 words, 7.5 for 6, 10 for 8, and 14.5 for 12.

    >>> [table_luts(Memory((0, 1) * (words // 2), 1)) for words in (64, 192, 320, 512)]
    [1, 4, 7, 10]
    """
    tables = -(-len(memory.words) // family.table_words)
    # A slice selects among 2 or 4 lookup tables with its own multiplexers. Beyond 4, each group of
    # 4 needs one more lookup table as a multiplexer.
    tables = 4 if tables == 3 else tables + (-(-tables // 4) if tables > 4 else 0)
    return table_registers(memory, family) * tables


def table_registers(memory: Memory, family: Family = XC7) -> int:
    """Returns the flip-flops of the output register of one copy of a memory.

    See `_distinct_columns`. Block memories have their own registers.

    >>> table_registers(Memory((0b001, 0b111), 3)), table_luts(Memory((5,), 3))
    (1, 0)
    """
    return 0 if block_memories(memory, family) else _distinct_columns(memory)


def _distinct_columns(memory: Memory) -> int:
    """Counts the bits of a word that are neither constant nor equal to another bit in all words.

    >>> _distinct_columns(Memory((0b001, 0b111), 3))
    1
    """
    return len(set(_columns(memory)))


def _varying_columns(memory: Memory) -> int:
    """Counts the bits that differ between words. Block memories store equal columns separately."""
    return len(_columns(memory))


def _columns(memory: Memory) -> list[bytes]:
    """Returns the values of each bit that differs between words."""
    size = -(-memory.width // 8)
    rows = b"".join(word.to_bytes(size, "little") for word in memory.words)
    bits = np.unpackbits(np.frombuffer(rows, np.uint8).reshape(-1, size), axis=1, bitorder="little")
    columns = (column.tobytes() for column in np.ascontiguousarray(bits.T[: memory.width]))
    # A constant bit becomes a wire, so it takes neither storage nor a register.
    constant = bytes(len(memory.words)), b"\x01" * len(memory.words)
    return [column for column in columns if column not in constant]
