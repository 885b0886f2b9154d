"""Row weights: how much the answer of a model depends on each row of what its layers compute.

A row is what a layer computes its outputs for by itself: a token, or a pixel of a convolution.
Methods that fit weights to sums over rows count each by its weight. Few rows may matter more than
all others: to the first token of a text, the attention sink of a decoder, attends every later one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.capture.preserve_state import preserve_state
from chop.capture.pytree import tree_children
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphVisitor, bind_inputs
from chop.nn.quantized import leaf_operators

RowWeights = dict[fx.Node, list[Tensor]]
"""By node, for each batch float32 (rows,); all batches of a node have a mean of 1."""

MASK = "attention_mask"
"""The input of Hugging Face's models that is 0 where a token is padding."""


def row_weights(
    mg: MaseGraph, nodes: Collection[fx.Node], batches: Iterable[Mapping[str, Any]]
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
    Returns: weights in the order in which the layer's inputs are flattened to rows.
    Source: the Fisher information as Hessian: Martens 2020, arXiv:1412.1193, sections 5 and 9.2.
    """
    model = mg.model
    steps = leaf_operators(model)
    specs = {name: step.spec for name, step in steps.items()}
    learning = {p: p.requires_grad for p in model.parameters() if p.is_floating_point()}
    generator = torch.Generator().manual_seed(0)
    found: RowWeights = {node: [] for node in nodes}
    try:
        for step in steps.values():
            step.spec = step.spec.keeping()
        for parameter in learning:
            parameter.requires_grad_(True)
        with preserve_state(model), torch.enable_grad():
            model.eval()
            for batch in batches:
                for node, weights in _of_batch(mg, nodes, batch, generator).items():
                    found[node].append(weights)
    finally:
        for name, step in steps.items():
            step.spec = specs[name]
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)
    return {node: _with_mean_one(weights) for node, weights in found.items()}


def _of_batch(
    mg: MaseGraph, nodes: Collection[fx.Node], batch: Mapping[str, Any], generator: torch.Generator
) -> dict[fx.Node, Tensor]:
    edges: dict[fx.Node, Any] = {}
    shapes: dict[fx.Node, torch.Size] = {}

    def visit(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        if node in nodes:
            # The edge, and not the tensor, which an in-place activation may change.
            edges[node] = torch.autograd.graph.get_gradient_edge(result)
            shapes[node] = result.shape

    output = GraphVisitor(mg.model, visit).run(*bind_inputs(mg.model, batch))
    loss = _sampled_loss(_answers(output), batch.get(MASK), generator)
    gradients = torch.autograd.grad(loss, list(edges.values()), allow_unused=True)
    weights: dict[fx.Node, Tensor] = {}
    for (node, shape), gradient in zip(shapes.items(), gradients, strict=True):
        known = loss.new_zeros(shape) if gradient is None else gradient.float()
        # Channels lie before the dimensions that a convolution slides over.
        weights[node] = known.square().sum(-1 - mg.operator(node).spatial).flatten()
    return weights


def _answers(output: Any) -> Tensor:
    """The first result that has a gradient and is no scalar, as a loss is."""
    for part in _tensors(output):
        if part.requires_grad and part.dim() > 0:
            return part
    raise ConfigError(
        "row weights: expected an answer of the model that its weights have an effect on, got "
        f"{type(output).__name__} without one; use row_weights 'uniform'."
    )


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    for part in (tree_children(output) or {}).values():
        yield from _tensors(part)


def _sampled_loss(answers: Tensor, mask: Any, generator: torch.Generator) -> Tensor:
    """-log p of labels drawn from p: of classes along the last axis; of single numbers normal."""
    rows = answers.reshape(-1, answers.shape[-1] if answers.dim() > 1 else 1).float()
    if isinstance(mask, Tensor) and mask.shape == answers.shape[:-1]:
        rows = rows[mask.flatten() != 0]
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


def second_moments(columns: Tensor, weights: Tensor | None) -> Tensor:
    """X diag(weights) X^T, float64 (G, D, D).

    Args:
        columns: X^T, (G, rows, D).
        weights: (rows,); None: ones.
    """
    x = columns.float()
    if weights is not None:
        x = x * weights.sqrt()[:, None]
    return (x.mT @ x).double()
