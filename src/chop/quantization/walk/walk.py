"""Walk over the parts of a graph, the common engine of rounding and folding.

A walk visits the parts of a graph in execution order. A rounding method, `Rounder`, gets each part
with its float weights, a `FloatBlock`, and with its inputs on each batch, which rounded parts have
computed. It changes the weights in place, and runs the part itself, in float (`quantizers_off`) or
with the current weights.

The weights of a `Walk` are in memory. By default the graph is one part, which runs node by node on
all batches, and padding and autocast regions are supported. A `BlockWalk` has one float block in
memory, and reads and writes files.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from chop.base.memory import release_freed
from chop.captured.runtime import exit_open_regions
from chop.captured.state.preserve_state import preserve_state
from chop.ir.batches import Runs, run_layerwise
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphVisitor, bind_inputs
from chop.ir.propagate import Visit as NodeVisit
from chop.nn.quantized.base import quantizers_off
from chop.quantization.walk.parts import Part
from chop.quantization.walk.values import Values

Batch = Mapping[str, Any]
Visit = Callable[[fx.Node, Runs], None]
"""Callback before a node runs, with the values of each batch."""
Before = Callable[[fx.Node, Mapping[fx.Node, Any]], None]
"""Callback before a node runs, with the node and the current values."""
Note = Callable[[int, fx.Node, Mapping[fx.Node, Any]], None]
"""Callback before a node of a batch runs, with the batch number, the node and the current values.
"""
Stage = Callable[[str], AbstractContextManager[Any]]
"""Context that shows the name of the part in progress."""


@dataclass(frozen=True)
class Rounded:
    """Result of rounding a part.

    Attributes:
        report: report of the method, as JSON.
        skipped: reasons by name for skipped experts.
        values: values after the part; None if the walk has to run it.
    """

    report: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    values: Values | None = None


Rounder = Callable[["FloatBlock"], Rounded]
"""Function that rounds the weights of a part in place."""


@dataclass(frozen=True, eq=False)
class FloatBlock:
    """Part with float weights in memory, for rounding methods.

    Attributes:
        mg: graph, in which modules of the part can be replaced.
        part: nodes of the part.
        inputs: values that enter it, by batch.
        batches: inputs of the graph, by batch.
        scratch: folder for values that do not fit into memory; None keeps all in memory.
        is_last: true for the last part, which stops after the last visited node.
        exact: values that enter the part in the float model, by batch; None if the walk does not
            run it.
        targets: values after the float part; also None for the last part.
    """

    mg: MaseGraph
    part: Part
    inputs: Values
    batches: Sequence[Batch]
    scratch: Path | None
    is_last: bool = False
    exact: Values | None = None
    targets: Values | None = None

    def run(
        self, nodes: Collection[fx.Node] = (), visit: Visit | None = None, note: Note | None = None
    ) -> Values:
        """Runs the part on all batches from one visited node to the next, one batch at a time.

        Args:
            nodes: nodes to visit; nodes of other parts are ignored.
            visit: callback that may change the modules that the nodes call.
            note: called with each node of each batch.
        Returns: the values after the part.
        """
        chosen = [node for node in self.part.nodes if node in nodes]
        stages = _stages(chosen)
        places = {node: place for place, node in enumerate(self.part.nodes)}
        cuts = [0, *(places[stage[0]] for stage in stages), len(places)]
        values, visited = self.inputs, set(chosen)
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if number and visit is not None:
                for node in stages[number - 1]:
                    _visit(node, values.by_batch(len(self.batches)), visit, note)
                release_freed()
            if stop == len(places) and self.is_last:
                break  # nobody reads the output of the graph
            after = Values(self.mg.nodes, self.scratch)
            for batch in range(len(self.batches)):
                nodes = self.part.nodes[start:stop]
                before = _before(note, batch, visited)
                values_after = run_nodes(
                    self.mg, nodes, self.batches[batch], values.get(batch), before=before
                )
                after.put(batch, values_after)
            values = after
        return values

    def run_batch(
        self, number: int, inputs: Values, before: Before = lambda *_: None
    ) -> dict[fx.Node, Any]:
        """Runs the part on one batch. Returns the values after it.

        Args:
            number: number of the batch.
            inputs: values that enter the part, by batch.
            before: called with each node before it runs, and the current values.
        """
        batch, values = self.batches[number], inputs.get(number)
        return run_nodes(self.mg, self.part.nodes, batch, values, before=before)


class _WholeGraph(FloatBlock):
    """Graph as one part, with the values of all batches in memory."""

    def run(
        self, nodes: Collection[fx.Node] = (), visit: Visit | None = None, note: Note | None = None
    ) -> Values:
        """Runs the graph up to the last visited node. Returns no values."""
        chosen = [node for node in self.part.nodes if node in nodes]

        def each(node: fx.Node, runs: Runs) -> None:
            _visit(node, runs, visit if node in nodes else None, note)

        if chosen:
            run_layerwise(self.mg, self.batches, each, until=chosen[-1])
        return self.inputs


def _visit(node: fx.Node, runs: Runs, visit: Visit | None, note: Note | None) -> None:
    if note is not None:
        for number, values in enumerate(runs):
            note(number, node, values)
    if visit is not None:
        visit(node, runs)


def _before(note: Note | None, batch: int, but: Collection[fx.Node]) -> Before:
    """Returns a visitor that passes a batch's nodes to `note`, except nodes already passed."""
    if note is None:
        return lambda *_: None
    return lambda node, values: None if node in but else note(batch, node, values)


def _stages(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Groups consecutive layers that read the same value, which are visited together."""
    stages: list[list[fx.Node]] = []
    for node in nodes:
        if stages and stages[-1][0].all_input_nodes[0] is node.all_input_nodes[0]:
            stages[-1].append(node)
        else:
            stages.append([node])
    return stages


def run_nodes(
    mg: MaseGraph,
    nodes: Sequence[fx.Node],
    batch: Batch,
    values: Mapping[fx.Node, Any],
    seen: NodeVisit = lambda *_: None,
    before: Before = lambda *_: None,
    running: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> dict[fx.Node, Any]:
    """Runs nodes of a graph on a batch. Returns the values that later nodes read.

    Args:
        mg: the graph.
        nodes: consecutive nodes.
        batch: inputs of the graph by name.
        values: values that enter the first node.
        seen: called with each node, the current values and its result.
        before: called with each node before it runs, and the current values.
        running: creates the context in which a node runs.
    """
    runner = GraphVisitor(mg.model, seen, running, frees=False)
    if any(node.op == "placeholder" for node in nodes):
        runner.args_iter = iter(bind_inputs(mg.model, batch))
    runner.env.update(values)
    for node in nodes:
        before(node, runner.env)
        runner.env[node] = runner.run_node(node)
        for source in node.all_input_nodes:
            if max(source.users) is node:
                del runner.env[source]
    return dict(runner.env)


class Walk:
    """Walk that rounds a graph part by part with all weights in memory.

    Args:
        mg: graph to change.
        batches: from `select_inputs`.
        parts: from `get_parts`; None treats the graph as one part.
        scratch: existing folder for values that do not fit into memory; None keeps all in memory.
        runs_float: also runs the float parts, on the results of earlier float parts.
    """

    def __init__(
        self,
        mg: MaseGraph,
        batches: Sequence[Batch],
        parts: Sequence[Part] | None = None,
        scratch: Path | None = None,
        runs_float: bool = False,
    ) -> None:
        self.mg, self.batches, self.scratch, self.runs_float = mg, batches, scratch, runs_float
        self.is_whole = parts is None
        self.parts = [Part("graph", tuple(mg.nodes))] if parts is None else list(parts)

    def run(self, round_part: Rounder, stage: Stage = contextlib.nullcontext) -> list[Rounded]:
        """Rounds every part.

        Args:
            round_part: rounding method.
            stage: shows progress.
        Returns: the results of all parts, without values.
        """
        inputs = exact = Values(self.mg.nodes, self.scratch)
        results = []
        with self.at_work():
            for number, part in enumerate(self.parts):
                with stage(part.name):
                    block = self.block(number, inputs, exact if self.runs_float else None)
                    rounded = round_part(block)
                    if not block.is_last:
                        inputs = rounded.values or block.run()
                        exact = block.targets or exact
                results.append(replace(rounded, values=None))
        return results

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Prepares the model for running part by part, and restores modes and state afterwards."""
        with preserve_state(self.mg.model), torch.no_grad(), exit_open_regions():
            self.mg.model.eval()
            yield

    def block(self, number: int, inputs: Values, exact: Values | None = None) -> FloatBlock:
        """Returns a part for a rounding method.

        Args:
            number: number of the part.
            inputs: values that enter it.
            exact: values that enter it in the float model, which then runs as well.
        """
        is_last = number + 1 == len(self.parts)
        made = _WholeGraph if self.is_whole else FloatBlock
        new = functools.partial(made, self.mg, self.parts[number])
        targets = None
        if exact is not None and not is_last:
            with quantizers_off(self.mg.model):
                targets = new(exact, self.batches, self.scratch).run()
        return new(inputs, self.batches, self.scratch, is_last, exact, targets)

    @contextlib.contextmanager
    def loaded(self, part: Part) -> Iterator[None]:
        """Loads the weights of a part within the context."""
        yield

    def change(self, x: Tensor, change: Callable[[Tensor], None]) -> None:
        """Changes a tensor in memory, and again after each reload.

        Args:
            x: tensor of the model.
            change: function that changes values in place.
        """
        change(x.detach())
