"""Batches of inputs by name, and runs of a graph that show every node at work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.capture.preserve_state import preserve_state
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphRunner, GraphVisitor, Visit, bind_inputs

Batches = Iterable[Mapping[str, Any]]
"""One mapping of inputs by name per batch."""

Runs = list[Mapping[fx.Node, Any]]
"""The values of nodes, one mapping per batch."""


def select_inputs(mg: MaseGraph, batches: Batches, where: str) -> Iterator[dict[str, Any]]:
    """Batches without what the graph does not take, on the graph's device.

    Args:
        mg: the graph.
        batches: inputs of the model by name, one mapping per batch.
        where: the setting that the batches come from, for messages.

    Raises:
        ConfigError: something is no mapping, or there is no batch.
    """
    inputs = {node.target for node in mg.nodes if node.op == "placeholder"}
    device = next((parameter.device for parameter in mg.model.parameters()), None)
    count = 0
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise ConfigError(
                f"{where}: expected mappings of inputs by name, got {type(batch).__name__}."
            )
        count += 1
        yield {name: _to(value, device) for name, value in batch.items() if name in inputs}
    if count == 0:
        raise ConfigError(f"{where}: expected at least one batch, got none.")


def _to(value: Any, device: torch.device | None) -> Any:
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def observe_nodes(mg: MaseGraph, batches: Iterable[Mapping[str, Any]], visit: Visit) -> None:
    """Observes every node while the graph runs on each batch.

    The model runs in eval mode without gradients and is left as it was, after an error too.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: see `Visit`; it must not keep the values.
    """
    model = mg.model
    with preserve_state(model), torch.no_grad():
        model.eval()
        for batch in batches:
            GraphVisitor(model, visit).run(*bind_inputs(model, batch))


def run_layerwise(
    mg: MaseGraph, batches: Iterable[Mapping[str, Any]], visit: Callable[[fx.Node, Runs], None]
) -> None:
    """Layer-wise run: the graph runs on all batches at once, one node after the other.

    A layer that `visit` changes works changed on every batch, so that what follows sees the
    change, and the model still runs only once. Values that later nodes need stay in memory for
    every batch. Modes, gradients and what is put back are those of `observe_nodes`.

    Args:
        mg: the graph.
        batches: from `select_inputs`.
        visit: called with each node before it runs, and the values before it for each batch.
    """
    model = mg.model
    with preserve_state(model), torch.no_grad():
        model.eval()
        runs = [_started(model, batch) for batch in batches]
        for node in mg.nodes:
            visit(node, [run.env for run in runs])
            for run in runs:
                run.env[node] = run.run_node(node)
                for done in run.user_to_last_uses.get(node, ()):
                    del run.env[done]


def _started(model: Any, batch: Mapping[str, Any]) -> GraphRunner:
    run = GraphRunner(model)
    run.args_iter = iter(bind_inputs(model, batch))
    return run
