"""Row weights: how much the answer of a model depends on each row of what its layers compute.

A row is what a layer computes its outputs for by itself: a token, or a pixel of a convolution.
Methods that fit weights to sums over rows count each by its weight. Few rows may matter more than
all others: to the first token of a text, the attention sink of a decoder, attends every later one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.base.nested import tree_tensors
from chop.captured.padding.hidden import HiddenElements
from chop.captured.runtime import exit_open_regions
from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.rows import Measured, check_finite, counted_rows
from chop.nn.quantized.base import quantizers_off
from chop.quantization.walk.values import Values
from chop.quantization.walk.walk import Walk, run_nodes

RowWeights = dict[fx.Node, list[Tensor]]
"""By node, for each batch float32 (rows,); all batches of a node have a mean of 1."""

Run = Callable[..., dict[fx.Node, Any]]
"""`run_nodes` of a graph on a batch."""

WHERE = "row weights"
SQUARABLE = (2.0**-40, 2.0**50)
"""Magnitudes whose sums of squares stay in the range of float32."""


def row_weights(walk: Walk, nodes: Collection[fx.Node], where: str = WHERE) -> RowWeights:
    """The squared gradient of the log likelihood with respect to each row of each node's result.

    Its mean is the trace of the Fisher information of the row: to second order, a small error e of
    the row adds e^T F e / 2 to the KL divergence between the model's answers. Labels are drawn from
    the answers of the float model, with quantizers off; answers of masked tokens do not count. A
    row that reaches no answer has weight 0: padding, and what an attention mask hides. A batch
    needs the memory of one training step of the largest part.

    Args:
        walk: the graph and its batches; modes, gradients and state are left as they were.
        nodes: linear layers and convolutions.
        where: the setting that the batches come from, for messages.
    Returns: weights in the order in which the layer's inputs are flattened to rows.

    Raises:
        ConfigError: the answer has no gradient, or something is NaN or infinite.
    Source: the Fisher information as Hessian: Martens 2020, arXiv:1412.1193, sections 5 and 9.2.
    """
    model = walk.mg.model
    learning = {p: p.requires_grad for p in model.parameters() if p.is_floating_point()}
    generator = torch.Generator().manual_seed(0)
    found: RowWeights = {node: [] for node in nodes}
    try:
        for parameter in learning:
            parameter.requires_grad_(True)
        with quantizers_off(model), preserve_state(model), torch.enable_grad():
            model.eval()
            for number, batch in enumerate(walk.batches):
                edges = Edges(nodes, batch, number, where)
                with exit_open_regions(), torch.set_grad_enabled(True):
                    squared = _squared_gradients(walk, edges, generator)
                for node, weights in squared.items():
                    found[node].append(weights)
    finally:
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)
    return {node: _with_mean_one(weights) for node, weights in found.items()}


class Edges:
    """Notes the results of layers while a batch runs, and refuses inputs that are no numbers."""

    def __init__(
        self, nodes: Collection[fx.Node], batch: Mapping[str, Any], number: int, where: str
    ) -> None:
        self.nodes, self.batch, self.number, self.where = nodes, batch, number, where
        self.edges: dict[fx.Node, Any] = {}
        self.shapes: dict[fx.Node, torch.Size] = {}
        self.rows: dict[fx.Node, Tensor | None] = {}

    def __call__(self, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        """Notes the result of a node, if it is one of those."""
        if node not in self.nodes:
            return
        source = node.all_input_nodes[0]
        if isinstance(values[source], Tensor):
            self.counted(source, values[source], str(node.target))
        self.shapes[node] = result.shape
        self.rows[node] = counted_rows(node, result, self.batch)
        if result.requires_grad:
            # The edge, and not the tensor, which an in-place activation may change.
            self.edges[node] = torch.autograd.graph.get_gradient_edge(result)

    def counted(self, source: fx.Node, x: Tensor, path: str) -> Tensor | None:
        """The rows of a value that count, see `counted_rows`, which are finite numbers."""
        rows, measured = counted_rows(source, x, self.batch), Measured(self.where, path)
        check_finite(x.detach(), rows, self.batch, self.number, measured)
        return rows

    def finite(self, node: fx.Node, gradient: Tensor) -> Tensor:
        """The gradient of a layer's result, float32, 0 at rows that are padding."""
        known, rows = gradient.float(), self.rows[node]
        if rows is not None:
            known = torch.where(rows.view(*known.shape[:-1], 1), known, 0)
        if not known.isfinite().all():
            raise ConfigError(
                f"{self.where}: batch {self.number} gives '{node.target}' a gradient that is NaN "
                "or infinite; use row_weights 'uniform'."
            )
        return known


def _squared_gradients(
    walk: Walk, edges: Edges, generator: torch.Generator
) -> dict[fx.Node, Tensor]:
    """The squared gradient of each row of each node's result on a batch, (rows,).

    The batch runs forward through the parts, and back through each part again from its last to its
    first; the values between them are kept.
    """
    followed = HiddenElements()
    batch = followed.seeded(walk.mg.model, edges.batch) if walk.is_whole else edges.batch
    run = functools.partial(run_nodes, walk.mg, batch=batch, running=followed.running)
    with followed.activated():
        entering, learning = _forward(walk, run)
        return _backward(walk, run, entering, learning, edges, generator)


def _forward(walk: Walk, run: Run) -> tuple[Values, list[set[fx.Node]]]:
    """The values that enter each part, by its number, and those among them with a gradient."""
    entering, learning = Values(walk.mg.nodes, walk.scratch), list[set[fx.Node]]()
    values: dict[fx.Node, Any] = {}
    learned: set[fx.Node] = set()
    for number, part in enumerate(walk.parts[:-1]):
        entering.put(number, values)
        learning.append(learned)
        with walk.loaded(part):
            values = run(part.nodes, values=_leaves(values, learned))
        learned = {n for n, x in values.items() if isinstance(x, Tensor) and x.requires_grad}
        values = {node: _detached(x) for node, x in values.items()}
    entering.put(len(walk.parts) - 1, values)
    learning.append(learned)
    return entering, learning


def _backward(
    walk: Walk,
    run: Run,
    entering: Values,
    learning: Sequence[set[fx.Node]],
    edges: Edges,
    generator: torch.Generator,
) -> dict[fx.Node, Tensor]:
    """The squared gradients of the results that `edges` notes, from the last part to the first."""
    gradients: dict[fx.Node, Tensor | None] = {}
    back: Mapping[fx.Node, Tensor] | None = None
    for number in reversed(range(len(walk.parts))):
        part, leaves = walk.parts[number], _leaves(entering.get(number), learning[number])
        found: Sequence[Tensor | None]
        seen = Edges(edges.nodes, edges.batch, edges.number, edges.where)
        with walk.loaded(part):
            after = run(part.nodes, values=leaves, seen=seen)
            if back is None:
                roots = [_loss_of_samples(walk.mg, after[walk.mg.nodes[-1]], edges, generator)]
                ends = None
            else:
                roots, ends = [after[node] for node in back], list(back.values())
            sources = [node for node in leaves if node in learning[number]]
            wanted = [*(leaves[node] for node in sources), *seen.edges.values()]
            found = [None] * len(wanted)
            if wanted and roots:
                found = [*torch.autograd.grad(roots, wanted, ends, allow_unused=True)]
        back = {n: g for n, g in zip(sources, found, strict=False) if g is not None}
        gradients.update(zip(seen.edges, found[len(sources) :], strict=True))
        edges.shapes.update(seen.shapes)
        edges.rows.update(seen.rows)
    return _squared(walk.mg, edges, gradients)


def _leaves(values: Mapping[fx.Node, Any], learned: set[fx.Node]) -> dict[fx.Node, Any]:
    """The values that enter a part, of which some get a gradient."""
    return {
        node: x.detach().requires_grad_() if node in learned else x for node, x in values.items()
    }


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _loss_of_samples(
    mg: MaseGraph, output: Any, edges: Edges, generator: torch.Generator
) -> Tensor:
    """-log p of labels drawn from the answers in a model's output, padding left out."""
    answers, last = _answers(output), mg.nodes[-1]
    table = answers if answers.dim() > 1 else answers[:, None]
    return _sampled_loss(answers, edges.counted(last, table, "output"), generator)


def _squared(
    mg: MaseGraph, edges: Edges, gradients: Mapping[fx.Node, Tensor | None]
) -> dict[fx.Node, Tensor]:
    """The squared gradient of each row of each result that was noted; 0 where there is none."""
    weights: dict[fx.Node, Tensor] = {}
    for node, shape in edges.shapes.items():
        gradient = gradients.get(node)
        known = torch.zeros(shape) if gradient is None else edges.finite(node, gradient)
        # Channels lie before the dimensions that a convolution slides over.
        weights[node] = known.square().sum(-1 - mg.operator(node).spatial).flatten()
    return weights


def _answers(output: Any) -> Tensor:
    """The first result that has a gradient and is no scalar, as a loss is."""
    for part in tree_tensors(output):
        if part.requires_grad and part.dim() > 0:
            return part
    raise ConfigError(
        "row weights: expected an answer of the model that its weights have an effect on, got "
        f"{type(output).__name__} without one; use row_weights 'uniform'."
    )


def _sampled_loss(answers: Tensor, counted: Tensor | None, generator: torch.Generator) -> Tensor:
    """-log p of labels drawn from p: of classes along the last axis; of single numbers normal."""
    rows = answers.reshape(-1, answers.shape[-1] if answers.dim() > 1 else 1).float()
    if counted is not None:
        rows = rows[counted]
    if rows.shape[-1] < 2:
        noise = torch.randn(rows.shape, generator=generator).to(rows.device)
        return (rows * noise).sum()
    chances = rows.detach().softmax(-1).cpu()
    labels = torch.multinomial(chances, 1, generator=generator)[:, 0].to(rows.device)
    return F.cross_entropy(rows, labels, reduction="sum")


def _with_mean_one(weights: list[Tensor]) -> list[Tensor]:
    """Divided by the mean of all; ones where no row has an effect."""
    mean = torch.cat(weights).double().mean()
    return [(w / mean).float() if mean > 0 else torch.ones_like(w) for w in weights]


def moderated(weights: RowWeights) -> RowWeights:
    """The mean of each row's weight and 1; rows that reach no answer stay at 0.

    A few rows have most of the gradient. Sums over these alone say little about the directions that
    others take, and what is fitted to them gets bad there.
    """
    return {
        node: [torch.where(w > 0, (w + 1) / 2, 0) for w in found] for node, found in weights.items()
    }


def second_moments(samples: Iterable[tuple[Tensor, Tensor | None]]) -> Tensor:
    """The sum of X diag(weights) X^T over batches, (G, D, D).

    It is accumulated in place, so that one such matrix is in memory, and no other of its size.

    Args:
        samples: of each batch, at least one: X^T, (G, rows, D), and weights, (rows,); None: ones.
    Returns: float32; float64 where squares of the inputs leave the range of float32.
    """
    total: Tensor | None = None
    exponent: int | None = None
    for columns, weights in samples:
        x = columns.float()
        if weights is not None:
            # Rows that do not count may be anything, NaN too.
            x = x[:, weights > 0] * weights[weights > 0].sqrt()[:, None]
        if total is None:
            total = x.new_zeros(len(x), x.shape[-1], x.shape[-1])
        largest = float(x.abs().max()) if x.numel() else 0.0
        if largest == 0:
            continue
        new = _exponent(largest, exponent)
        if exponent is not None and new != exponent:
            total *= 4.0 ** (exponent - new)
        exponent = new
        x = x if new == 0 else x / 2.0**new
        total.baddbmm_(x.mT, x)
    assert total is not None
    return total.double() * 4.0**exponent if exponent else total


def _exponent(largest: float, before: int | None) -> int:
    """The power of two that values are divided by: the same as before where squares allow it."""
    scaled = largest / 2.0 ** (before or 0)
    is_squarable = scaled <= SQUARABLE[1] and (before is not None or scaled >= SQUARABLE[0])
    return (before or 0) if is_squarable else math.frexp(largest)[1]
