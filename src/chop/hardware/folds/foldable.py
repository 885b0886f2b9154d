"""Folding options of each node, and their device resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from chop.hardware.costs.devices import Device
from chop.hardware.costs.estimate import Usage, design_usage, plan_usage
from chop.hardware.design.components import get_component
from chop.hardware.design.connect import connect
from chop.hardware.design.emit import UNFOLDED
from chop.hardware.design.instances import Boundary, Instance, Netlist
from chop.hardware.design.netlist import netlist
from chop.ir.graph import MaseGraph

SPREAD = 4
"""Ratio of the slowest to the fastest option of a node. More lanes only help to match neighbors."""


@dataclass(frozen=True)
class Folding:
    """Chosen cycles of each node.

    Attributes:
        fold: fold of nodes without options, such as constants.
        folds: fold of the other nodes by name.
        interval: cycles between two samples.
        usage: resources of the design.
        soft: nodes whose products are built from lookup tables.
        undecided: shorter intervals for which the solver reached its time limit.
    """

    fold: int
    folds: Mapping[str, int]
    interval: int
    usage: Usage
    soft: frozenset[str] = frozenset()
    undecided: tuple[int, ...] = ()


@dataclass(frozen=True)
class Option:
    """A folding option of a node.

    Attributes:
        fold: fold that selects the option.
        cycles: cycles per sample.
        reads: lanes of each input.
        sends: lanes of its result.
        usage: resources of the instance.
        is_soft: products are built from lookup tables.
    """

    fold: int
    cycles: int
    reads: tuple[int, ...]
    sends: int
    usage: Usage
    is_soft: bool = False


@dataclass(eq=False)
class Foldable:
    """A graph to be folded for a device.

    Attributes:
        mg: integer graph.
        device: target device.
        undecided: intervals whose integer program reached its time limit.
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
        """Nodes with options: input ports and operators of the graph."""
        operators = [part for part in self.slowest.instances if part.node]
        return [*self.slowest.inputs, *operators]

    def option(self, part: Instance | Boundary, fold: int, is_soft: bool = False) -> Option:
        """Returns a node's option for a cycle limit, with lookup-table products if `is_soft`."""
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
            plan = component.planned(site)
            usage = plan_usage(part.module, plan, self.device.family)
            self._plans[key] = Option(
                fold, plan.cycles, plan.lanes, plan.out.lanes, usage, plan.resources.is_soft
            )
        return self._plans[key]

    def options(
        self, part: Instance | Boundary, interval: int, may_be_soft: bool = False
    ) -> list[Option]:
        """Returns the options of a node within an interval, the fewest lanes first.

        Args:
            part: the node.
            interval: maximum cycles.
            may_be_soft: adds variants with products built from lookup tables.
        """
        options: list[Option] = []
        fold = interval
        while fold * SPREAD >= interval and fold > 0:
            option = self.option(part, fold)
            # The same number of cycles again means that this is the fastest form of the node.
            if option.cycles > interval or (options and option.cycles >= options[-1].cycles):
                break
            options.append(option)
            # One cycle less than the previous option is the largest fold that gives a faster one.
            fold = option.cycles - 1
        if may_be_soft:
            soft = [self.option(part, each.fold, True) for each in options if each.usage.dsp]
            options += [each for each in soft if each.is_soft]
        return options

    @cached_property
    def fastest(self) -> int:
        """Cycles of the slowest node in its fastest form."""
        return max((self.option(part, 1).cycles for part in self.nodes), default=1)

    def measured(self, chosen: Mapping[str, Option], interval: int) -> Folding:
        """Returns the folding and resources of chosen options; other nodes use the interval."""
        folds = {node: option.fold for node, option in chosen.items()}
        soft = frozenset(node for node, option in chosen.items() if option.is_soft)
        # FIFO depths depend on all lanes together, so only the whole design shows its resources.
        made = netlist(self.mg, interval, folds, soft)
        connections = connect(made)
        usage = design_usage(made, connections, self.device.family)
        return Folding(interval, folds, max(made.interval, connections.interval), usage, soft)
