"""Folding for a device: how many cycles each node may take, so that the design fits and is fast.

The smallest interval that was found comes first, then the fewest lookup tables. Intervals are tried
by bisection, in steps of 2 %. For one of them the choice is an integer program, which minimizes the
sum of the shares of the device's resources: each node takes one of its lanes, which divide its
sizes and keep the interval; converters between adjacent nodes have a cost by the lanes at both
ends, or are refused where they are slower. Where multipliers do not suffice, each node may have its
products in lookup tables, while the design leaves room to the router. Where the program takes
longer than `fold_program.SECONDS` without a choice, the interval counts as one that does not fit,
and is told. FIFOs follow from all lanes together: where they make a design too large, its budget is
tightened by what they took too much.
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
"""How often a budget is tightened by what a design took too much."""
ROUTABLE = 0.75
"""Share of a device's lookup tables that a design may take which has products of them: routers fail
on fuller devices, or take hours."""


def fold_for(mg: MaseGraph, device: Device) -> Folding:
    """The folds of the fastest design of a device that is found.

    Raises:
        ConfigError: it does not fit with one lane everywhere; says by how much, and which device it
            fits.
    """
    graph = Foldable(mg, device)
    slowest = _slowest(graph)
    if excess(slowest.usage, device):
        raise ConfigError(_refusal(mg, slowest.usage, device))
    best, intervals = slowest, _intervals(graph, slowest.interval)
    low, high = 0, len(intervals) - 1
    while low <= high:
        middle = (low + high) // 2
        found = [_within(graph, intervals[middle]), _uniform(graph, intervals[middle])]
        best = min([best, *filter(None, found)], key=_rank)
        if best.interval <= intervals[middle]:
            high = min(middle, bisect.bisect_left(intervals, best.interval)) - 1
        else:
            low = middle + 1
    undecided = sorted(each for each in graph.undecided if each < best.interval)
    return replace(best, undecided=tuple(undecided))


def _slowest(graph: Foldable) -> Folding:
    """One lane everywhere; with products of lookup tables where multipliers do not suffice."""
    found = graph.measured({p.node: graph.option(p, UNFOLDED) for p in graph.nodes}, UNFOLDED)
    if "dsp" not in excess(found.usage, graph.device):
        return found
    return _within(graph, found.interval) or found


def _rank(folding: Folding) -> tuple[int, float]:
    return folding.interval, folding.usage.lut


def _uniform(graph: Foldable, interval: int) -> Folding | None:
    """One fold for all nodes, whose lanes follow their producers; None where it does not fit."""
    found = graph.measured({}, interval)
    return None if excess(found.usage, graph.device) else found


def _intervals(graph: Foldable, slowest: int) -> list[int]:
    """Intervals that are tried, ascending: each 2 % longer than the one before."""
    count = math.ceil(math.log(max(slowest / graph.fastest, 1)) / math.log(1.02))
    return sorted({math.ceil(graph.fastest * 1.02**step) for step in range(count + 1)})


def excess(usage: Usage, device: Device, times: float = 1.0) -> dict[str, float]:
    """What is taken beyond so many times a device, by resource; empty where it fits."""
    pairs = {name: (getattr(usage, name), times * getattr(device, name)) for name in RESOURCES}
    return {name: taken - there for name, (taken, there) in pairs.items() if taken > there}


def beyond(usage: Usage, device: Device) -> str:
    """The same in words."""
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
    """The smallest design of an interval, or None where none fits.

    Products are made of lookup tables only where multipliers do not suffice.
    """
    device = graph.device
    found = _smallest(graph, interval, device, False)
    if found is None and device.family.has_multipliers:
        routable = replace(device, lut=int(ROUTABLE * device.lut))
        found = _smallest(graph, interval, routable, True)
    return found


def _smallest(graph: Foldable, interval: int, device: Device, may_be_soft: bool) -> Folding | None:
    program = Program(graph, interval, may_be_soft)
    budget = Usage(*(getattr(device, name) for name in RESOURCES))
    for _ in range(ROUNDS):
        chosen = program.solve(budget)
        if chosen is None:
            return None
        found = graph.measured(chosen, interval)
        over = excess(found.usage, device)
        if not over:
            return found
        budget = Usage(*(b - over.get(n, 0) for n, b in zip(RESOURCES, budget, strict=True)))
    return None
