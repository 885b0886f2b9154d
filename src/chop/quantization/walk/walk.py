"""Walk over the parts of a graph: the one engine of rounding and folding.

A walk visits the parts of a graph in the order in which they run. A method of rounding, `Rounder`,
gets each part with its float weights, a `FloatBlock`, and the values that enter it on each batch,
from parts that are rounded already. It changes the weights in place, and runs the part itself,
float (`quantizers_off`) or as far as it is rounded.

The weights of a `Walk` are in memory. By default the graph is one part, which runs node by node on
all batches: padding is followed, and autocast regions work. A `BlockWalk` has one block of floats
in memory, and reads and writes files.
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
"""Called before a node runs, with the values that have been computed of each batch."""
Before = Callable[[fx.Node, Mapping[fx.Node, Any]], None]
"""Is shown a node before it runs, and the values so far."""
Note = Callable[[int, fx.Node, Mapping[fx.Node, Any]], None]
"""Is shown a node of a batch before it runs, and the values so far."""
Stage = Callable[[str], AbstractContextManager[Any]]
"""Shows a part's name while it is worked on."""


@dataclass(frozen=True)
class Rounded:
    """Result of rounding a part.

    Attributes:
        told: by the method, as JSON has it.
        left: why the method left experts alone, by their names.
        values: after the part; None to run it for them.
    """

    told: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    values: Values | None = None


Rounder = Callable[["FloatBlock"], Rounded]
"""Rounds the weights of a part in place."""


@dataclass(frozen=True, eq=False)
class FloatBlock:
    """A part with its float weights in memory, for a method that rounds them.

    Attributes:
        mg: the graph; modules of the part can be replaced.
        part: which nodes.
        inputs: the values that enter it, by batch.
        batches: the inputs of the graph, by batch.
        scratch: a folder for values that do not fit into memory; None: all stay there.
        is_last: no other part follows; nothing is run after the last node that is visited.
        exact: the values that enter the part in the float model, by batch; None where a walk does
            without.
        targets: those after the float part; None of the last one too.
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
        """Runs the part on all batches, from one visit to the next, one batch at a time.

        Args:
            nodes: that are visited; those of other parts are passed over.
            visit: may change the modules that the nodes call.
            note: is shown each node of each batch.
        Returns: the values that leave the part.
        """
        chosen = [node for node in self.part.nodes if node in nodes]
        stages = _stages(chosen)
        places = {node: place for place, node in enumerate(self.part.nodes)}
        cuts = [0, *(places[stage[0]] for stage in stages), len(places)]
        values, is_noted = self.inputs, set(chosen)
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if number and visit is not None:
                for node in stages[number - 1]:
                    _visit(node, values.of_batches(len(self.batches)), visit, note)
                release_freed()
            if stop == len(places) and self.is_last:
                break  # nobody reads the output of the graph
            after = Values(self.mg.nodes, self.scratch)
            for batch in range(len(self.batches)):
                nodes = self.part.nodes[start:stop]
                before = _before(note, batch, is_noted)
                found = run_nodes(
                    self.mg, nodes, self.batches[batch], values.get(batch), before=before
                )
                after.put(batch, found)
            values = after
        return values

    def run_batch(
        self, number: int, inputs: Values, before: Before = lambda *_: None
    ) -> dict[fx.Node, Any]:
        """Runs the part on one batch; the values that leave it.

        Args:
            number: of the batch.
            inputs: the values that enter the part, by batch.
            before: is shown each node before it runs, and the values so far.
        """
        batch, values = self.batches[number], inputs.get(number)
        return run_nodes(self.mg, self.part.nodes, batch, values, before=before)


class _WholeGraph(FloatBlock):
    """A graph as one part, whose values stay in memory for all batches."""

    def run(
        self, nodes: Collection[fx.Node] = (), visit: Visit | None = None, note: Note | None = None
    ) -> Values:
        """Runs the graph up to the last node that is visited; it returns no values."""
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
    """Returns a visitor that shows a batch's nodes to `note`, unless they were shown before."""
    if note is None:
        return lambda *_: None
    return lambda node, values: None if node in but else note(batch, node, values)


def _stages(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Layers one after the other that read the same value are visited at once."""
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
    """Runs nodes of a graph on a batch; the values that later nodes read.

    Args:
        mg: the graph.
        nodes: one after the other.
        batch: the inputs of the graph by name.
        values: that enter the first of the nodes.
        seen: is shown each node, the values so far and its result.
        before: is shown each node before it runs, and the values so far.
        running: makes a context in which a node runs.
    """
    runner = GraphVisitor(mg.model, seen, running)
    if any(node.op == "placeholder" for node in nodes):
        runner.args_iter = iter(bind_inputs(mg.model, batch))
    runner.env.update(values)
    for node in nodes:
        before(node, runner.env)
        runner.env[node] = runner.run_node(node)
        for done in runner.user_to_last_uses.get(node, ()):
            del runner.env[done]
    return dict(runner.env)


class Walk:
    """Rounds a graph part by part, all of whose weights are in memory.

    Args:
        mg: the graph; it is changed.
        batches: from `select_inputs`.
        parts: from `get_parts`; None: the graph is one part.
        scratch: an existing folder for values that do not fit into memory; None: all stay there.
        runs_float: whether the float parts run too, each on what the float ones before it give.
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
            round_part: the method.
            stage: shows progress.
        Returns: what came of each part; without values.
        """
        inputs = exact = Values(self.mg.nodes, self.scratch)
        found = []
        with self.at_work():
            for number, part in enumerate(self.parts):
                with stage(part.name):
                    block = self.block(number, inputs, exact if self.runs_float else None)
                    rounded = round_part(block)
                    if not block.is_last:
                        inputs = rounded.values or block.run()
                        exact = block.targets or exact
                found.append(replace(rounded, values=None))
        return found

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, the model runs part by part; after it, modes and state are as before."""
        with preserve_state(self.mg.model), torch.no_grad(), exit_open_regions():
            self.mg.model.eval()
            yield

    def block(self, number: int, inputs: Values, exact: Values | None = None) -> FloatBlock:
        """A part that is given to a method.

        Args:
            number: of the part.
            inputs: the values that enter it.
            exact: those that enter it in the float model, which runs then.
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
        """Inside, the weights of a part are in memory."""
        yield

    def change(self, x: Tensor, change: Callable[[Tensor], None]) -> None:
        """Changes a tensor that is in memory, and again whenever it is read.

        Args:
            x: of the model.
            change: of values in place.
        """
        change(x.detach())
