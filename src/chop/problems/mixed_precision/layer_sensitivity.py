"""Sensitivity of each layer to each format, without a search.

Each number refers to one layer in one format while everything else is float.
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
from chop.train.rows import rows_per_batch, take_split

METRICS = ("kl", "mse", "weight_error", "fisher", "hessian", "activation_variance")
"""Sensitivity metrics, see `Sensitivity`."""
OUTPUT_METRICS = ("kl", "mse")
"""Metrics that need a forward pass for each layer and format."""
VECTORS = 16
GRADIENT_ROWS = 256
GRADIENT_BATCH = 32


class Sensitivity:
    """Measurement of a problem's choices one by one. W is a weight, Q(W) the rounded weight.

    `kl`: mean over the rows of KL(float answer

    answer) in nats, NaN if answers are not classes. `mse`: mean squared change of a logit.
    `fisher`: see `chop.problems.mixed_precision.fisher`. These metrics cover all operands of a
    choice. The others cover weights only, and are NaN for a choice of inputs:

    `weight_error`: |Q(W) - W|^2 / |W|^2. `hessian`: 1/2 tr(H)/n |Q(W) - W|^2 for n weights, with
    the trace of the loss's Hessian by Hutchinson's estimator; negative where the loss has negative
    curvature. `activation_variance`: Var(x) |Q(W) - W|^2, with x the inputs of the layer.

    Sources: hessian: Dong et al. 2019 (HAWQ-V2), arXiv:1911.03852, equation 9, there without the
    1/2 of the Taylor series. activation_variance: the criterion of that name in NNCF, which uses
    another noise.

    Args:
        problem: problem with the choices and the rows on which outputs are compared.
        rows: labeled rows for gradients, of which 256 are used.
        metrics: names from `METRICS`.
        vectors: number of random vectors for the trace.
        seed: seed of the random vectors.
    Raises:
        ConfigError: if a metric is unknown, or there are no metrics.
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
        """Returns the metrics of an option, with the task metric if outputs are compared."""
        layers = self.problem.layers
        layers.switch(self.problem.only(name, text))
        metrics: dict[str, float] = {}
        if set(self.metrics) & set(OUTPUT_METRICS):
            metrics = self._measure_outputs()
        metrics |= self._measure_weights(name)
        if "fisher" in self.metrics:
            metrics["fisher"] = self._fisher[name, text]
        layers.switch({})
        names = (self.problem.evaluator.task.metric.name, *self.metrics)
        return {metric: metrics[metric] for metric in names if metric in metrics}

    def _measure_outputs(self) -> dict[str, float]:
        evaluator, reference = self.problem.evaluator, self.problem.reference
        logits = evaluator.logits()
        return {
            **evaluator.scores(logits),
            "kl": kl_divergence(reference, logits) if evaluator.task.is_categorical else math.nan,
            "mse": F.mse_loss(logits.double(), reference.double()).item(),
        }

    def _measure_weights(self, name: str) -> dict[str, float]:
        layer, operands = self.problem.targets[name]
        operator = self.problem.layers.by_name[layer].operator
        weight = own_parameters(operator).get("weight")
        if weight is None or "weight" not in operands:
            return dict.fromkeys(set(METRICS) - set(OUTPUT_METRICS), float("nan"))
        with torch.no_grad():
            exact = operator.effective("weight").double()
            error = operator.quantize("weight", weight).double() - exact
        total = error.square().sum().item()
        metrics = {"weight_error": total / max(exact.square().sum().item(), 1e-30)}
        if "hessian" in self.metrics:
            metrics["hessian"] = self._traces[layer] / weight.numel() * total / 2
        if "activation_variance" in self.metrics:
            metrics["activation_variance"] = self.problem.layers.input_variance(layer) * total
        return metrics

    @cached_property
    def _weights(self) -> dict[str, nn.Parameter]:
        held = {n: x.parameters().get("weight") for n, x in self.problem.layers.by_name.items()}
        return {name: weight for name, weight in held.items() if weight is not None}

    @cached_property
    def _fisher(self) -> LossIncreases:
        return fisher_loss_increases(self.problem, self._batches)

    @cached_property
    def _traces(self) -> dict[str, float]:
        """Traces of each layer's block of the Hessian of the loss on the first batch."""
        weights = list(self._weights.values())
        middle = len(self._batches.batches) // 2
        inputs, labels = self._batches.batches[middle]
        generator = torch.Generator().manual_seed(self.seed)
        traces = dict.fromkeys(self._weights, 0.0)
        with self._differentiable(), sdpa_kernel(SDPBackend.MATH):
            loss, _ = loss_and_answers(self.model(**inputs), labels, self._batches.task)
            check_loss(loss, inputs, middle, "the trace of the Hessian")
            first = torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True)
            # Each layer separately, because a joint vector would add cross terms as noise.
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
        """Yields the float model in evaluation mode with gradients for all weights."""
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
    """Measures the sensitivity of each layer to each format.

    Args:
        mg: graph of a trained classifier with metadata. It is not modified.
        train: labeled rows for scales and gradients.
        rows: labeled rows on which outputs are compared.
        metrics: names of the metrics, see `Sensitivity`.
        on_result: called with each row as it is measured.
        settings: further arguments of `PrecisionProblem`: `formats`, `ranges`, `operators`,
            `operands`, `per` ...
    Returns: a mapping for each choice and option: `layer`, `format`, `bits` (average storage per
        weight), `accuracy` (on `rows`, if `kl` or `mse` is measured), and the metrics.
    Raises:
        ConfigError: if a metric or setting is unknown.
    """
    check_metrics(metrics)
    problem = PrecisionProblem(mg, train, rows, **settings)
    probe = Sensitivity(problem, train, metrics)
    results = []
    for name, text in problem.pairs:
        results.append({**line(problem, name, text), **probe.measure(name, text)})
        if on_result is not None:
            on_result(results[-1])
    return results


def gradient_rows(problem: PrecisionProblem, rows: Any) -> Evaluator:
    """Returns 256 evenly spaced rows in batches for gradients; texts in small ones."""
    task, model = problem.evaluator.task, problem.layers.mg.model
    taken = read_rows(take_split(rows, "train"), task).spread(GRADIENT_ROWS)
    size = rows_per_batch(model, taken, task, GRADIENT_BATCH)
    return Evaluator(model, taken, batch_size=size, task=task)


def line(problem: PrecisionProblem, name: str, text: str) -> dict[str, Any]:
    """Returns the table row of a choice and option without measurements."""
    return {"layer": name, "format": text, "bits": problem.bits(name, text)}


def check_metrics(metrics: Sequence[str]) -> None:
    """Raises ConfigError if a metric is unknown, or there are no metrics."""
    for metric in metrics:
        check_known(metric, METRICS, "metrics: unknown")
    if not metrics:
        raise ConfigError("metrics: expected at least one.")


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(0, 2, like.shape, generator=generator)
    return (2 * drawn - 1).to(like)
