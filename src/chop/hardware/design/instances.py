"""Instances, ports and netlist of a circuit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.hardware.design.plan import ComponentPlan, Site
from chop.hardware.design.values import Wire
from chop.ir.ops import Kind
from chop.nn.integer import IntegerOperator


@dataclass(frozen=True, eq=False)
class Instance:
    """A module instance in the top module.

    Attributes:
        name: name of the instance and of its result's signals.
        kind: class name of the operator, or purpose of another instance.
        module: SystemVerilog module.
        folder: folder of its source.
        plan: parameters, inputs and output.
        inputs: values that it reads.
        drawn_as: color class of its box.
        node: graph node, if it implements an operator.
        site: operator and surroundings of that node.
        path: path of that operator in the model, such as `blocks.0.fc1`.
    """

    name: str
    kind: str
    module: str
    folder: Path
    plan: ComponentPlan
    inputs: tuple[Wire, ...]
    drawn_as: Kind = Kind.OTHER
    node: str = ""
    site: Site | None = None
    path: str = ""

    @property
    def fixed_because(self) -> str:
        """Reason for which memories are fixed in a circuit with loadable weights."""
        operator = self.site.operator if self.site else None
        if isinstance(operator, IntegerOperator):
            return "its module has no load_i" if operator.is_loadable else operator.fixed_because
        return "a constant without a number format"

    @property
    def row(self) -> dict[str, Any]:
        """Returns the component's row of the circuit table."""
        plan = self.plan
        products, is_soft = plan.resources.products, plan.resources.is_soft
        return {
            "component": self.name,
            "kind": self.kind,
            "module": self.module,
            "lanes": f"{', '.join(map(str, plan.lanes)) or '-'} to {plan.out.lanes}",
            "bits": plan.out.width,
            "cycles": plan.cycles,
            "multipliers": 0 if is_soft else products,
            "soft_multipliers": products if is_soft else 0,
            "rom_bits": sum(m.bits for m in plan.memories.values() if not m.is_loadable),
        }


@dataclass(frozen=True, eq=False)
class Boundary:
    """A port of the design.

    Attributes:
        name: port name.
        node: graph node whose codes are transferred.
        wire: inner stream.
        choices: allowed lanes.
    """

    name: str
    node: str
    wire: Wire
    choices: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Netlist:
    """Instances and ports of a design.

    Attributes:
        instances: instances in graph order.
        inputs: input ports.
        outputs: output ports.
    """

    instances: Sequence[Instance]
    inputs: Sequence[Boundary]
    outputs: Sequence[Boundary]

    @property
    def interval(self) -> int:
        """Cycles between two samples, those of the slowest instance or port."""
        ports = [*self.inputs, *self.outputs]
        return max(
            *(instance.plan.cycles for instance in self.instances),
            *(port.wire.stream.beats for port in ports),
        )
