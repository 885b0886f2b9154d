"""ECP5 cells in a Yosys netlist, with Lattice's names as in Yosys' `ecp5/cells_bb.v`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

Bit = int | str
"""Number of a net, or a constant "0", "1" or "x"."""
CONSTANTS = ("0", "1", "x")
REGISTER, MULTIPLIER, MEMORY = "TRELLIS_FF", "MULT18X18D", "DP16KD"


def is_plain(cell: Mapping[str, Any]) -> bool:
    """Returns whether a cell is a register without enable or reset."""
    if cell["type"] != REGISTER:
        return False
    parameters, connections = cell["parameters"], cell["connections"]
    return (
        parameters.get("CEMUX", "1").strip() == "1"
        and parameters.get("CLKMUX", "CLK") == "CLK"
        and connections.get("LSR", ["0"]) == ["0"]
        and connections.get("CE", ["1"])[0] in ("1", "x")
    )


def net_after(module: Mapping[str, Any]) -> int:
    """Returns the first unused net number of a flat module."""
    cells = [cell["connections"].values() for cell in module["cells"].values()]
    ports = [[port["bits"]] for port in module["ports"].values()]
    bits = itertools.chain.from_iterable(itertools.chain.from_iterable([*cells, *ports]))
    return max((bit for bit in bits if isinstance(bit, int)), default=0) + 1
