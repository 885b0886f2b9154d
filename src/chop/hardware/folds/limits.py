"""Limits of a fold: components that cannot meet it, and designs that are too large to simulate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.errors import ConfigError
from chop.hardware.design.connect import connect
from chop.hardware.design.design import Design
from chop.hardware.design.instances import Netlist
from chop.hardware.design.netlist import netlist
from chop.ir.graph import MaseGraph

SLOW_PRODUCTS = 4_096
"""Parallel products from which a report of progress says that compiling takes minutes."""
MOST_PRODUCTS = 16_384
"""Parallel products above which a circuit is only simulated on request. Verilator compiles 8,832 in
more than 200 seconds, and its time grows faster than the design.
"""
MOST_NAMES = 3
"""Maximum number of components that a sentence lists."""
TERNARY = "chop_ternary_linear"
"""Module that adds and subtracts codes instead of multiplying them."""


def unmet_fold(design: Design, mg: MaseGraph, asked: int) -> dict[str, Any]:
    """Returns the components that prevent a fold, slowest first, and the nearest fold that is met.

    Args:
        design: circuit with that fold.
        mg: its integer graph.
        asked: maximum cycles per sample; 0 stands for a fold that the emitter chooses.
    Returns: `asked`, `slowest` (cycles by name) and `nearest`; empty if the fold is met.
    """
    if not 0 < asked < design.interval:
        return {}
    made = design.netlist
    cycles = {port.name: port.wire.stream.beats for port in (*made.inputs, *made.outputs)}
    cycles |= {part.name: part.plan.cycles for part in made.instances}
    slow = {name: taken for name, taken in cycles.items() if taken > asked}
    # A buffer beside a slow component is as slow as it, and not the reason.
    slow = slow or {
        link.name: link.cycles for link in design.connections.links if link.cycles > asked
    }
    ranked = dict(sorted(slow.items(), key=lambda pair: -pair[1]))
    return {"asked": asked, "slowest": ranked, "nearest": _met_fold(mg, design.interval)}


def _met_fold(mg: MaseGraph, fold: int) -> int:
    """Returns the smallest fold from `fold` on that a circuit meets."""
    while True:
        made = netlist(mg, fold)
        interval = max(made.interval, connect(made).interval)
        if interval <= fold:
            return fold
        fold = interval


def describe_unmet(unmet: Mapping[str, Any]) -> str:
    """Returns the sentence about a fold that is not met."""
    pairs = list(unmet["slowest"].items())
    names = ", ".join(f"'{name}' takes {taken:,} cycles" for name, taken in pairs[:MOST_NAMES])
    others = f" and {len(pairs) - MOST_NAMES} more components" * (len(pairs) > MOST_NAMES)
    return (
        f"--fold {unmet['asked']:,} is not met: even in the fastest form {names}{others}. The "
        f"nearest fold that is met is {unmet['nearest']:,}."
    )


def parallel_products(made: Netlist) -> int:
    """Returns the products of a cycle, those with ternary weights included."""
    total = 0
    for part in made.instances:
        total += part.plan.resources.products + part.plan.resources.constants
        if part.module == TERNARY:
            lanes = (part.plan.parameters[name] for name in ("IN_LANES", "OUT_LANES"))
            inputs, outputs = map(int, lanes)
            total += inputs * outputs
    return total


def check_products(design: Design, mg: MaseGraph, fold: int, is_forced: bool) -> str:
    """Checks that a circuit is small enough to be linted and compiled in minutes.

    Args:
        design: the circuit.
        mg: its integer graph.
        fold: its maximum cycles per sample; 0 stands for a fold that the emitter chooses.
        is_forced: continue with a larger circuit.
    Returns: a sentence about the time of a large circuit; "" for a small one.
    Raises:
        ConfigError: if it is too large. The message names a fold with fewer multipliers.
    """
    count = parallel_products(design.netlist)
    if count <= SLOW_PRODUCTS:
        return ""
    size = f"the circuit has {count:,} multipliers"
    if count <= MOST_PRODUCTS:
        return f"{size[0].upper()}{size[1:]}: Verilator takes minutes to compile it."
    if not is_forced:
        larger, fewer = max(fold, 1), count
        while fewer > MOST_PRODUCTS:
            larger = max(larger + 1, -(-larger * fewer // MOST_PRODUCTS))
            fewer = parallel_products(netlist(mg, larger))
        raise ConfigError(
            f"fold: {size}, more than {MOST_PRODUCTS:,}, and can take hours to simulate. "
            f"--fold {larger} has {fewer:,}; without --fold there are about 256. --force "
            "continues."
        )
    return (
        f"{size[0].upper()}{size[1:]} and can take hours to simulate. Continuing because "
        "of --force."
    )
