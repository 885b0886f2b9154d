"""Register absorption into multipliers and block memories of an ECP5.

Yosys leaves pipeline registers in the fabric, so routing delay is added to the 5.8 ns from the
clock to a block memory's output and the 3.9 ns through a multiplier. This pass moves registers
without enable and reset into the cells, which preserves the function. Names of cells and
parameters are Lattice's, as in Yosys' `ecp5/cells_bb.v`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chop.hardware.costs.ecp5_cells import CONSTANTS, MEMORY, MULTIPLIER, Bit, is_plain
from chop.hardware.folds.retime import retime_choices

WIDTH, PRODUCT_WIDTH = 18, 36


@dataclass
class _Module:
    """A flat module, with its registers by net.

    Attributes:
        cells: cells by name, as in the netlist.
        drivers: by net, the plain register that drives it.
        readers: by net, the plain register that reads it, if it is the only reader.
        sinks: number of readers of each net, module ports included.
    """

    cells: dict[str, Any]
    drivers: dict[Bit, str] = field(default_factory=dict)
    readers: dict[Bit, str] = field(default_factory=dict)
    sinks: Counter[Bit] = field(default_factory=Counter)


def absorb_registers(netlist: dict[str, Any], top: str) -> Counter[str]:
    """Moves registers of a netlist into its multipliers and block memories.

    Args:
        netlist: flat netlist from Yosys' `write_json`; it is modified.
        top: name of the module.
    Returns: number of multipliers with absorbed `inputs` and with absorbed `products`, of memory
        ports with absorbed `words`, and of memories with retimed `choices`.
    """
    # Retiming puts registers directly behind the memories, which the last step absorbs.
    counts = Counter(choices=retime_choices(netlist, top))
    module = _module(netlist["modules"][top])
    for cell in [cell for cell in module.cells.values() if cell["type"] == MULTIPLIER]:
        counts["products"] += _absorb_product(module, cell)
        counts["inputs"] += _absorb_inputs(module, cell)
    for cell in [cell for cell in module.cells.values() if cell["type"] == MEMORY]:
        counts["words"] += _absorb_words(module, cell)
    return counts


def _module(document: Mapping[str, Any]) -> _Module:
    module = _Module(document["cells"])
    reading: dict[Bit, list[str]] = defaultdict(list)
    for name, cell in module.cells.items():
        for port, (bit,) in ((p, b) for p, b in cell["connections"].items() if len(b) == 1):
            if cell["port_directions"][port] == "input":
                module.sinks[bit] += 1
                reading[bit] += [name] if port == "DI" and is_plain(cell) else []
        wide = (b for b in cell["connections"].values() if len(b) > 1)
        module.sinks.update(bit for bits in wide for bit in bits)
        if is_plain(cell):
            module.drivers[cell["connections"]["Q"][0]] = name
    for port in document["ports"].values():
        module.sinks.update(port["bits"] if port["direction"] == "output" else ())
    module.readers = {
        bit: names[0] for bit, names in reading.items() if names and module.sinks[bit] == 1
    }
    return module


def _absorb_product(module: _Module, cell: dict[str, Any]) -> bool:
    """Moves the register behind a multiplier's product into the cell; returns whether it did."""
    ports = [f"P{k}" for k in range(PRODUCT_WIDTH)]
    clock = _take_readers(module, cell, ports)
    return clock is not None and _clock_multiplier(cell, clock, ("OUTPUT",))


def _absorb_inputs(module: _Module, cell: dict[str, Any]) -> bool:
    """Moves the registers ahead of a multiplier's factors into the cell; returns whether it did."""
    ports = [f"{factor}{k}" for factor in "AB" for k in range(WIDTH)]
    connections = cell["connections"]
    bits = [connections[port][0] for port in ports]
    drivers = {bit: module.drivers.get(bit) for bit in bits if isinstance(bit, int)}
    # All factor bits need a plain register of one clock, or none is moved.
    names = [name for name in drivers.values() if name is not None]
    clock = _common_clock(module, names)
    if len(names) < len(drivers) or clock is None or not _may_clock(cell, clock):
        return False
    for port, bit in zip(ports, bits, strict=True):
        if isinstance(bit, int):
            register = drivers[bit]
            assert register is not None
            connections[port] = list(module.cells[register]["connections"]["DI"])
            # The register stays as long as another cell reads it.
            module.sinks[connections[port][0]] += 1
            module.sinks[bit] -= 1
            _remove_unread(module, register)
    return _clock_multiplier(cell, clock, ("INPUTA", "INPUTB"))


def _absorb_words(module: _Module, cell: dict[str, Any]) -> int:
    """Returns the ports of a block memory whose output register was absorbed.

    The upper half of a 36-bit word leaves by the other port, which has no clock of its own.
    """
    connections, absorbed = cell["connections"], 0
    wide = connections["CLKA"][0] in CONSTANTS
    # The upper half of a 36-bit word leaves by the other port, which has no clock of its own.
    for halves in ("AB",) if wide else ("A", "B"):
        clock = connections[f"CLK{halves[-1]}"][0]
        is_reset = any(connections[f"RST{half}"][0] not in CONSTANTS for half in halves)
        ports = [f"DO{half}{k}" for half in halves for k in range(WIDTH)]
        if is_reset or _take_readers(module, cell, ports, clock) is None:
            continue
        for half in halves:
            cell["parameters"][f"REGMODE_{half}"] = "OUTREG"
            _connect(cell, f"OCE{half}", "1")
        absorbed += 1
    return absorbed


def _take_readers(
    module: _Module, cell: dict[str, Any], ports: Sequence[str], wanted: Bit | None = None
) -> Bit | None:
    """Moves the registers behind outputs of a cell into it; returns their clock, or None."""
    connections = cell["connections"]
    used = [port for port in ports if module.sinks[connections.get(port, ["x"])[0]]]
    names = [module.readers.get(connections[port][0]) for port in used]
    known = [name for name in names if name is not None]
    clock = _common_clock(module, known)
    # The cell registers all of its outputs or none.
    if len(known) < len(used) or clock is None or wanted not in (None, clock):
        return None
    if cell["type"] == MULTIPLIER and not _may_clock(cell, clock):
        return None
    for port, name in zip(used, known, strict=True):
        connections[port] = list(module.cells.pop(name)["connections"]["Q"])
        # The net is now driven by the cell instead of a plain register.
        module.drivers.pop(connections[port][0])
    return clock


def _common_clock(module: _Module, names: Sequence[str]) -> Bit | None:
    clocks = {module.cells[name]["connections"]["CLK"][0] for name in names}
    return clocks.pop() if len(clocks) == 1 else None


def _may_clock(cell: Mapping[str, Any], clock: Bit) -> bool:
    # All registers of a multiplier share CLK0 here.
    return cell["connections"].get("CLK0", [clock]) in ([clock], ["x"], ["0"])


def _clock_multiplier(cell: dict[str, Any], clock: Bit, registers: Sequence[str]) -> bool:
    for register in registers:
        cell["parameters"] |= {
            f"REG_{register}_CLK": "CLK0",
            f"REG_{register}_CE": "CE0",
            f"REG_{register}_RST": "RST0",
        }
    for port, bit in (("CLK0", clock), ("CE0", "1"), ("RST0", "0")):
        _connect(cell, port, bit)
    return True


def _connect(cell: dict[str, Any], port: str, bit: Bit) -> None:
    cell["connections"][port] = [bit]
    cell["port_directions"][port] = "input"


def _remove_unread(module: _Module, name: str) -> None:
    cell = module.cells.get(name)
    if cell is not None and not module.sinks[cell["connections"]["Q"][0]]:
        module.sinks[cell["connections"]["DI"][0]] -= 1
        del module.cells[name]
