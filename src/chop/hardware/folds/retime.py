"""Retiming of registers behind multiplexers of ECP5 block memories.

A read-only memory with more words than a block memory consists of several blocks and a multiplexer
of lookup tables, which adds its delay to the 5.8 ns from the clock to a word. This pass moves the
register behind the multiplexer to each word and each select net.
`chop.hardware.folds.absorb` then moves the word registers into the memories. Function and latency
are preserved.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chop.hardware.costs.ecp5_cells import CONSTANTS, MEMORY, Bit, is_plain, net_after

TABLES: Mapping[str, tuple[str, ...]] = {
    "LUT4": (),
    "PFUMX": ("ALUT", "BLUT"),
    "L6MUX21": ("D0", "D1"),
}
"""Multiplexer cells, and their inputs that are wires inside a slice, where no register fits."""


@dataclass
class _Module:
    """A flat module, with its cells by net.

    Attributes:
        cells: cells by name, as in the netlist.
        drivers: by net, the cell that drives it.
        readers: by net, the cells that read it, once per port.
        outputs: nets of the module's ports.
        unused: unused net numbers.
    """

    cells: dict[str, Any]
    drivers: dict[Bit, str] = field(default_factory=dict)
    readers: dict[Bit, list[str]] = field(default_factory=lambda: defaultdict(list))
    outputs: set[Bit] = field(default_factory=set)
    unused: Iterator[int] = field(default_factory=itertools.count)


@dataclass
class _Choice:
    """Multiplexed memories with all cells between them and registers.

    Dictionaries serve as ordered sets, so that netlists are reproducible.

    Attributes:
        memories: names of the memories.
        tables: names of the multiplexer cells.
        registers: names of the registers behind.
        leaves: nets from elsewhere that the tables read.
    """

    memories: dict[str, None] = field(default_factory=dict)
    tables: dict[str, None] = field(default_factory=dict)
    registers: dict[str, None] = field(default_factory=dict)
    leaves: dict[Bit, None] = field(default_factory=dict)


def retime_choices(netlist: dict[str, Any], top: str) -> int:
    """Moves registers behind multiplexers of block memories ahead of them.

    A register is moved only if the number of registers, without those of words, does not grow.

    Args:
        netlist: flat netlist from Yosys' `write_json`; it is modified.
        top: name of the module.
    Returns: number of memories involved.
    """
    module, done = _module(netlist["modules"][top]), set[str]()
    for name in [name for name, cell in module.cells.items() if cell["type"] == MEMORY]:
        choice = None if name in done else _choice(module, name)
        if choice is not None and _is_worthwhile(module, choice):
            _retime(module, choice)
            done |= set(choice.memories)
    return len(done)


def _module(document: Mapping[str, Any]) -> _Module:
    module = _Module(document["cells"], unused=itertools.count(net_after(document)))
    for name, cell in module.cells.items():
        for port, bits in cell["connections"].items():
            for bit in bits:
                if cell["port_directions"][port] == "output":
                    module.drivers[bit] = name
                else:
                    module.readers[bit].append(name)
    for port in document["ports"].values():
        module.outputs.update(port["bits"] if port["direction"] == "output" else ())
    return module


def _choice(module: _Module, memory: str) -> _Choice | None:
    """Returns the multiplexer behind a memory; None if a word or a table is read by anything else.

    Every path from a leaf passes exactly one of the registers, so that all of them can move.
    """
    choice, pending = _Choice(), [memory]
    while pending:
        choice.memories |= dict.fromkeys(pending)
        if not all(_follow(module, name, choice) for name in pending):
            return None
        _gather(module, choice)
        # Leaves may be words of further memories behind the same multiplexer.
        driven = dict.fromkeys(module.drivers.get(leaf, "") for leaf in choice.leaves)
        memories = [name for name in driven if name and module.cells[name]["type"] == MEMORY]
        pending = [name for name in memories if name not in choice.memories]
    return choice if _is_movable(module, choice) else None


def _words(module: _Module, memory: str) -> list[Bit]:
    connections = module.cells[memory]["connections"]
    bits = [bit for port, (bit,) in connections.items() if port.startswith("DO")]
    return [bit for bit in bits if module.readers[bit] or bit in module.outputs]


def _follow(module: _Module, memory: str, choice: _Choice) -> bool:
    """Adds all tables and registers that words of a memory reach; returns whether none is other."""
    pending = _words(module, memory)
    while pending:
        bit = pending.pop()
        if bit in module.outputs:
            return False
        for name in module.readers[bit]:
            cell = module.cells[name]
            if is_plain(cell):
                choice.registers[name] = None
            elif cell["type"] not in TABLES:
                return False
            elif name not in choice.tables:
                choice.tables[name] = None
                pending += cell["connections"]["Z"]
    return True


def _gather(module: _Module, choice: _Choice) -> None:
    """Adds tables that only the choice reads, and finds its leaves."""
    pending = [*choice.tables, *choice.registers]
    choice.leaves.clear()
    while pending:
        for bit in _reads(module, pending.pop()):
            driver = module.drivers.get(bit, "")
            is_table = bool(driver) and module.cells[driver]["type"] in TABLES
            if driver in choice.tables:
                continue
            if is_table and bit not in module.outputs and _is_inside(module, bit, choice):
                choice.tables[driver] = None
                choice.leaves.pop(bit, None)
                pending.append(driver)
            else:
                choice.leaves[bit] = None


def _reads(module: _Module, name: str) -> list[Bit]:
    """Returns the nets from which a table or a register computes."""
    cell = module.cells[name]
    reads = [(port, bit) for port, (bit,) in cell["connections"].items() if bit not in CONSTANTS]
    if cell["type"] in TABLES:
        return [bit for port, bit in reads if port != "Z"]
    return [bit for port, bit in reads if port == "DI"]


def _is_inside(module: _Module, bit: Bit, choice: _Choice) -> bool:
    """Returns whether all readers of a net belong to the choice."""
    return all(name in choice.tables or name in choice.registers for name in module.readers[bit])


def _is_movable(module: _Module, choice: _Choice) -> bool:
    """Returns whether every leaf can get a register, and no register reads the net of another."""
    wired = {
        module.cells[name]["connections"][port][0]
        for name in choice.tables
        for port in TABLES[module.cells[name]["type"]]
    }
    nets = {module.cells[name]["connections"]["DI"][0] for name in choice.registers}
    # A wire inside a slice cannot get a register.
    return not wired & set(choice.leaves) and len(nets) == len(choice.registers)


def _is_worthwhile(module: _Module, choice: _Choice) -> bool:
    """Returns whether memories can absorb the word registers and few others are needed."""
    clocks = {module.cells[name]["connections"]["CLK"][0] for name in choice.registers}
    for name in choice.memories:
        connections = module.cells[name]["connections"]
        if any(connections[port][0] not in CONSTANTS for port in ("RSTA", "RSTB")):
            return False
        clocks |= {connections[port][0] for port in ("CLKA", "CLKB")} - set(CONSTANTS)
    drivers = [module.drivers.get(leaf, "") for leaf in choice.leaves]
    # Word registers are free inside the memories, those of other leaves are not.
    others = sum(name not in choice.memories for name in drivers)
    return bool(choice.tables) and len(clocks) == 1 and others <= len(choice.registers)


def _retime(module: _Module, choice: _Choice) -> None:
    """Adds a register to each leaf and removes the registers behind the tables."""
    cells, renamed = module.cells, dict[Bit, Bit]()
    behind = {cells[name]["connections"]["DI"][0]: name for name in choice.registers}
    model = next(iter(choice.registers))
    for leaf in choice.leaves:
        # The leaf has a register behind it already, which is reused.
        if leaf in behind:
            renamed[leaf] = cells[behind.pop(leaf)]["connections"]["Q"][0]
            continue
        renamed[leaf] = next(module.unused)
        cell = copy.deepcopy(cells[model])
        cell["connections"] |= {"DI": [leaf], "Q": [renamed[leaf]]}
        cells[f"{model}_AHEAD_{leaf}"] = cell
    # Other nets behind registers leave a table, which drives the output of the register now.
    renamed |= {bit: cells.pop(name)["connections"]["Q"][0] for bit, name in behind.items()}
    for table in choice.tables:
        connections = cells[table]["connections"]
        connections |= {
            port: [renamed[bit]] for port, (bit,) in connections.items() if bit in renamed
        }
