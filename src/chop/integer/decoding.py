"""Step of a decoder: one token in, one row of results out, with keys and values in caches.

A graph is folded twice: for whole sequences, and for sequences of one token. The second gives the
shapes of a step. Values that differ between both, such as position embeddings, become tables that
the position selects a row of. The batch of a step is time, see `chop.nn.integer.cache`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.captured.specs import TensorSpec
from chop.errors import ConfigError
from chop.integer.calls import is_moved
from chop.integer.folding import Folded
from chop.integer.grids import AnyGrid
from chop.integer.lowering import GraphLowering, PositionParts
from chop.integer.masks import proven_mask
from chop.integer.steps import Codes
from chop.ir.annotate import tensors_in
from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata
from chop.ir.propagate import GraphRunner
from chop.nn.integer import (
    Grid,
    IntegerCache,
    IntegerEmbedding,
    IntegerOperator,
    IntegerPosition,
)
from chop.nn.integer.mask import KeptKeys

START = "start"
"""Input of a step: 1 for the first token of a sequence, otherwise 0."""


def token_steps(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the inputs of a decoder token by token, with the input `start`.

    Args:
        inputs: whole sequences by name, integers (sequences, tokens).
    Returns: integers (sequences * tokens, 1), one sequence after another.

    Raises:
        ConfigError: if an input has another shape, or real numbers.
    """
    tensors = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
    first = next(iter(tensors.values()), torch.empty(0))
    for name, x in tensors.items():
        if x.dim() != 2 or x.shape != first.shape or x.is_floating_point():
            raise ConfigError(
                f"decode: expected token ids (sequences, tokens) as inputs, got '{name}' with the "
                f"shape {tuple(x.shape)} and dtype {x.dtype}."
            )
    if START in tensors:
        raise ConfigError(f"decode: the model has an input '{START}'; rename it.")
    start = torch.zeros_like(first, dtype=torch.int64)
    start[:, 0] = 1
    return {name: x.reshape(-1, 1) for name, x in {**tensors, START: start}.items()}


def add_start(mg: MaseGraph, steps: Mapping[str, Tensor]) -> fx.Node:
    """Adds the input `start` to a graph; returns its node.

    Args:
        mg: the graph; it is changed.
        steps: an example, from `token_steps`.
    """
    last = [node for node in mg.nodes if node.op == "placeholder"][-1]
    with mg.fx_graph.inserting_after(last):
        node = mg.fx_graph.placeholder(START)
    node.meta["mase"] = MaseMetadata(node)
    mg.model.record.example_inputs[START] = TensorSpec.of(steps[START])
    return node


class DecoderStep(PositionParts):
    """Counter, masks, caches and tables of one step of a decoder.

    Args:
        whole: values of the graph on whole sequences.
        length: tokens of a sequence.
        start: the input `START` of the graph.
    """

    def __init__(self, whole: Folded, length: int, start: fx.Node) -> None:
        self.whole, self.start, self.length = whole, start, length
        self._mask: fx.Node | None = None

    def begin(self, lowering: GraphLowering, start: fx.Node) -> None:
        """See the base class."""
        self._lowering = lowering
        counter = IntegerPosition(self.length)
        self._position = self._call(self.start, counter, Codes(start, None), "_position")

    def past_keys(self, mask: Any, is_causal: bool) -> fx.Node:
        """See the base class."""
        if isinstance(mask, fx.Node):
            is_causal = proven_mask(self._lowering.mg, mask, self.whole).is_causal
        if not is_causal:
            raise ConfigError(
                "decode: expected a causal attention, got one that reads later tokens"
            )
        if self._mask is None:
            like, length = self.start, self.length
            rows = IntegerEmbedding(torch.ones(length, length, dtype=torch.int64).tril(), 1.0)
            row = self._call(like, rows, self._position, "_past")
            builder = self._lowering.builder
            keys = builder.call_method(like, "reshape", row.node, -1, length)
            self._mask = builder.call_module(like, KeptKeys(1, length, False), (keys,), "_kept")
        return self._mask

    def cached(self, node: fx.Node, source: fx.Node, grid: AnyGrid, suffix: str) -> Codes:
        """See the base class. Heads that the model repeats are repeated behind the cache."""
        lowering, length = self._lowering, self.length
        whole = self.whole.shape(source)
        if len(whole) != 4 or whole[-2] != length:
            raise ConfigError(
                f"decode: expected keys and values (sequences, heads, {length}, features), got "
                f"{whole}"
            )
        origin = _before_copies(lowering, source)
        groups = whole[-3] // lowering.folded.shape(origin)[-3]
        rows = lowering.coded(origin, grid)
        cache = IntegerCache(rows.proven, length)
        codes = lowering.call(node, cache, (rows, self._position), suffix)
        if groups == 1:
            return codes
        copies = lowering.builder.call_method(node, "repeat_interleave", codes.node, groups, -3)
        return Codes(copies, codes.edge)

    def table(self, node: fx.Node, grid: Grid, suffix: str) -> Codes | None:
        """See the base class."""
        lowering, length = self._lowering, self.length
        whole, step = self.whole.values[node], lowering.folded.values[node]
        if whole.shape == step.shape and torch.equal(whole, step):
            return None
        readers = (user for user in node.users if lowering.folded.has_tensors(user))
        rank = max((len(lowering.folded.shape(user)) for user in readers), default=whole.dim())
        whole, step = (x.reshape(*[1] * (rank - x.dim()), *x.shape) for x in (whole, step))
        pairs = zip(whole.shape[1:], step.shape[1:], strict=True)
        axes = [axis for axis, sizes in enumerate(pairs) if sizes[0] != sizes[1]]
        is_shared = bool((whole == whole[:1]).all())
        if [(length, 1)] != [(whole.size(k + 1), step.size(k + 1)) for k in axes] or not is_shared:
            raise ConfigError(
                f"decode: the constant '{node.name}' depends on the length of a sequence, expected "
                "one row for each position"
            )
        rows = grid.codes(whole[0].movedim(axes[0], 0)).reshape(length, -1)
        entry = self._call(node, IntegerEmbedding(rows, grid.step), self._position, suffix)
        sample = lowering.builder.call_method(node, "reshape", entry.node, -1, *step.shape[1:])
        return Codes(sample, entry.edge)

    def _call(self, node: fx.Node, operator: IntegerOperator, read: Codes, suffix: str) -> Codes:
        return self._lowering.call(node, operator, (read,), suffix)


def _before_copies(lowering: GraphLowering, source: fx.Node) -> fx.Node:
    """Returns the first value, (tokens, heads, 1, features), of which the given one has copies."""
    folded, origin, moves, node = lowering.folded, source, list[fx.Node](), source
    shape = folded.shape(source)
    while node not in folded.static and is_moved(lowering.mg, node, folded):
        moves.insert(0, node)
        (node, *others) = [each for each in node.all_input_nodes if folded.has_tensors(each)]
        if others:
            break
        own = tuple(getattr(folded.values[node], "shape", ()))
        if len(own) != 4 or own[0] != shape[0] or own[2:] != shape[2:] or shape[1] % own[1]:
            continue
        run = GraphRunner(lowering.mg.model)
        run.env = {**folded.values, node: torch.arange(math.prod(own)).view(own)}
        for move in moves:
            run.env[move] = run.run_node(move)
        copies = run.env[node].repeat_interleave(shape[1] // own[1], 1)
        if torch.equal(run.env[source], copies):
            origin = node
    return origin


def read_inputs(step: MaseGraph, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the inputs of a step token by token, see `token_steps`, from whole sequences."""
    read = {str(node.target) for node in step.nodes if node.op == "placeholder"}
    return {name: x for name, x in token_steps(inputs).items() if name in read}


def without_padding(step: MaseGraph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns whole sequences with masks that hide no token, since a step reads no mask."""
    read = read_inputs(step, inputs)
    return {name: x if name in read else torch.ones_like(x) for name, x in inputs.items()}


@torch.no_grad()
def check_steps(step: MaseGraph, whole: MaseGraph, inputs: Mapping[str, Any]) -> None:
    """Checks that the steps of a decoder compute what whole sequences do, bit for bit.

    Args:
        step: integer graph of a step.
        whole: integer graph of whole sequences.
        inputs: whole sequences by name.
    Raises:
        ConfigError: if results differ, because a token reads others in another way than by causal
            attention.
    """
    outputs = (
        step.model(**read_inputs(step, inputs)),
        whole.model(**without_padding(step, inputs)),
    )
    mine, others = ([x for x in tensors_in(each) if x.is_floating_point()] for each in outputs)
    if not all(torch.equal(a, b.reshape(a.shape)) for a, b in zip(mine, others, strict=True)):
        raise ConfigError(
            "decode: results token by token differ from those of whole sequences; expected tokens "
            "that read earlier ones by causal attention only."
        )
