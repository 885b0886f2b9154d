"""Calls of nodes on simulated meshes, as the planner makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from chop import MaseGraph
from chop.distributed.planning.layouts import Layout
from chop.distributed.planning.node_layouts import Call, LayoutFinder
from chop.distributed.planning.simulated import fake_copy, fake_inputs, simulated_mesh
from chop.distributed.strategies import register_strategies
from chop.ir.propagate import GraphVisitor, bind_inputs
from chop.private.torch_api import FakeTensorMode

Row = tuple[tuple[Layout, ...], tuple[Layout, ...], Layout]
"""Layouts of what a node reads, of its parameters, and of its result."""


@contextmanager
def calls(
    mg: MaseGraph, inputs: Mapping[str, Any], mesh: tuple[int, ...]
) -> Iterator[tuple[dict[str, Call], LayoutFinder]]:
    """Calls by the name of the node, and the finder of a mesh."""
    register_strategies()
    values: dict[fx.Node, Any] = {}
    with simulated_mesh(mesh) as device_mesh, FakeTensorMode(), torch.no_grad():
        twin = fake_copy(mg)
        arguments = bind_inputs(twin.model, fake_inputs(inputs))
        GraphVisitor(twin.model, lambda node, _, x: values.setdefault(node, x)).run(*arguments)
        found = {
            node.name: Call.of(twin, node, values)
            for node in twin.nodes
            if isinstance(values[node], torch.Tensor)
        }
        yield found, LayoutFinder(device_mesh)


def rows(mg: MaseGraph, inputs: Mapping[str, Any], processes: int, name: str) -> set[Row]:
    """The layouts of a node along one axis; each as texts joined by a space."""
    with calls(mg, inputs, (processes,)) as (found, finder):
        return {(x.reads, x.tensors, x.result) for x in finder.layouts(found[name])}


def texts(found: set[Row]) -> set[str]:
    """Rows along one axis as texts.

    >>> texts({((("S0",), ("R",)), (("S1",),), ("P",))})
    {'S0 R | S1 -> P'}
    """
    return {
        " ".join(x for (x,) in reads) + " | " + " ".join(x for (x,) in own) + f" -> {result}"
        for reads, own, (result,) in found
    }
