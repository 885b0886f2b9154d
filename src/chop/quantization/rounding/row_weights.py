"""Row weights: how much the answer of a model depends on each row of what its layers compute.

A row is what a layer computes its outputs for by itself: a token, or a pixel of a convolution.
Methods that fit weights to sums over rows count each by its weight. Few rows may matter more than
all others: to the first token of a text, the attention sink of a decoder, attends every later one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.base.nested import tree_tensors
from chop.captured.padding.hidden import HiddenElements
from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphVisitor, bind_inputs
from chop.ir.rows import Measured, check_finite, counted_rows
from chop.nn.quantized import leaf_operators

RowWeights = dict[fx.Node, list[Tensor]]
"""By node, for each batch float32 (rows,); all batches of a node have a mean of 1."""

WHERE = "row weights"
SQUARABLE = (2.0**-40, 2.0**50)
"""Magnitudes whose sums of squares stay in the range of float32."""


def row_weights(
    mg: MaseGraph,
    nodes: Collection[fx.Node],
    batches: Iterable[Mapping[str, Any]],
    where: str = WHERE,
    of_batch: OfBatch | None = None,
) -> RowWeights:
    """The squared gradient of the log likelihood with respect to each row of each node's result.

    Its mean is the trace of the Fisher information of the row: to second order, a small error e of
    the row adds e^T F e / 2 to the KL divergence between the model's answers. Labels are drawn from
    the answers of the float model, with quantizers off; answers of masked tokens do not count. A
    row that reaches no answer has weight 0: padding, and what an attention mask hides.

    Args:
        mg: the graph; modes, gradients and state are left as they were.
        nodes: linear layers and convolutions.
        batches: from `select_inputs`; one needs the memory of one training step.
        where: the setting that they come from, for messages.
        of_batch: runs a batch forward and back; None: the whole graph at once.
    Returns: weights in the order in which the layer's inputs are flattened to rows.

    Raises:
        ConfigError: the answer has no gradient, or something is NaN or infinite.
    Source: the Fisher information as Hessian: Martens 2020, arXiv:1412.1193, sections 5 and 9.2.
    """
    model = mg.model
    run = _of_batch if of_batch is None else of_batch
    learning = {p: p.requires_grad for p in model.parameters() if p.is_floating_point()}
    generator = torch.Generator().manual_seed(0)
    found: RowWeights = {node: [] for node in nodes}
    try:
        for parameter in learning:
            parameter.requires_grad_(True)
        with quantizers_off(model), preserve_state(model), torch.enable_grad():
            model.eval()
            for number, batch in enumerate(batches):
                edges = Edges(nodes, batch, number, where)
                for node, weights in run(mg, edges, generator).items():
                    found[node].append(weights)
    finally:
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)
    return {node: _with_mean_one(weights) for node, weights in found.items()}


@contextlib.contextmanager
def quantizers_off(model: nn.Module) -> Iterator[None]:
    """Inside, the quantized operators of a model compute on floats."""
    steps = leaf_operators(model)
    specs = {name: step.spec for name, step in steps.items()}
    try:
        for step in steps.values():
            step.spec = step.spec.keeping()
        yield
    finally:
        for name, step in steps.items():
            step.spec = specs[name]


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


OfBatch = Callable[[MaseGraph, Edges, torch.Generator], dict[fx.Node, Tensor]]
"""Gives, for one batch, the squared gradient of each row of each node's result, (rows,)."""


def _of_batch(mg: MaseGraph, edges: Edges, generator: torch.Generator) -> dict[fx.Node, Tensor]:
    followed = HiddenElements()
    batch = followed.seeded(mg.model, edges.batch)
    with followed.activated():
        run = GraphVisitor(mg.model, edges, followed.running)
        output = run.run(*bind_inputs(mg.model, batch))
        loss = sampled_loss(mg, output, edges, generator)
    places = list(edges.edges.values())
    found = torch.autograd.grad(loss, places, allow_unused=True) if places else ()
    return squared_gradients(mg, edges, dict(zip(edges.edges, found, strict=True)))


def sampled_loss(mg: MaseGraph, output: Any, edges: Edges, generator: torch.Generator) -> Tensor:
    """-log p of labels drawn from the answers in a model's output, padding left out."""
    answers, last = _answers(output), mg.nodes[-1]
    table = answers if answers.dim() > 1 else answers[:, None]
    return _sampled_loss(answers, edges.counted(last, table, "output"), generator)


def squared_gradients(
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
