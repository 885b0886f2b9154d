"""Table rows of a plan: comparison with baseline plans, and layers of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chop.distributed.planning.simulation import Simulation, Step
from chop.ir.graph import MaseGraph

_REPEATED = re.compile(r"(.*?\.\d+)(\..*)?")


def plan_rows(simulations: Mapping[str, Simulation]) -> list[dict[str, Any]]:
    """Returns a row for each plan: predicted time, memory, and bytes sent per process."""
    return [
        {
            "plan": name,
            "seconds": simulation.seconds,
            "kept_bytes": simulation.parameter_bytes,
            "peak_bytes": simulation.peak_bytes,
            "calls": sum(each.calls for each in simulation.collectives),
            "sent_bytes": simulation.sent_bytes,
        }
        for name, simulation in simulations.items()
    ]


def layer_rows(mg: MaseGraph, simulation: Simulation) -> list[dict[str, Any]]:
    """Returns a row for each layer in order: computation, communication and memory.

    A layer is a module of a list, such as `encoder.layer.3`, or the nodes between two of them.
    """
    names = {node.name: _layer(node.meta.get("nn_module_stack")) for node in mg.nodes}
    layers: dict[str, list[Step]] = {}
    for step in simulation.steps:
        layers.setdefault(names.get(step.node, ""), []).append(step)
    return [
        {
            "layer": layer or "model",
            "seconds": sum(step.seconds for step in steps),
            "flops": sum(step.flops for step in steps),
            "calls": sum(len(step.sent) for step in steps),
            "sent_bytes": int(sum(x.size_bytes for step in steps for x in step.sent)),
            "activation_bytes": max(step.live_bytes for step in steps),
        }
        for layer, steps in layers.items()
    ]


def _layer(stack: Mapping[str, Any] | None) -> str:
    """Returns the layer of a node from its module stack, innermost module last."""
    path = list(stack)[-1] if stack else ""
    repeated = _REPEATED.fullmatch(path)
    return repeated[1] if repeated else path.partition(".")[0]
