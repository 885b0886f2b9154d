"""Row weights: sensitivity of a model's answer to each row of its layers' results.

A row is the unit for which a layer computes outputs independently: a token, or a pixel of a
convolution. Methods that fit weights to sums over rows use these weights. A few rows can matter
more than all others: every later token attends to the first one, the attention sink of a decoder.
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
"""For each node and batch float32 (rows,); over all batches of a node the mean is 1."""

Run = Callable[..., dict[fx.Node, Any]]
"""`run_nodes` of a graph on a batch."""

WHERE = "row weights"
SQUARABLE = (2.0**-40, 2.0**50)
"""Range of magnitudes whose sums of squares are safe in float32."""


def row_weights(walk: Walk, nodes: Collection[fx.Node], where: str = WHERE) -> RowWeights:
    """Returns the squared gradient of the log likelihood with respect to each row of node results.

    Its mean is the trace of the Fisher information F of the row: to second order, a small error e
    of the row adds e^T F e / 2 to the KL divergence between the model's answers. Labels are sampled
    from the answers of the float model, with quantizers off; masked tokens do not count. Rows that
    affect no answer, such as padding, have weight 0. A batch needs the memory of one training step
    of the largest part.

    Args:
        walk: walk over the graph; modes, gradients and state are restored.
        nodes: linear layers and convolutions.
        where: setting of the batches, for messages.
    Returns: weights in the order of the layer's flattened input rows.

    Raises:
        ConfigError: if the answer has no gradient, or values are NaN or infinite.
    Source: the Fisher information as Hessian: Martens 2020, arXiv:1412.1193, sections 5 and 9.2.
    """
    model = walk.mg.model
    learning = {p: p.requires_grad for p in model.parameters() if p.is_floating_point()}
    generator = torch.Generator().manual_seed(0)
    weights_by_node: RowWeights = {node: [] for node in nodes}
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
                    weights_by_node[node].append(weights)
    finally:
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)
    return {node: _with_mean_one(weights) for node, weights in weights_by_node.items()}


class Edges:
    """Recorder of layer results while a batch runs, which rejects non-finite inputs."""

    def __init__(
        self, nodes: Collection[fx.Node], batch: Mapping[str, Any], number: int, where: str
    ) -> None:
        self.nodes, self.batch, self.number, self.where = nodes, batch, number, where
        self.edges: dict[fx.Node, Any] = {}
        self.shapes: dict[fx.Node, torch.Size] = {}
        self.rows: dict[fx.Node, Tensor | None] = {}

    def __call__(self, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        """Records the result of a node if it is selected."""
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
        """Returns the rows of a value that count, see `counted_rows`, after checking that they are
        finite.
        """
        rows, measured = counted_rows(source, x, self.batch), Measured(self.where, path)
        check_finite(x.detach(), rows, self.batch, self.number, measured)
        return rows

    def finite(self, node: fx.Node, gradient: Tensor) -> Tensor:
        """Returns the gradient of a layer's result, float32, with 0 for padding rows."""
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
    """Returns the squared gradient of each row of node results on a batch, (rows,).

    The batch runs forward through the parts and then backward from the last part to the first. Each
    part is recomputed; only the values between parts are stored.
    """
    followed = HiddenElements()
    batch = followed.seeded(walk.mg.model, edges.batch) if walk.is_whole else edges.batch
    run = functools.partial(run_nodes, walk.mg, batch=batch, running=followed.running)
    with followed.activated():
        entering, learning = _forward(walk, run)
        return _backward(walk, run, entering, learning, edges, generator)


def _forward(walk: Walk, run: Run) -> tuple[Values, list[set[fx.Node]]]:
    """Returns the values that enter each part by its number, and those with a gradient."""
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
    """Returns the squared gradients of recorded results, from the last part to the first."""
    gradients: dict[fx.Node, Tensor | None] = {}
    back: Mapping[fx.Node, Tensor] | None = None
    for number in reversed(range(len(walk.parts))):
        part, leaves = walk.parts[number], _leaves(entering.get(number), learning[number])
        gradients_of_wanted: Sequence[Tensor | None]
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
            gradients_of_wanted = [None] * len(wanted)
            if wanted and roots:
                gradients_of_wanted = [*torch.autograd.grad(roots, wanted, ends, allow_unused=True)]
        back = {n: g for n, g in zip(sources, gradients_of_wanted, strict=False) if g is not None}
        gradients.update(zip(seen.edges, gradients_of_wanted[len(sources) :], strict=True))
        edges.shapes.update(seen.shapes)
        edges.rows.update(seen.rows)
    return _squared(walk.mg, edges, gradients)


def _leaves(values: Mapping[fx.Node, Any], learned: set[fx.Node]) -> dict[fx.Node, Any]:
    """Returns the values that enter a part, with gradients enabled for some."""
    return {
        node: x.detach().requires_grad_() if node in learned else x for node, x in values.items()
    }


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _loss_of_samples(
    mg: MaseGraph, output: Any, edges: Edges, generator: torch.Generator
) -> Tensor:
    """Returns -log p of labels sampled from a model's output, without padding."""
    answers, last = _answers(output), mg.nodes[-1]
    table = answers if answers.dim() > 1 else answers[:, None]
    return _sampled_loss(answers, edges.counted(last, table, "output"), generator)


def _squared(
    mg: MaseGraph, edges: Edges, gradients: Mapping[fx.Node, Tensor | None]
) -> dict[fx.Node, Tensor]:
    """Returns the squared gradient of each row of recorded results; 0 without a gradient."""
    weights: dict[fx.Node, Tensor] = {}
    for node, shape in edges.shapes.items():
        gradient = gradients.get(node)
        known = torch.zeros(shape) if gradient is None else edges.finite(node, gradient)
        # Channels lie before the dimensions that a convolution slides over.
        weights[node] = known.square().sum(-1 - mg.operator(node).spatial).flatten()
    return weights


def _answers(output: Any) -> Tensor:
    """Returns the first result that has a gradient and is not a scalar such as a loss."""
    for part in tree_tensors(output):
        if part.requires_grad and part.dim() > 0:
            return part
    raise ConfigError(
        "row weights: expected a model output that depends on the weights, got "
        f"{type(output).__name__} without one; use row_weights 'uniform'."
    )


def _sampled_loss(answers: Tensor, counted: Tensor | None, generator: torch.Generator) -> Tensor:
    """Returns -log p of labels sampled from p: classes on the last axis, or a normal number."""
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
    """Divides weights by the mean of all; returns ones if no row has an effect."""
    mean = torch.cat(weights).double().mean()
    return [(w / mean).float() if mean > 0 else torch.ones_like(w) for w in weights]


def moderated(weights: RowWeights) -> RowWeights:
    """Averages each row's weight with 1. Rows that affect no answer stay at 0.

    A few rows have most of the gradient. Sums over them alone carry little information on the
    directions of other rows, which a fit would then distort.
    """
    return {
        node: [torch.where(w > 0, (w + 1) / 2, 0) for w in batches]
        for node, batches in weights.items()
    }


def second_moments(samples: Iterable[tuple[Tensor, Tensor | None]]) -> Tensor:
    """Returns the sum of X diag(weights) X^T over batches, (G, D, D).

    It is accumulated in place and needs the memory of one such matrix.

    Args:
        samples: for each batch, at least one: X^T, (G, rows, D), and weights, (rows,), or None for
            ones.
    Returns: float32, or float64 if squares of the inputs exceed the range of float32.
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
    """Returns the exponent of the power of two that values are divided by, reused if possible."""
    scaled = largest / 2.0 ** (before or 0)
    is_squarable = scaled <= SQUARABLE[1] and (before is not None or scaled >= SQUARABLE[0])
    return (before or 0) if is_squarable else math.frexp(largest)[1]
