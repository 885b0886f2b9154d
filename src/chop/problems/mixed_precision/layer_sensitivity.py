"""Sensitivity per layer to each format; needs no search.

Each number is about one layer in one format while everything else is float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from chop.errors import ConfigError, check_known
from chop.ir.graph import MaseGraph
from chop.ir.rows import check_loss
from chop.private.modules import own_parameters
from chop.problems.mixed_precision.fisher import LossIncreases, fisher_loss_increases
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.train import read_rows
from chop.train.evaluator import Evaluator, kl_divergence
from chop.train.feed import eval_mode
from chop.train.model_io import loss_and_answers
from chop.train.rows import take_split

METRICS = ("kl", "mse", "weight_error", "fisher", "hessian", "activation_variance")
"""See `Sensitivity`."""
OF_OUTPUTS = ("kl", "mse")
"""Metrics that take a run of the model for each layer and format; the others take none."""
VECTORS = 16
GRADIENT_ROWS = 256
GRADIENT_BATCH = 32


class Sensitivity:
    """Measures a problem's choices one by one. W is a layer's weight, Q(W) the rounded one.

    `kl`: mean over the rows of KL(float answer || answer), in nats, NaN where answers are no
    classes. `mse`: mean squared change of a logit. `fisher`: see
    `chop.problems.mixed_precision.fisher`. These see whatever the choice rounds; the others see
    weights only, and are NaN for a choice of inputs:

    `weight_error`: |Q(W) - W|^2 / |W|^2. `hessian`: 1/2 tr(H)/n |Q(W) - W|^2 for n weights, the
    trace of the loss's Hessian by Hutchinson's estimator; negative where the loss curves down.
    `activation_variance`: Var(x) |Q(W) - W|^2, x the layer's inputs.

    Sources: hessian: Dong et al. 2019 (HAWQ-V2), arXiv:1911.03852, equation 9, there without the
    1/2 of the Taylor series. activation_variance: the criterion of that name in NNCF, for a noise
    of its own.

    Args:
        problem: what can be chosen, and the rows that outputs are compared on.
        rows: labeled rows that gradients are taken on; 256 of them are.
        metrics: names out of `METRICS`.
        vectors: random vectors of the trace.
        seed: of these.
    Raises:
        ConfigError: an unknown metric, or none.
    """

    def __init__(
        self,
        problem: PrecisionProblem,
        rows: Any,
        metrics: Sequence[str] = METRICS,
        *,
        vectors: int = VECTORS,
        seed: int = 0,
    ) -> None:
        check_metrics(metrics)
        self.problem, self.metrics = problem, tuple(metrics)
        self.vectors, self.seed = vectors, seed
        self.model = problem.layers.mg.model
        self._batches = gradient_rows(problem, rows)

    def measure(self, name: str, text: str) -> dict[str, float]:
        """The metrics of one choice and option, and the task's, where outputs are compared."""
        layers = self.problem.layers
        layers.switch(self.problem.only(name, text))
        found: dict[str, float] = {}
        if set(self.metrics) & set(OF_OUTPUTS):
            found = self._of_outputs()
        found |= self._of_weights(name)
        if "fisher" in self.metrics:
            found["fisher"] = self._fisher[name, text]
        layers.switch({})
        kept = (self.problem.evaluator.task.metric.name, *self.metrics)
        return {metric: found[metric] for metric in kept if metric in found}

    def _of_outputs(self) -> dict[str, float]:
        evaluator, reference = self.problem.evaluator, self.problem.reference
        logits = evaluator.logits()
        return {
            **evaluator.scores(logits),
            "kl": kl_divergence(reference, logits) if evaluator.task.is_categorical else math.nan,
            "mse": F.mse_loss(logits.double(), reference.double()).item(),
        }

    def _of_weights(self, name: str) -> dict[str, float]:
        layer, operands = self.problem.targets[name]
        operator = self.problem.layers.by_name[layer].operator
        weight = own_parameters(operator).get("weight")
        if weight is None or "weight" not in operands:
            return dict.fromkeys(set(METRICS) - set(OF_OUTPUTS), float("nan"))
        with torch.no_grad():
            exact = operator.effective("weight").double()
            error = operator.quantize("weight", weight).double() - exact
        total = error.square().sum().item()
        found = {"weight_error": total / max(exact.square().sum().item(), 1e-30)}
        if "hessian" in self.metrics:
            found["hessian"] = self._traces[layer] / weight.numel() * total / 2
        if "activation_variance" in self.metrics:
            found["activation_variance"] = self.problem.layers.input_variance(layer) * total
        return found

    @cached_property
    def _weights(self) -> dict[str, nn.Parameter]:
        held = {n: x.parameters().get("weight") for n, x in self.problem.layers.by_name.items()}
        return {name: weight for name, weight in held.items() if weight is not None}

    @cached_property
    def _fisher(self) -> LossIncreases:
        return fisher_loss_increases(self.problem, self._batches)

    @cached_property
    def _traces(self) -> dict[str, float]:
        """The trace of each layer's block of the Hessian of the loss of the first batch."""
        weights = list(self._weights.values())
        middle = len(self._batches.batches) // 2
        inputs, labels = self._batches.batches[middle]
        generator = torch.Generator().manual_seed(self.seed)
        traces = dict.fromkeys(self._weights, 0.0)
        with self._differentiable(), sdpa_kernel(SDPBackend.MATH):
            loss, _ = loss_and_answers(self.model(**inputs), labels, self._batches.task)
            check_loss(loss, inputs, middle, "the trace of the Hessian")
            first = torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True)
            # Layer by layer: a vector over all of them would add their cross terms as noise.
            for (name, x), g in zip(self._weights.items(), first, strict=True):
                for _ in range(self.vectors if g.requires_grad else 0):
                    v = _signs(x, generator)
                    (hv,) = torch.autograd.grad(
                        (g * v).sum(), x, retain_graph=True, materialize_grads=True
                    )
                    traces[name] += (v * hv).sum().item() / self.vectors
        return traces

    @contextmanager
    def _differentiable(self) -> Iterator[None]:
        """The float model in evaluation mode, with gradients of frozen weights too."""
        frozen = [x for x in self._weights.values() if not x.requires_grad]
        self.problem.layers.switch({})
        try:
            for x in frozen:
                x.requires_grad_(True)
            with torch.enable_grad(), eval_mode(self.model):
                yield
        finally:
            for x in frozen:
                x.requires_grad_(False)


def sensitivity(
    mg: MaseGraph,
    train: Any,
    rows: Any,
    *,
    metrics: Sequence[str] = METRICS,
    on_result: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Sensitivity per layer to each format, as a table.

    Args:
        mg: the graph of a trained classifier, with metadata; it stays as it is.
        train: labeled rows that scales are derived from and gradients are taken on.
        rows: labeled rows that outputs are compared on.
        metrics: what to measure, see `Sensitivity`.
        on_result: called with each line as it is measured.
        settings: further ones of `PrecisionProblem`: `formats`, `ranges`, `operators`,
            `operands`, `per` ...
    Returns: a mapping for each choice and option: `layer`, `format`, `bits` (average storage per
        weight), `accuracy` (of `rows`, where `kl` or `mse` is measured), and the metrics.
    Raises:
        ConfigError: an unknown metric or setting.
    """
    check_metrics(metrics)
    problem = PrecisionProblem(mg, train, rows, **settings)
    probe = Sensitivity(problem, train, metrics)
    found = []
    for name, text in problem.pairs:
        found.append({**line(problem, name, text), **probe.measure(name, text)})
        if on_result is not None:
            on_result(found[-1])
    return found


def gradient_rows(problem: PrecisionProblem, rows: Any) -> Evaluator:
    """256 of the rows, evenly spaced, in the batches that gradients are taken of."""
    task = problem.evaluator.task
    taken = read_rows(take_split(rows, "train"), task).spread(GRADIENT_ROWS)
    return Evaluator(problem.layers.mg.model, taken, batch_size=GRADIENT_BATCH, task=task)


def line(problem: PrecisionProblem, name: str, text: str) -> dict[str, Any]:
    """What is known of a choice and option before anything is measured."""
    return {"layer": name, "format": text, "bits": problem.bits(name, text)}


def check_metrics(metrics: Sequence[str]) -> None:
    """Raises ConfigError where a metric is unknown, or there is none."""
    for metric in metrics:
        check_known(metric, METRICS, "metrics: unknown")
    if not metrics:
        raise ConfigError("metrics: expected at least one.")


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(0, 2, like.shape, generator=generator)
    return (2 * drawn - 1).to(like)
