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
from chop.integer.grids import AnyGrid, Grids
from chop.integer.lowering import GraphLowering, LowerAttention
from chop.integer.masks import proven_mask
from chop.integer.steps import Attended, Codes
from chop.ir.annotate import tensors_in
from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata
from chop.ir.propagate import GraphRunner
from chop.nn.integer import (
    BlockGrid,
    IntegerEmbedding,
    IntegerOptions,
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


class StepLowering(GraphLowering):
    """Lowering of one step of a decoder, with a counter, masks, caches and tables.

    Args:
        mg: as in the base class, with the input `START`.
        folded: its values on sequences of one token.
        grids: as in the base class.
        options: as in the base class.
        lower_attention: as in the base class.
        whole: its values on whole sequences.
        start: the input `START`.
    """

    def __init__(
        self,
        mg: MaseGraph,
        folded: Folded,
        grids: Grids,
        options: IntegerOptions,
        lower_attention: LowerAttention,
        whole: Folded,
        start: fx.Node,
    ) -> None:
        super().__init__(mg, folded, grids, options, lower_attention)
        self.whole, self._start, self._length = whole, start, whole.shape(start)[-1]
        self._mask: fx.Node | None = None

    def run(self) -> None:
        """Builds the graph of a step, without the masks of padding, which it does not read."""
        super().run()
        self.builder.drop_unread_inputs()

    def add_inputs(self) -> None:
        """Adds the inputs, and the counter that gives the position of the token."""
        super().add_inputs()
        start = Codes(self.uncoded.inputs[self._start], None)
        counter = IntegerPosition(self._length)
        self._position = self.call(self._start, counter, (start,), "_position")

    def visible_keys(
        self, node: fx.Node, mask: Any, is_causal: bool, sizes: tuple[int, int]
    ) -> fx.Node:
        """Returns the boolean mask of the tokens up to the position, (tokens, 1, 1, keys).

        Raises:
            ConfigError: unless the attention of whole sequences is causal.
        """
        if isinstance(mask, fx.Node):
            is_causal = proven_mask(self.mg, mask, self.whole).is_causal
        if not is_causal:
            raise ConfigError(
                "decode: expected a causal attention, got one that reads later tokens"
            )
        if self._mask is None:
            like, length = self._start, self._length
            rows = IntegerEmbedding(torch.ones(length, length, dtype=torch.int64).tril(), 1.0)
            row = self.call(like, rows, (self._position,), "_past")
            keys = self.builder.call_method(like, "reshape", row.node, -1, length)
            operator = KeptKeys(1, length, False)
            self._mask = self.builder.call_module(like, operator, (keys,), "_kept")
        return self._mask

    def attended(self, source: fx.Node, grid: AnyGrid, groups: int) -> Attended:
        """Returns the keys or values of a token, and the positions of tokens, for a cache.

        Heads that the model repeats are in the cache once.

        Raises:
            ConfigError: if they are not those of the tokens that the graph reads.
        """
        whole, length = self.whole.shape(source), self._length
        if len(whole) != 4 or whole[-2] != length:
            raise ConfigError(
                f"decode: expected keys and values (sequences, heads, {length}, features), got "
                f"{whole}"
            )
        origin = _before_copies(self, source)
        groups *= whole[-3] // self.folded.shape(origin)[-3]
        # The reference reads positions as plain integers.
        inputs = self.coded(origin, grid), Codes(self._position.node, None)
        return Attended(inputs, groups, length)

    def constant(self, node: fx.Node, grid: AnyGrid, suffix: str) -> Codes:
        """Returns a constant, or its row at the position if it depends on the number of tokens.

        Raises:
            ConfigError: if it depends on the number of tokens in another way.
        """
        whole, step, length = self.whole.values[node], self.folded.values[node], self._length
        if isinstance(grid, BlockGrid) or (whole.shape == step.shape and torch.equal(whole, step)):
            return super().constant(node, grid, suffix)
        readers = (user for user in node.users if self.folded.has_tensors(user))
        rank = max((len(self.folded.shape(user)) for user in readers), default=whole.dim())
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
        table = IntegerEmbedding(rows, grid.step, self.loaded_ends(node, grid))
        entry = self.call(node, table, (self._position,), suffix)
        sample = self.builder.call_method(node, "reshape", entry.node, -1, *step.shape[1:])
        return Codes(sample, entry.edge)


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
