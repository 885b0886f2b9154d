"""Folds and products that may be chosen for each node, and what a choice takes of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from chop.hardware.costs.devices import Device
from chop.hardware.costs.estimate import Usage, design_usage, plan_usage
from chop.hardware.design.components import get_component
from chop.hardware.design.connect import connect
from chop.hardware.design.emit import UNFOLDED
from chop.hardware.design.netlist import Boundary, Instance, Netlist, netlist
from chop.ir.graph import MaseGraph

SPREAD = 4
"""A node's choices take from an interval to this part of it: more lanes only match neighbors."""


@dataclass(frozen=True)
class Folding:
    """Cycles that each node may take.

    Attributes:
        fold: of nodes without a choice of their own, as constants are.
        folds: of the others, by node.
        interval: cycles between two samples.
        usage: of the design.
        soft: nodes whose products are made of lookup tables.
        undecided: shorter intervals of which it was not found out in time whether one fits.
    """

    fold: int
    folds: Mapping[str, int]
    interval: int
    usage: Usage
    soft: frozenset[str] = frozenset()
    undecided: tuple[int, ...] = ()


@dataclass(frozen=True)
class Option:
    """A choice for a node.

    Attributes:
        fold: that gives it.
        cycles: that it takes.
        reads: lanes of each input.
        sends: lanes of its result.
        usage: of the instance.
        is_soft: its products are made of lookup tables.
    """

    fold: int
    cycles: int
    reads: tuple[int, ...]
    sends: int
    usage: Usage
    is_soft: bool = False


@dataclass(eq=False)
class Foldable:
    """A graph whose nodes are to be folded.

    Attributes:
        mg: of integers.
        device: that it has to fit.
        undecided: intervals whose integer program took too long.
    """

    mg: MaseGraph
    device: Device
    undecided: set[int] = field(default_factory=set)
    _plans: dict[tuple[str, int, bool], Option] = field(default_factory=dict)

    @cached_property
    def slowest(self) -> Netlist:
        """The circuit with one lane everywhere."""
        return netlist(self.mg, UNFOLDED)

    @cached_property
    def nodes(self) -> list[Instance | Boundary]:
        """What has a choice: ports in, and operators of the graph."""
        operators = [part for part in self.slowest.instances if part.node]
        return [*self.slowest.inputs, *operators]

    def option(self, part: Instance | Boundary, fold: int, is_soft: bool = False) -> Option:
        """What a node is where it may take so many cycles; soft products are of lookup tables."""
        if isinstance(part, Boundary):
            size = part.wire.stream.size
            lanes = next((n for n in part.choices if size <= n * fold), part.choices[-1])
            return Option(fold, size // lanes, (), lanes, Usage())
        key = part.node, fold, is_soft
        if key not in self._plans:
            assert part.site is not None
            site = part.site.alone(fold, is_soft)
            component = get_component(type(site.operator))
            assert component is not None
            plan = component.plan(site)
            usage = plan_usage(part.module, plan, self.device.family)
            self._plans[key] = Option(
                fold, plan.cycles, plan.lanes, plan.out.lanes, usage, plan.resources.is_soft
            )
        return self._plans[key]

    def options(
        self, part: Instance | Boundary, interval: int, may_be_soft: bool = False
    ) -> list[Option]:
        """What a node may be in an interval, the fewest lanes first.

        Args:
            part: the node.
            interval: most cycles.
            may_be_soft: the same comes with products of lookup tables, too.
        """
        found: list[Option] = []
        fold = interval
        while fold * SPREAD >= interval and fold > 0:
            option = self.option(part, fold)
            if option.cycles > interval or (found and option.cycles >= found[-1].cycles):
                break
            found.append(option)
            fold = option.cycles - 1
        if may_be_soft:
            soft = [self.option(part, each.fold, True) for each in found if each.usage.dsp]
            found += [each for each in soft if each.is_soft]
        return found

    @cached_property
    def fastest(self) -> int:
        """Cycles of the slowest node where each is as fast as it can be."""
        return max((self.option(part, 1).cycles for part in self.nodes), default=1)

    def measured(self, chosen: Mapping[str, Option], interval: int) -> Folding:
        """A choice by node with what its design takes; others take at most the interval."""
        folds = {node: option.fold for node, option in chosen.items()}
        soft = frozenset(node for node, option in chosen.items() if option.is_soft)
        made = netlist(self.mg, interval, folds, soft)
        connections = connect(made)
        usage = design_usage(made, connections, self.device.family)
        return Folding(interval, folds, max(made.interval, connections.interval), usage, soft)
