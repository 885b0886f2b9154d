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

    def is_inside(self, bit: Bit) -> bool:
        """Returns whether a net has exactly one reader."""
        return len(self.readers[bit]) == 1 and bit not in self.outputs


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
    """Returns the multiplexer behind a memory; None if a word is read by anything else."""
    choice, pending = _Choice(), [memory]
    while pending:
        name = pending.pop()
        if name in choice.memories:
            continue
        choice.memories[name] = None
        for bit in _words(module, name):
            behind = [_register_behind(module, reader) for reader in module.readers[bit]]
            for register in behind:
                if register is None or bit in module.outputs:
                    return None
                if register not in choice.registers:
                    choice.registers[register] = None
                    if not _gather(module, register, choice):
                        return None
        # Leaves may be words of further memories behind the same multiplexer.
        driven = (module.drivers.get(leaf, "") for leaf in choice.leaves)
        pending += [cell for cell in driven if cell and module.cells[cell]["type"] == MEMORY]
    return choice


def _words(module: _Module, memory: str) -> list[Bit]:
    connections = module.cells[memory]["connections"]
    bits = [bit for port, (bit,) in connections.items() if port.startswith("DO")]
    return [bit for bit in bits if module.readers[bit] or bit in module.outputs]


def _register_behind(module: _Module, name: str) -> str | None:
    """Returns the register that a cell's output reaches through single-reader tables."""
    while module.cells[name]["type"] in TABLES:
        (bit,) = module.cells[name]["connections"]["Z"]
        if not module.is_inside(bit):
            return None
        name = module.readers[bit][0]
    return name if is_plain(module.cells[name]) else None


def _gather(module: _Module, register: str, choice: _Choice) -> bool:
    """Adds the tables ahead of a register and their inputs; returns False if it cannot be moved."""
    pending = [(module.cells[register]["connections"]["DI"][0], False)]
    while pending:
        bit, is_wired = pending.pop()
        driver = module.drivers.get(bit, "")
        # Ports and constants have no driver cell.
        kind = module.cells[driver]["type"] if driver else ""
        if kind in TABLES and module.is_inside(bit):
            choice.tables[driver] = None
            cell = module.cells[driver]
            reads = ((p, b) for p, b in cell["connections"].items() if p != "Z")
            pending += [(b, port in TABLES[kind]) for port, (b,) in reads if b not in CONSTANTS]
        # A wire inside a slice cannot get a register.
        elif is_wired:
            return False
        else:
            choice.leaves[bit] = None
    return True


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
    cells, registered = module.cells, dict[Bit, Bit]()
    behind = {cells[name]["connections"]["DI"][0]: name for name in choice.registers}
    model = next(iter(choice.registers))
    for leaf in choice.leaves:
        # The leaf has a register behind it already, which is reused.
        if leaf in behind:
            registered[leaf] = cells[behind[leaf]]["connections"]["Q"][0]
            continue
        registered[leaf] = next(module.unused)
        cell = copy.deepcopy(cells[model])
        cell["connections"] |= {"DI": [leaf], "Q": [registered[leaf]]}
        cells[f"{model}_AHEAD_{leaf}"] = cell
    chosen = {bit: name for bit, name in behind.items() if bit not in choice.leaves}
    for table in choice.tables:
        connections = cells[table]["connections"]
        for port, (bit,) in connections.items():
            if port != "Z" and bit in registered:
                connections[port] = [registered[bit]]
            elif port == "Z" and bit in chosen:
                connections[port] = list(cells.pop(chosen[bit])["connections"]["Q"])
