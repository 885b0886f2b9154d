"""Estimates of what a design takes of a device, by its structure: nothing is synthesized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from chop.hardware.connect import Connections, connect
from chop.hardware.devices import XC7, Family
from chop.hardware.logic import logic_of
from chop.hardware.netlist import Instance, Netlist, netlist
from chop.hardware.plan import ComponentPlan, Memory
from chop.ir.graph import MaseGraph

ESTIMATED = (
    "Estimated by structure, by constants that were fitted to two designs of linear layers and "
    "convolutions; flip-flops are about 40 % too low."
)
"""What the numbers of a report are."""
SOFT_PRODUCT = 1.1
"""Lookup tables of a product for each pair of bits, where there is no multiplier."""


class Usage(NamedTuple):
    """What is taken of each resource of a device; names are those of `chop.hardware.devices`."""

    lut: float = 0.0
    ff: float = 0.0
    dsp: float = 0.0
    bram: float = 0.0

    def plus(self, other: Usage) -> Usage:
        """The sum."""
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class DesignCost:
    """What a design takes, of a device and of time.

    Attributes:
        usage: of the device.
        interval: cycles between two samples.
        latency: cycles from the first code of a sample to its last result.
    """

    usage: Usage
    interval: int
    latency: int


def design_cost(mg: MaseGraph, fold: int, family: Family = XC7) -> DesignCost:
    """The cost of the circuit of a graph of integers, which is not written.

    Args:
        mg: the graph.
        fold: most cycles that an operator may take for a sample.
        family: of the device.
    Raises:
        ConfigError: operators have no circuit; names all of them.
    """
    made = netlist(mg, fold)
    return cost_of(made, connect(made), family)


def cost_of(made: Netlist, connections: Connections, family: Family = XC7) -> DesignCost:
    """The cost of a design."""
    interval = max(made.interval, connections.interval)
    latency = connections.schedule.latency(made)
    return DesignCost(design_usage(made, connections, family), interval, latency)


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


def design_usage(made: Netlist, connections: Connections, family: Family = XC7) -> Usage:
    """What a design takes: its components, and what stands between them."""
    total = Usage()
    for part in made.instances:
        total = total.plus(part_usage(part, family))
    for link in connections.links:
        total = total.plus(module_usage(link.module, link.parameters, family))
    return Usage(round(total.lut), round(total.ff), total.dsp, total.bram)


def part_usage(part: Instance, family: Family = XC7) -> Usage:
    """What a component takes, with its products and memories."""
    return plan_usage(part.module, part.plan, family)


def plan_usage(module: str, plan: ComponentPlan, family: Family = XC7) -> Usage:
    """What an instance of a module takes, with its products and memories.

    Args:
        module: its name.
        plan: of the instance.
        family: of the device.
    """
    total = module_usage(module, plan.parameters, family)
    for (a, b), count in plan.resources.multipliers.items():
        blocks = dsp_blocks(a, b, family)
        soft = 0.0 if blocks else SOFT_PRODUCT * a * b
        register = 0 if blocks and family.absorbs_products else a + b
        total = total.plus(Usage(soft * count, register * count, blocks * count))
    for memory in plan.memories.values():
        luts, ffs = table_luts(memory, family), table_registers(memory, family)
        each = Usage(luts, ffs, 0, block_memories(memory, family))
        total = total.plus(Usage(*(memory.copies * number for number in each)))
    return total


def module_usage(module: str, parameters: Mapping[str, Any], family: Family = XC7) -> Usage:
    """What an instance of a module takes, without products and read-only memories."""
    logic = logic_of(module, parameters)
    total = Usage(logic.lut * family.logic, logic.ff)
    for words, width in logic.rams:
        total = total.plus(_ram(words, width, family))
    return total


def _ram(words: int, width: int, family: Family) -> Usage:
    """A memory that is written to: blocks, or lookup tables and a register of the word read."""
    blocks = _blocks(words, width, family)
    if words * width >= blocks * family.least_ram or family.ram_bits is None:
        return Usage(bram=blocks)
    depth, bits, luts = family.ram_bits
    return Usage(-(-words // depth) * -(-width // bits) * luts, width)


def _blocks(words: int, width: int, family: Family) -> int:
    shapes = family.block_shapes.items()
    return min(-(-width // wide) * -(-words // deep) for wide, deep in shapes)


def dsp_blocks(a: int, b: int, family: Family = XC7) -> int:
    """Multipliers of a signed product of `a` by `b` bits; 0 where it is made of lookup tables.

    A wide factor is cut in parts; all but the highest are unsigned and lose the sign's bit.

    >>> [dsp_blocks(8, 8), dsp_blocks(25, 18), dsp_blocks(32, 16), dsp_blocks(4, 4)]
    [1, 1, 2, 0]
    """
    wide, narrow = family.dsp_widths
    if a + b < family.least_product or not wide:
        return 0
    return min(_parts(a, wide) * _parts(b, narrow), _parts(a, narrow) * _parts(b, wide))


def _parts(width: int, limit: int) -> int:
    return max(1, -(-(width - 1) // (limit - 1)))


def block_memories(memory: Memory, family: Family = XC7) -> int:
    """Block memories of one copy of a memory; 0 where it is made of lookup tables.

    Yosys 0.23 makes a read-only memory that fills less than a share of each block of lookup tables:
    half of it in the family XC7, a ninth in the family ECP5.
    """
    depth = len(memory.words)
    columns = -(-memory.width // max(family.block_shapes))
    if depth * memory.width < columns * family.least_rom:
        return 0
    return _blocks(depth, memory.width, family)


def table_luts(memory: Memory, family: Family = XC7) -> int:
    """Lookup tables of one copy of a memory; 0 where it is made of block memories.

    The multiplexers beside lookup tables choose among 2 or 4 of them. Of more, each 4 take another
    lookup table that chooses: measured by Yosys 0.23, 6.25 tables of a bit for 5 times 64 random
    words, 7.5 for 6, 10 for 8, 14.5 for 12.

    >>> [table_luts(Memory(tuple(range(words)), 1)) for words in (64, 192, 320, 512)]
    [1, 4, 7, 10]
    """
    tables = -(-len(memory.words) // family.table_words)
    tables = 4 if tables == 3 else tables + (-(-tables // 4) if tables > 4 else 0)
    return table_registers(memory, family) * tables


def table_registers(memory: Memory, family: Family = XC7) -> int:
    """Flip-flops of the word that was read of one copy of a memory.

    A bit that is the same in all words, or equals another bit in each of them, takes none. Block
    memories have registers of their own.

    >>> table_registers(Memory((0b001, 0b111), 3)), table_luts(Memory((5,), 3))
    (1, 0)
    """
    if block_memories(memory, family):
        return 0
    columns = {
        sum((word >> bit & 1) << place for place, word in enumerate(memory.words))
        for bit in range(memory.width)
    }
    return len(columns - {0, (1 << len(memory.words)) - 1})
