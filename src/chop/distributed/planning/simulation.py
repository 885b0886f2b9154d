"""Simulation of a sharded forward pass on one process, with simulated peers and fake tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from chop.base.nested import tree_map
from chop.distributed import runtime
from chop.distributed.apply import shard_graph
from chop.distributed.collectives import Collective, Sent, counted_collectives, totals
from chop.distributed.memory import MemoryMeter
from chop.distributed.plan import ShardingPlan, named_tensors
from chop.distributed.planning.layouts import get_layout, processes_that_share
from chop.distributed.planning.machine import Machine
from chop.distributed.planning.simulated import (
    FAILURES,
    fake_copy,
    fake_inputs,
    simulated_mesh,
)
from chop.distributed.planning.work import count_flops, moves_memory, reads_whole_tensors
from chop.errors import ChopError, PlanError, first_line
from chop.ir.flops import FlopCounts
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphVisitor, bind_inputs
from chop.private.torch_api import FakeTensorMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Step:
    """One node of a simulated forward pass.

    Attributes:
        node: node name; transfers of its inputs are included.
        seconds: predicted time of arithmetic, memory and collectives.
        flops: floating-point operations of this process.
        sent: collectives of this process.
        live_bytes: peak activation bytes during the node.
    """

    node: str
    seconds: float
    flops: float
    sent: tuple[Sent, ...]
    live_bytes: int


@dataclass(frozen=True)
class Simulation:
    """Simulated forward pass of one process.

    Attributes:
        plan: the layouts.
        steps: one per node, in order.
        seconds: predicted time, the sum of all steps.
        parameter_bytes: bytes of parameters and buffers.
        peak_bytes: these plus the peak activation bytes.
    """

    plan: ShardingPlan
    steps: tuple[Step, ...]
    seconds: float
    parameter_bytes: int
    peak_bytes: int

    @property
    def sent(self) -> list[Sent]:
        """All collectives in order."""
        return [each for step in self.steps for each in step.sent]

    @property
    def collectives(self) -> list[Collective]:
        """Calls and bytes by operation."""
        return totals(self.sent)

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process passes to collectives."""
        return sum(each.size_bytes for each in self.collectives)


def simulate(
    mg: MaseGraph, plan: ShardingPlan, inputs: Mapping[str, Any], machine: Machine
) -> Simulation:
    """Simulates a forward pass of the plan's first process.

    Args:
        mg: the graph; it is not changed, and may be on the meta device.
        plan: the layouts.
        inputs: inputs of the forward pass by name.
        machine: speeds for the predicted time.

    Raises:
        PlanError: if the plan does not fit the graph, an operator cannot compute in its layouts, or
            a process group exists already.
    """
    with simulated_mesh(plan.mesh) as mesh, FakeTensorMode(), torch.no_grad():
        sharded = fake_copy(mg)
        shard_graph(sharded, plan, mesh)
        given = fake_inputs(inputs)
        try:
            return _Run(sharded, given, mesh, machine).forward().result(plan)
        except ChopError:
            raise
        except FAILURES as error:
            name = plan.name or "this plan"
            reason = _uneven_batch(error, inputs, plan) or first_line(error)
            raise PlanError(f"the model does not run with {name}: {reason}") from error


def _uneven_batch(error: BaseException, inputs: Mapping[str, Any], plan: ShardingPlan) -> str:
    """Returns a sentence if an error of DTensor is about the rows of the inputs, or no text."""
    rows = {len(x) for x in inputs.values() if isinstance(x, Tensor) and x.dim()}
    for count in plan.mesh:
        for size in rows:
            if size % count and f"(size {size}) is not evenly divisible" in str(error):
                return (
                    f"a batch of {size} rows cannot be split evenly among {count} processes; use "
                    f"a batch that is a multiple of {count}."
                )
    return ""


class _Run:
    """An observed forward pass."""

    def __init__(
        self, mg: MaseGraph, inputs: Mapping[str, Any], mesh: DeviceMesh, machine: Machine
    ) -> None:
        self._mg, self._inputs, self._mesh, self._machine = mg, inputs, mesh, machine
        self._flop_counts = FlopCounts()
        self._parameters = [
            _local(x) for x in {id(x): x for _, x in named_tensors(mg.model)}.values()
        ]

    def forward(self) -> _Run:
        """Runs once."""
        self._steps = list[Step]()
        arguments = bind_inputs(self._mg.model, self._inputs)
        with (
            counted_collectives(self._mesh) as sent,
            MemoryMeter([*self._parameters, *_tensors(arguments)], self._machine.backend) as meter,
        ):
            self._sent, self._meter, self._counted = sent, meter, 0
            GraphVisitor(self._mg.model, self._visit).run(*arguments)
        return self

    def result(self, plan: ShardingPlan) -> Simulation:
        """Returns the result of the last run."""
        parameter_bytes = sum(x.nbytes for x in self._parameters)
        peak = max((step.live_bytes for step in self._steps), default=0)
        seconds = sum(step.seconds for step in self._steps)
        return Simulation(
            plan, tuple(self._steps), seconds, parameter_bytes, parameter_bytes + peak
        )

    def _visit(self, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        flops, size = self._work(node, values, result)
        # Collectives since the last node belong to this one.
        sent = tuple(self._sent[self._counted :])
        self._counted = len(self._sent)
        seconds = self._machine.seconds(flops, size) + self._machine.get_seconds(sent)
        self._steps.append(Step(_owner(node), seconds, flops, sent, self._meter.peak))
        self._meter.restart()

    def _work(
        self, node: fx.Node, values: Mapping[fx.Node, Any], result: Any
    ) -> tuple[float, float]:
        """Returns operations and bytes of this process; zero for nodes that do not compute."""
        if node.op in ("placeholder", "output", "get_attr") or _is_ours(node):
            return 0.0, 0.0
        layouts = [get_layout(x) for x in _dtensors(result)]
        shares = [processes_that_share(self._mesh.shape, x) for x in layouts if x]
        inputs = [x for source in node.all_input_nodes for x in _dtensors(values[source])]
        if not moves_memory(map(_local, inputs), map(_local, _dtensors(result))):
            return 0.0, 0.0
        module = self._mg.get_module(node) if reads_whole_tensors(self._mg, node) else None
        own = [x for _, x in named_tensors(module)] if module is not None else []
        size = sum(_local(x).nbytes for x in (*inputs, *own, *_dtensors(result)))
        flops = count_flops(self._mg, node, values, _dtensors(result), self._flop_counts)
        # Operations are counted on whole tensors, and divided among the processes.
        return flops / max(shares, default=1), float(size)


def _is_ours(node: fx.Node) -> bool:
    """Returns whether the runner inserted a node."""
    return getattr(node.target, "__module__", "") == runtime.__name__


def _owner(node: fx.Node) -> str:
    """Returns the first reader of a transfer, to which it is attributed."""
    while _is_ours(node) and node.users:
        node = next(iter(node.users))
    return node.name


def _tensors(value: Any) -> list[Any]:
    tensors: list[Any] = []
    tree_map(lambda x: tensors.append(x) if isinstance(x, Tensor) else None, value)
    return tensors


def _dtensors(value: Any) -> list[Any]:
    from torch.distributed.tensor import DTensor

    return [x for x in _tensors(value) if isinstance(x, DTensor)]


def _local(x: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    local: Tensor = x.to_local() if isinstance(x, DTensor) else x
    return local
