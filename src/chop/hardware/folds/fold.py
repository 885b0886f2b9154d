"""Folding for a device: cycles per node such that the design fits and is fast.

The search minimizes the interval first and then the lookup tables. It bisects intervals in steps
of 2 %. For each interval an integer program minimizes the summed shares of the device's resources.
Each node takes lanes that divide its sizes and keep the interval. Converters between adjacent nodes
have a cost that depends on the lanes at both ends, and are excluded if they are too slow.

If multipliers do not suffice, nodes may build their products from lookup tables, as long as the
design leaves room for routing. If the program finds no solution within `fold_program.SECONDS`, the
interval counts as infeasible, and the result reports it. FIFO sizes depend on all lanes together.
If they exceed the device, the program is solved again with a budget reduced by the excess.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import replace

from chop.errors import ConfigError
from chop.hardware.costs.devices import DEVICES, RESOURCES, Device
from chop.hardware.costs.estimate import Usage
from chop.hardware.design.emit import UNFOLDED
from chop.hardware.folds.fold_program import Program
from chop.hardware.folds.foldable import Foldable, Folding
from chop.ir.graph import MaseGraph

ROUNDS = 6
"""Maximum number of budget reductions after a design exceeds the device."""
ROUTABLE = 0.75
"""Maximum share of a device's lookup tables for a design with products built from them. Routers
fail on fuller devices or take hours.
"""


def fold_for(mg: MaseGraph, device: Device) -> Folding:
    """Returns the folds of the fastest design that fits a device.

    Raises:
        ConfigError: if it does not fit with one lane everywhere. The message says by how much, and
            names a device that fits.
    """
    graph = Foldable(mg, device)
    slowest = _slowest(graph)
    if excess(slowest.usage, device):
        raise ConfigError(_refusal(mg, slowest.usage, device))
    best, intervals = slowest, _intervals(graph, slowest.interval)
    low, high = 0, len(intervals) - 1
    while low <= high:
        # Bisection assumes that a design that fits one interval also fits every longer one.
        middle = (low + high) // 2
        candidates = [_within(graph, intervals[middle]), _uniform(graph, intervals[middle])]
        best = min([best, *filter(None, candidates)], key=_rank)
        # A better design may be faster than the interval that it was solved for.
        if best.interval <= intervals[middle]:
            high = min(middle, bisect.bisect_left(intervals, best.interval)) - 1
        else:
            low = middle + 1
    undecided = sorted(each for each in graph.undecided if each < best.interval)
    return replace(best, undecided=tuple(undecided))


def _slowest(graph: Foldable) -> Folding:
    """Returns one lane everywhere, with lookup-table products if multipliers do not suffice."""
    folding = graph.measured({p.node: graph.option(p, UNFOLDED) for p in graph.nodes}, UNFOLDED)
    if "dsp" not in excess(folding.usage, graph.device):
        return folding
    return _within(graph, folding.interval) or folding


def _rank(folding: Folding) -> tuple[int, float]:
    return folding.interval, folding.usage.lut


def _uniform(graph: Foldable, interval: int) -> Folding | None:
    """Returns a uniform fold with lanes that follow the producers; None if it does not fit."""
    folding = graph.measured({}, interval)
    return None if excess(folding.usage, graph.device) else folding


def _intervals(graph: Foldable, slowest: int) -> list[int]:
    """Returns the candidate intervals, ascending, each 2 % longer than the previous one."""
    count = math.ceil(math.log(max(slowest / graph.fastest, 1)) / math.log(1.02))
    return sorted({math.ceil(graph.fastest * 1.02**step) for step in range(count + 1)})


def excess(usage: Usage, device: Device, times: float = 1.0) -> dict[str, float]:
    """Returns the use above a multiple of a device's resources, by resource; empty if it fits."""
    pairs = {name: (getattr(usage, name), times * getattr(device, name)) for name in RESOURCES}
    return {name: taken - there for name, (taken, there) in pairs.items() if taken > there}


def beyond(usage: Usage, device: Device) -> str:
    """Returns the excess over a device as text."""
    names = {"lut": "lookup tables", "ff": "flip-flops", "dsp": "multipliers", "bram": "memories"}
    return ", ".join(
        f"{getattr(usage, name):,.0f} {names[name]} of {getattr(device, name):,}"
        for name in excess(usage, device)
    )


def _refusal(mg: MaseGraph, usage: Usage, device: Device) -> str:
    missing = beyond(usage, device)
    fitting = next((other.name for other in DEVICES.values() if _fits(mg, other)), None)
    larger = f"the smallest device that fits is {fitting}" if fitting else "no known device fits"
    return (
        f"device: {device.name} is too small: with one lane everywhere the design takes {missing}; "
        f"{larger}."
    )


def _fits(mg: MaseGraph, device: Device) -> bool:
    return not excess(_slowest(Foldable(mg, device)).usage, device)


def _within(graph: Foldable, interval: int) -> Folding | None:
    """Returns the smallest design of an interval, or None if none fits.

    Products are built from lookup tables only if multipliers do not suffice.
    """
    device = graph.device
    folding = _smallest(graph, interval, device, False)
    if folding is None and device.family.has_multipliers:
        # Products of lookup tables fill the device; the router needs some room.
        routable = replace(device, lut=int(ROUTABLE * device.lut))
        folding = _smallest(graph, interval, routable, True)
    return folding


def _smallest(graph: Foldable, interval: int, device: Device, may_be_soft: bool) -> Folding | None:
    program = Program(graph, interval, may_be_soft)
    budget = Usage(*(getattr(device, name) for name in RESOURCES))
    for _ in range(ROUNDS):
        chosen = program.solve(budget)
        if chosen is None:
            return None
        folding = graph.measured(chosen, interval)
        over = excess(folding.usage, device)
        if not over:
            return folding
        # FIFOs are not part of the program: reserve their excess in the next round.
        budget = Usage(*(b - over.get(n, 0) for n, b in zip(RESOURCES, budget, strict=True)))
    return None
