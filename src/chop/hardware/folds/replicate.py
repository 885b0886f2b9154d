"""Replication of ECP5 registers and lookup tables with high fan-out.

The delay of a net depends on its farthest reader, and placement cannot bring many readers close to
one driver. Yosys and nextpnr do not replicate drivers. This pass limits each copy to `READERS`
readers. Readers of one copy are neighbors by name, and therefore parts of the same instance.
Function and latency are preserved.
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
"""Cell types that are replicated, and their output port."""
Pin = tuple[str, str, int]
"""Cell, port and bit index."""


def replicate_drivers(netlist: dict[str, Any], top: str) -> int:
    """Replicates registers and lookup tables with more than `READERS` readers.

    Args:
        netlist: flat netlist from Yosys' `write_json`; it is modified.
        top: name of the module.
    Returns: number of copies.
    """
    module = netlist["modules"][top]
    unused, count = itertools.count(net_after(module)), 0
    # A copy adds a reader to each input of its driver, so repeat until none is added.
    while made := _replicate(module["cells"], unused):
        count += made
    return count


def _replicate(cells: dict[str, Any], unused: Iterator[int]) -> int:
    """Replicates the drivers that now have too many readers; returns the number of copies."""
    readers, before = _readers(cells), len(cells)
    for name, cell in list(cells.items()):
        port = OUTPUTS.get(cell["type"])
        parts = _parts(readers[cell["connections"][port][0]]) if port else []
        # The first part keeps the original driver.
        for part in parts[1:]:
            net = next(unused)
            made = copy.deepcopy(cell)
            made["connections"][port] = [net]
            for reader, pin, place in part:
                cells[reader]["connections"][pin][place] = net
            cells[f"{name}_COPY_{net}"] = made
    return len(cells) - before


def _readers(cells: Mapping[str, Any]) -> dict[Bit, list[Pin]]:
    """Returns the reading pins of each net, sorted by name."""
    readers: dict[Bit, list[Pin]] = defaultdict(list)
    # Neighbors by name belong to the same instance, and are placed close together.
    for name, cell in sorted(cells.items()):
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "input":
                for place, bit in enumerate(bits):
                    readers[bit].append((name, port, place))
    return readers


def _parts(pins: list[Pin]) -> list[list[Pin]]:
    """Splits pins evenly into as few parts as `READERS` allows; the first part keeps its driver."""
    count = -(-len(pins) // READERS)
    return [pins[k * len(pins) // count : (k + 1) * len(pins) // count] for k in range(count)]
