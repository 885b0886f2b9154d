"""Block walk: a decoder is rounded block by block, and one block of floats is in memory.

A walk visits the parts of a graph in the order in which they run: what is before the first block,
each block, and what is after the last one. For each part it

1. reads the part's float weights,
2. packs tables, which no method rounds,
3. gives the part to a method of rounding, `Rounder`: the float part and the values that enter it on
   each batch, from parts that are rounded already. The method changes weights in place; it may run
   the part itself, float (`quantizers_off`) or as far as it is rounded,
4. runs the rounded part, which gives the values that enter the next one,
5. packs it, writes the codes and these values to files, and lets go of the floats.

A walk that is killed goes on after the last part whose files are whole, and ends with the same
bytes: files have a temporary name until they are complete, and the journal names a part after them.

Blocks are found by structure: the list of modules of one class that has most parameters. A graph
that cannot be cut between them raises `NoBlocksError`; the caller then works on the whole graph.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from chop.base.memory import release_freed
from chop.captured.nodes.writes import shared_writes
from chop.captured.runtime import REGIONS, exit_open_regions
from chop.ir.graph import MaseGraph
from chop.ir.layers import user_besides
from chop.ir.propagate import GraphRunner, bind_inputs
from chop.ir.propagate import Visit as NodeVisit
from chop.nn.packed import PackedOperator
from chop.nn.packed.packing import packed_class
from chop.nn.quantized import QuantizedOperator
from chop.quantization.packing import Selection, pack_layers
from chop.quantization.rounding.row_weights import quantizers_off
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.values import NoBlocksError, Values
from chop.quantization.walk.weights import LazyWeights

Batch = Mapping[str, Any]
Visit = Callable[[Sequence[fx.Node], Values], None]
"""Called before nodes run, with the values that have been computed of each batch."""
Before = Callable[[fx.Node, Mapping[fx.Node, Any]], None]
"""Is shown a node before it runs, and the values so far."""
Stage = Callable[[str], AbstractContextManager[Any]]
"""Shows a part's name while it is worked on."""


@dataclass(frozen=True)
class Part:
    """Nodes that run one after the other.

    Attributes:
        name: the path of a block, or "first" and "last".
        nodes: of the graph.
    """

    name: str
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Rounded:
    """What came of a part.

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


def block_paths(model: nn.Module) -> list[str]:
    """The paths of a decoder's blocks, of which there are two at least; empty where it has none."""
    lists = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) > 1
        and len({type(block) for block in module}) == 1
    }
    sizes = {path: sum(p.numel() for p in module.parameters()) for path, module in lists.items()}
    if not sizes:
        return []
    path = max(sizes, key=sizes.__getitem__)
    return [f"{path}.{name}" for name, _ in lists[path].named_children()]


def parts_of(mg: MaseGraph, blocks: Sequence[str]) -> list[Part]:
    """The graph cut at the first node of each block and after the last one's last.

    Raises:
        NoBlocksError: there are no blocks, or their nodes do not run one block after the other.
    """
    if not blocks:
        raise NoBlocksError("the model has no list of blocks of one class")
    nodes, places = list(mg.nodes), {path: list[int]() for path in blocks}
    for place, node in enumerate(nodes):
        path = _block_of(node, blocks)
        if path is not None:
            places[path].append(place)
    if not all(places.values()):
        missing = next(path for path, found in places.items() if not found)
        raise NoBlocksError(f"no module of '{missing}' is called in the graph")
    starts = [found[0] for found in places.values()]
    ends = [found[-1] + 1 for found in places.values()]
    if any(end > start for end, start in zip(ends, starts[1:], strict=False)):
        raise NoBlocksError("the blocks do not run one after the other")
    cuts = [0, *starts, ends[-1], len(nodes)]
    names = ["first", *blocks, "last"]
    pairs = zip(names, cuts, cuts[1:], strict=False)
    parts = [Part(name, tuple(nodes[start:stop])) for name, start, stop in pairs]
    for part in parts[1:]:
        _check_apart(part)
    return parts


def _block_of(node: fx.Node, blocks: Sequence[str]) -> str | None:
    if node.op not in ("call_module", "get_attr"):
        return None
    # `layers.1` is no prefix of what is in `layers.10`.
    return next((path for path in blocks if f"{node.target}.".startswith(f"{path}.")), None)


def _check_apart(part: Part) -> None:
    """Refuses what the values at a cut do not tell: regions, and writes into earlier memory."""
    for node in part.nodes:
        if node.target in REGIONS:
            raise NoBlocksError(f"node '{node.name}' changes a mode for those that follow")
        if shared_writes(node):
            raise NoBlocksError(f"node '{node.name}' writes into the memory of another value")


@dataclass(frozen=True, eq=False)
class FloatBlock:
    """A part with its float weights in memory, for a method that rounds them.

    Attributes:
        mg: the graph; modules of the part can be replaced.
        part: which nodes.
        inputs: the values that enter it, by batch.
        batches: the inputs of the graph, by batch.
        scratch: a folder for values that do not fit into memory.
        is_last: no other part follows; nothing is run after the last stage.
        exact: the values that enter the part in the float model, by batch; None where a walk does
            without.
        targets: those after the float part; None of the last one too.
    """

    mg: MaseGraph
    part: Part
    inputs: Values
    batches: Sequence[Batch]
    scratch: Path
    is_last: bool = False
    exact: Values | None = None
    targets: Values | None = None

    def run(self, stages: Sequence[Sequence[fx.Node]] = (), visit: Visit | None = None) -> Values:
        """Runs the part on all batches, from one stage to the next, one batch at a time.

        Args:
            stages: nodes of the part in order; `visit` is called with each before it runs.
            visit: may change the modules that the nodes call.
        Returns: the values that leave the part.
        """
        places = {node: place for place, node in enumerate(self.part.nodes)}
        cuts = [0, *(places[stage[0]] for stage in stages), len(places)]
        values = self.inputs
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if number and visit is not None:
                visit(stages[number - 1], values)
                release_freed()
            if stop == len(places) and self.is_last:
                break  # nobody reads the output of the graph
            after = Values(self.mg.nodes, self.scratch)
            for batch in range(len(self.batches)):
                nodes = self.part.nodes[start:stop]
                found = run_nodes(self.mg, nodes, self.batches[batch], values.get(batch))
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


def run_nodes(
    mg: MaseGraph,
    nodes: Sequence[fx.Node],
    batch: Batch,
    values: Mapping[fx.Node, Any],
    seen: NodeVisit = lambda *_: None,
    before: Before = lambda *_: None,
) -> dict[fx.Node, Any]:
    """Runs nodes of a graph on a batch; the values that later nodes read.

    Args:
        mg: the graph.
        nodes: one after the other.
        batch: the inputs of the graph by name.
        values: that enter the first of the nodes.
        seen: is shown each node, the values so far and its result.
        before: is shown each node before it runs, and the values so far.
    """
    runner = GraphRunner(mg.model)
    if any(node.op == "placeholder" for node in nodes):
        runner.args_iter = iter(bind_inputs(mg.model, batch))
    runner.env.update(values)
    for node in nodes:
        before(node, runner.env)
        runner.env[node] = result = runner.run_node(node)
        seen(node, runner.env, result)
        for done in runner.user_to_last_uses.get(node, ()):
            del runner.env[done]
    return dict(runner.env)


class BlockWalk:
    """Rounds a graph part by part, with files in between; see the module.

    Args:
        mg: quantized in formats that wait for no data, on the meta device; it is changed.
        parts: from `parts_of`.
        weights: of the graph's model.
        batches: from `select_inputs`.
        files: keeps what is done.
        runs_float: whether the float parts run too, each on what the float ones before it give.
    """

    def __init__(
        self,
        mg: MaseGraph,
        parts: Sequence[Part],
        weights: LazyWeights,
        batches: Sequence[Batch],
        files: BlockFiles,
        runs_float: bool = False,
    ) -> None:
        self.mg, self.batches, self.files, self.weights = mg, batches, files, weights
        self._runs_float = runs_float
        self.parts = list(parts)

    def run(self, round_part: Rounder, stage: Stage) -> list[Rounded]:
        """Rounds every part; the graph then has packed layers, whose codes lie in files.

        Args:
            round_part: the method.
            stage: shows progress.
        Returns: what came of each part, those of an earlier run among them; without values.
        """
        found = []
        done = self.files.whole(len(self.parts))
        for number, part in enumerate(self.parts):
            if number < done:
                found.append(self._restore(number, part))
                continue
            with stage(part.name):
                found.append(self._round(number, part, round_part))
        return found

    def _round(self, number: int, part: Part, round_part: Rounder) -> Rounded:
        names = self._tensors(part)
        self.weights.load(names)
        exact, targets = self._run_float(number, part)
        self._pack(part, tables=True)
        self.weights.free_unused(names)
        inputs, scratch = self.files.inputs(number, self.mg), self.files.scratch
        is_last = number + 1 == len(self.parts)
        block = FloatBlock(self.mg, part, inputs, self.batches, scratch, is_last, exact, targets)
        with torch.no_grad(), exit_open_regions():
            self.mg.model.eval()
            rounded = round_part(block)
            values = rounded.values or block.run()
        self._pack(part)
        # In pairs, as the journal sorts keys.
        record = {"told": rounded.told, "left": list(rounded.left.items())}
        self.files.keep(number, self._state(part), None if is_last else values, record, targets)
        self._put(number, part)
        self.weights.free_unused(names)
        return replace(rounded, values=None)

    def _run_float(self, number: int, part: Part) -> tuple[Values | None, Values | None]:
        """The values that enter the float part, and those after it; see `FloatBlock`."""
        if not self._runs_float:
            return None, None
        exact = self.files.inputs(number, self.mg, exact=True)
        if number + 1 == len(self.parts):
            return exact, None
        with quantizers_off(self.mg.model), torch.no_grad(), exit_open_regions():
            self.mg.model.eval()
            return exact, FloatBlock(self.mg, part, exact, self.batches, self.files.scratch).run()

    def _restore(self, number: int, part: Part) -> Rounded:
        """A part that an earlier run has rounded: packed layers of zeros, and then its codes."""
        self._pack(part, tables=True)
        self._pack(part)
        self._put(number, part)
        record = self.files.record(number)
        return Rounded(record["told"], dict(record["left"]))

    @contextlib.contextmanager
    def loaded(self, part: Part) -> Iterator[None]:
        """Inside, the weights of a part are in memory."""
        names = self._tensors(part)
        self.weights.load(names)
        try:
            yield
        finally:
            self.weights.free(names)

    def _put(self, number: int, part: Part) -> None:
        """The tensors of a part as they lie in its file, in the place of those in memory."""
        self.weights.put(self.files.tensors(number))

    def _modules(self, part: Part) -> list[str]:
        """The paths of what a part calls or reads, without those of another part."""
        called = (n for n in part.nodes if n.op in ("call_module", "get_attr"))
        return list(dict.fromkeys(str(node.target) for node in called))

    def _tensors(self, part: Part) -> list[str]:
        """The names of the parameters and buffers that a part reads."""
        return self.weights.names_under(self._modules(part))

    def _state(self, part: Part) -> dict[str, torch.Tensor]:
        """The tensors of a part by name, packed ones as codes."""
        return self.weights.state_under(self._modules(part))

    def _pack(self, part: Part, tables: bool = False) -> None:
        """Packs the quantized layers of a part, or those that multiply nothing.

        A layer that shares its weight with another is packed together with it.
        """
        modules, nodes = self.mg.modules, {str(n.target): n for n in part.nodes}
        floats = {
            path: module
            for path, module in modules.items()
            if isinstance(module, QuantizedOperator)
            and not isinstance(module, PackedOperator)
            and packed_class(module) is not None
            and not module.spec.weight.is_identity
        }
        own = [path for path in self._modules(part) if path in floats]
        if tables:
            own = [path for path in own if not self.mg.operator(nodes[path]).is_product]
        weights = {id(floats[path].weight) for path in own}
        chosen = [path for path, module in floats.items() if id(module.weight) in weights]
        together = [floats[path] for path in chosen]
        free = [x for x in chosen if user_besides(self.mg, floats[x].weight, together) is None]
        if free:
            pack_layers(self.mg, Selection(tuple(free)), exact=False)
