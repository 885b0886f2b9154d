"""Registers behind a choice among block memories of an ECP5, moved ahead of it.

A read-only memory of more words than a block memory has is several of them, and lookup tables
choose among their words: 5.8 ns from the clock to a word, with the choice on top. Where a register
takes what is chosen, here each word and each net that chooses has a register instead, of which
`chop.hardware.folds.absorb` moves those of the words into the memories. Function and latency
stay the same.
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
"""Cells that choose, and their inputs which are wires inside a slice: no register fits there."""


@dataclass
class _Module:
    """A flat module.

    Attributes:
        cells: by name, as in the netlist.
        drivers: by net: the cell whose output it is.
        readers: by net: the cells that read it, once for each port.
        outputs: nets of the module's ports.
        unused: numbers of nets that there are not yet.
    """

    cells: dict[str, Any]
    drivers: dict[Bit, str] = field(default_factory=dict)
    readers: dict[Bit, list[str]] = field(default_factory=lambda: defaultdict(list))
    outputs: set[Bit] = field(default_factory=set)
    unused: Iterator[int] = field(default_factory=itertools.count)

    def is_inside(self, bit: Bit) -> bool:
        """Whether one cell alone reads a net."""
        return len(self.readers[bit]) == 1 and bit not in self.outputs


@dataclass
class _Choice:
    """Memories whose words are chosen among, all that depends on them up to registers.

    Dictionaries stand for sets that keep their order: netlists are the same in each run.

    Attributes:
        memories: names of the cells.
        tables: names of the cells that choose.
        registers: names of those behind.
        leaves: nets that the tables read from elsewhere.
    """

    memories: dict[str, None] = field(default_factory=dict)
    tables: dict[str, None] = field(default_factory=dict)
    registers: dict[str, None] = field(default_factory=dict)
    leaves: dict[Bit, None] = field(default_factory=dict)


def retime_choices(netlist: dict[str, Any], top: str) -> int:
    """Moves registers behind choices among block memories ahead of them.

    It is done where it takes no more registers than before, those of words not counted.

    Args:
        netlist: what Yosys' `write_json` writes, flat; it is changed.
        top: name of the module.
    Returns: how many memories are concerned.
    """
    module, done = _module(netlist["modules"][top]), set[str]()
    for name in [name for name, cell in module.cells.items() if cell["type"] == MEMORY]:
        choice = None if name in done else _choice(module, name)
        if choice is not None and _is_worthwhile(module, choice):
            _retime(module, choice)
            done |= set(choice.memories)
    return len(done)


def _module(found: Mapping[str, Any]) -> _Module:
    module = _Module(found["cells"], unused=itertools.count(net_after(found)))
    for name, cell in module.cells.items():
        for port, bits in cell["connections"].items():
            for bit in bits:
                if cell["port_directions"][port] == "output":
                    module.drivers[bit] = name
                else:
                    module.readers[bit].append(name)
    for port in found["ports"].values():
        module.outputs.update(port["bits"] if port["direction"] == "output" else ())
    return module


def _choice(module: _Module, memory: str) -> _Choice | None:
    """What depends on a memory; None where a word goes anywhere but through tables to registers."""
    found, pending = _Choice(), [memory]
    while pending:
        name = pending.pop()
        if name in found.memories:
            continue
        found.memories[name] = None
        for bit in _words(module, name):
            behind = [_register_behind(module, reader) for reader in module.readers[bit]]
            for register in behind:
                if register is None or bit in module.outputs:
                    return None
                if register not in found.registers:
                    found.registers[register] = None
                    if not _gather(module, register, found):
                        return None
        driven = (module.drivers.get(leaf, "") for leaf in found.leaves)
        pending += [cell for cell in driven if cell and module.cells[cell]["type"] == MEMORY]
    return found


def _words(module: _Module, memory: str) -> list[Bit]:
    connections = module.cells[memory]["connections"]
    bits = [bit for port, (bit,) in connections.items() if port.startswith("DO")]
    return [bit for bit in bits if module.readers[bit] or bit in module.outputs]


def _register_behind(module: _Module, name: str) -> str | None:
    """The register that a cell's output reaches through tables, each read by the next alone."""
    while module.cells[name]["type"] in TABLES:
        (bit,) = module.cells[name]["connections"]["Z"]
        if not module.is_inside(bit):
            return None
        name = module.readers[bit][0]
    return name if is_plain(module.cells[name]) else None


def _gather(module: _Module, register: str, found: _Choice) -> bool:
    """Adds the tables ahead of a register, and what they read; False where a register is barred."""
    pending = [(module.cells[register]["connections"]["DI"][0], False)]
    while pending:
        bit, is_wired = pending.pop()
        driver = module.drivers.get(bit, "")
        kind = module.cells[driver]["type"] if driver else ""
        if kind in TABLES and module.is_inside(bit):
            found.tables[driver] = None
            cell = module.cells[driver]
            reads = ((p, b) for p, b in cell["connections"].items() if p != "Z")
            pending += [(b, port in TABLES[kind]) for port, (b,) in reads if b not in CONSTANTS]
        elif is_wired:
            return False
        else:
            found.leaves[bit] = None
    return True


def _is_worthwhile(module: _Module, choice: _Choice) -> bool:
    """Whether memories can take the registers of their words, and few others are needed."""
    clocks = {module.cells[name]["connections"]["CLK"][0] for name in choice.registers}
    for name in choice.memories:
        connections = module.cells[name]["connections"]
        if any(connections[port][0] not in CONSTANTS for port in ("RSTA", "RSTB")):
            return False
        clocks |= {connections[port][0] for port in ("CLKA", "CLKB")} - set(CONSTANTS)
    drivers = [module.drivers.get(leaf, "") for leaf in choice.leaves]
    others = sum(name not in choice.memories for name in drivers)
    return bool(choice.tables) and len(clocks) == 1 and others <= len(choice.registers)


def _retime(module: _Module, choice: _Choice) -> None:
    """Registers each leaf, and removes the registers behind the tables."""
    cells, registered = module.cells, dict[Bit, Bit]()
    behind = {cells[name]["connections"]["DI"][0]: name for name in choice.registers}
    model = next(iter(choice.registers))
    for leaf in choice.leaves:
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
