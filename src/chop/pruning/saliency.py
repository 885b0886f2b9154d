"""Saliency of weights from data: loss gradients and input norms."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.captured.padding.hidden import zeroed
from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError
from chop.ir.batches import observe_batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer
from chop.ir.ops import Weight
from chop.ir.rows import Measured, check_finite, check_loss
from chop.nn.sparsity import SCORES, Score, ScoreInputs

WHERE = "prune_transform_pass.batches"
LABELS = "labels"


Users = Mapping[str, Sequence[Layer]]
"""Layers that use a weight, by the path of one of them."""


def gather_score_inputs(
    mg: MaseGraph, users: Users, method: str, seed: int, batches: Iterable[Mapping[str, Any]] | None
) -> dict[str, ScoreInputs]:
    """Collects the saliency and input norms that a score needs, by path.

    The model runs in eval mode; its mode is restored.

    Raises:
        ConfigError: if there is no batch, a batch lacks labels for a loss, or it has NaN or
            infinite values.
    """
    generator = torch.Generator().manual_seed(seed)
    score_inputs = {path: ScoreInputs(generator) for path in users}
    needs = SCORES[method].needs
    if needs in (None, "units"):
        return score_inputs
    given = () if batches is None else batches
    with preserve_state(mg.model):
        mg.model.eval()
        if needs == "gradients":
            _gather_saliency(mg, users, score_inputs, given)
        else:
            _gather_input_norms(mg, users, score_inputs, given)
    return score_inputs


def compute_scores(path: str, weight: Tensor, score: Score, score_inputs: ScoreInputs) -> Tensor:
    """Computes a score per weight, in the weight's shape.

    Raises:
        ConfigError: if a score is NaN, which cannot be ranked.
    """
    values = score.of(weight.detach(), score_inputs)
    if not bool(values.isnan().any()):
        return values
    what = "weights" if not bool(weight.isfinite().all()) else "scores"
    raise ConfigError(
        f"prune_transform_pass: the {what} of '{path}' are not finite, so that its weights cannot "
        "be ranked; exclude it, or give it finite weights."
    )


# --- gradients -----------------------------------------------------------------------------------


def _gather_saliency(
    mg: MaseGraph,
    users: Users,
    score_inputs: Mapping[str, ScoreInputs],
    batches: Iterable[Mapping[str, Any]],
) -> None:
    weights = [layers[0].weight for layers in users.values()]
    with _requiring_gradients(weights):
        given, again = itertools.tee(batches)
        pairs = zip(select_inputs(mg, given, WHERE), again, strict=False)
        for number, (inputs, batch) in enumerate(pairs):
            loss = _loss(mg.model(**inputs), batch if isinstance(batch, Mapping) else inputs)
            check_loss(loss, inputs, number, WHERE)
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            for path, weight, gradient in zip(users, weights, gradients, strict=True):
                _add_saliency(score_inputs[path], weight, gradient)


def _add_saliency(score_inputs: ScoreInputs, weight: Tensor, gradient: Tensor | None) -> None:
    """Adds weight * gradient of one batch; nothing without a gradient."""
    weight = weight.detach()
    added = torch.zeros_like(weight) if gradient is None else weight * gradient
    before = score_inputs.saliency
    score_inputs.saliency = added if before is None else before.to(added.device) + added


@contextmanager
def _requiring_gradients(weights: Sequence[Tensor]) -> Iterator[None]:
    frozen = [weight for weight in weights if not weight.requires_grad]
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _loss(output: Any, batch: Mapping[str, Any]) -> Tensor:
    """Returns the graph's own loss, or the mean cross entropy of its logits and the labels."""
    has_logits = hasattr(output, "logits") and not isinstance(output, Tensor)
    named = output if isinstance(output, Mapping) else vars(output) if has_logits else {}
    loss: Tensor | None = named.get("loss")
    if loss is not None:
        return loss
    logits = named.get("logits", output)
    if LABELS not in batch or not isinstance(logits, Tensor):
        raise ConfigError(
            f"{WHERE}: the method needs a loss. Add 'labels' to the batches, and return logits "
            f"from the model; got {', '.join(batch)} and {type(output).__name__}."
        )
    labels = batch[LABELS].to(logits.device)
    try:
        return F.cross_entropy(logits, labels)
    except (RuntimeError, IndexError, ValueError) as error:
        raise ConfigError(
            f"{WHERE}: the cross entropy of logits {_described(logits)} has no labels "
            f"{_described(labels)}: {str(error).splitlines()[0]}"
        ) from None


def _described(x: Tensor) -> str:
    return f"of shape {tuple(x.shape)} and {str(x.dtype).removeprefix('torch.')}"


# --- inputs --------------------------------------------------------------------------------------


def _gather_input_norms(
    mg: MaseGraph,
    users: Users,
    score_inputs: Mapping[str, ScoreInputs],
    batches: Iterable[Mapping[str, Any]],
) -> None:
    squares: dict[str, Tensor] = {}
    paths: dict[fx.Node, str] = {}
    for path, layers in users.items():
        if not all(layer.row.is_product for layer in layers):
            raise ConfigError(
                f"prune_transform_pass: '{path}' is a lookup table without input "
                "norms; exclude it or choose another method."
            )
        paths.update((node, path) for layer in layers for node in layer.nodes)
    given = list(select_inputs(mg, batches, WHERE))

    def visit(number: int, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        if node not in paths:
            return
        source, batch, path = node.all_input_nodes[0], given[number], paths[node]
        x = zeroed(values[source])
        check_finite(x, None, batch, number, Measured(WHERE, path))
        axis = x.dim() - 1 - mg.operator(node).spatial
        total = x.double().movedim(axis, 0).flatten(1).square().sum(1)
        squares[path] = squares[path] + total if path in squares else total

    observe_batches(mg, given, visit)
    for path, (layer, *_) in users.items():
        inputs = getattr(layer.module, layer.axes.sizes[1])
        norms = squares[path].sqrt().float() if path in squares else torch.zeros(inputs)
        score_inputs[path].input_norms = _broadcast(norms, layer.weight, layer.axes)


def _broadcast(norms: Tensor, weight: Tensor, axes: Weight) -> Tensor:
    """Reshapes one norm per input to broadcast to the weight, including channel groups."""
    shape, norms = [1] * weight.dim(), norms.to(weight.device)
    shape[axes.inputs] = -1
    if axes.is_transposed or len(norms) == weight.shape[1]:
        return norms.view(shape)
    outputs = weight.shape[0] // (len(norms) // weight.shape[1])
    by_group = norms.view(-1, weight.shape[1]).repeat_interleave(outputs, 0)
    return by_group.view(*by_group.shape, *shape[2:])
