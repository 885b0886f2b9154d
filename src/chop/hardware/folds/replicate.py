"""Registers and lookup tables of an ECP5 whose output many cells read, copied.

A net is as slow as the way to its farthest reader, and placement cannot bring many readers near to
one driver. Neither Yosys nor nextpnr copies drivers: here each copy has at most `READERS` readers,
which are neighbors by name, and so parts of the same instance. The function is the same, and so is
the latency.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from chop.hardware.costs.ecp5_cells import REGISTER, Bit, net_after

READERS = 16
OUTPUTS: Mapping[str, str] = {"LUT4": "Z", REGISTER: "Q"}
"""Cells that are copied, and the port that they drive."""
Pin = tuple[str, str, int]
"""A cell, its port, and which bit of it."""


def replicate_drivers(netlist: dict[str, Any], top: str) -> int:
    """Copies registers and lookup tables that more than `READERS` pins read.

    Args:
        netlist: what Yosys' `write_json` writes, flat; it is changed.
        top: name of the module.
    Returns: how many copies there are.
    """
    module = netlist["modules"][top]
    unused, count = itertools.count(net_after(module)), 0
    # A copy is one reader more of what its driver reads.
    while made := _replicate(module["cells"], unused):
        count += made
    return count


def _replicate(cells: dict[str, Any], unused: Iterator[int]) -> int:
    """Copies what drives too many pins now; returns how many copies it took."""
    readers, before = _readers(cells), len(cells)
    for name, cell in list(cells.items()):
        port = OUTPUTS.get(cell["type"])
        parts = _parts(readers[cell["connections"][port][0]]) if port else []
        for part in parts[1:]:
            net = next(unused)
            made = copy.deepcopy(cell)
            made["connections"][port] = [net]
            for reader, pin, place in part:
                cells[reader]["connections"][pin][place] = net
            cells[f"{name}_COPY_{net}"] = made
    return len(cells) - before


def _readers(cells: Mapping[str, Any]) -> dict[Bit, list[Pin]]:
    """Of each net the pins that read it, by name."""
    found: dict[Bit, list[Pin]] = defaultdict(list)
    for name, cell in sorted(cells.items()):
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "input":
                for place, bit in enumerate(bits):
                    found[bit].append((name, port, place))
    return found


def _parts(pins: list[Pin]) -> list[list[Pin]]:
    """Pins in as few parts as `READERS` allows, as even as can be; the first stays as it is."""
    count = -(-len(pins) // READERS)
    return [pins[k * len(pins) // count : (k + 1) * len(pins) // count] for k in range(count)]
