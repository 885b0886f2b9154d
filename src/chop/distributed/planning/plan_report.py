"""Rows of a plan: beside plans that need no search, and by layer of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chop.distributed.planning.simulation import Simulation, Step
from chop.ir.graph import MaseGraph

_REPEATED = re.compile(r"(.*?\.\d+)(\..*)?")


def plan_rows(simulations: Mapping[str, Simulation]) -> list[dict[str, Any]]:
    """A row for each plan: predicted time, memory, and what a process sends in a forward."""
    return [
        {
            "plan": name,
            "seconds": found.seconds,
            "kept_bytes": found.kept_bytes,
            "peak_bytes": found.peak_bytes,
            "calls": sum(each.calls for each in found.collectives),
            "sent_bytes": found.sent_bytes,
        }
        for name, found in simulations.items()
    ]


def layer_rows(mg: MaseGraph, simulation: Simulation) -> list[dict[str, Any]]:
    """A row for each layer, in order: what it computes, sends and has in memory.

    A layer is a module of a list, such as `encoder.layer.3`, or what is between two.
    """
    names = {node.name: _layer(node.meta.get("nn_module_stack")) for node in mg.nodes}
    found: dict[str, list[Step]] = {}
    for step in simulation.steps:
        found.setdefault(names.get(step.node, ""), []).append(step)
    return [
        {
            "layer": layer or "model",
            "seconds": sum(step.seconds for step in steps),
            "flops": sum(step.flops for step in steps),
            "calls": sum(len(step.sent) for step in steps),
            "sent_bytes": int(sum(x.size_bytes for step in steps for x in step.sent)),
            "activation_bytes": max(step.live_bytes for step in steps),
        }
        for layer, steps in found.items()
    ]


def _layer(stack: Mapping[str, Any] | None) -> str:
    """The layer of a node by the modules that it is called in, the innermost last."""
    path = list(stack)[-1] if stack else ""
    repeated = _REPEATED.fullmatch(path)
    return repeated[1] if repeated else path.partition(".")[0]
