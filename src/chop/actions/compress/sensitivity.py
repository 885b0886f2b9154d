"""Sensitivity of a compressed model's layers: change of the answers if one layer is rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from chop.actions.compress.ptq import ROUNDING
from chop.errors import ConfigError, GuardError
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator, leaf_operators
from chop.nn.quantized.base import quantizers_off
from chop.private.modules import own_parameters
from chop.train import Task, read_rows
from chop.train.evaluator import Evaluator, kl_divergence
from chop.train.rows import Rows

KL, MSE = "kl", "mse"
"""Mean KL(float answer || answer) in nats for classes, mean squared change for other answers, as
in `chop.problems.mixed_precision.layer_sensitivity`.
"""
UNITS = {KL: "mean KL divergence of the answers in nats", MSE: "mean squared change of an answer"}
MOST_ROWS = 32
SHARE = 0.05
"""Maximum number of rows to run, as a share of the evaluated rows."""


@dataclass(frozen=True)
class Sensitivities:
    """Sensitivity by layer, with all other layers in float.

    Attributes:
        metric: `kl` or `mse`.
        rows: number of training rows of the mean.
        by_layer: by path; layers that did not fit the time limit are missing.
    """

    metric: str
    rows: int
    by_layer: Mapping[str, float]


def about_sensitivity(metric: str, rows: int) -> str:
    """Returns the definition of the numbers for a caption.

    >>> about_sensitivity("mse", 1)
    'sensitivity: mean squared change of an answer on 1 training row if only it is rounded'
    """
    return (
        f"sensitivity: {UNITS[metric]} on {rows} training row{'s' * (rows > 1)} if only it is "
        "rounded"
    )


def layer_sensitivities(
    mg: MaseGraph,
    layers: Sequence[str],
    rows: Rows,
    task: Task,
    *,
    evaluated: int,
    exact: Mapping[str, nn.Parameter] | None = None,
) -> Sensitivities | None:
    """Measures the sensitivity of each layer in a share of the time that the evaluation took.

    Args:
        mg: the quantized graph, weights not packed; unchanged afterwards.
        layers: paths, most important first; the first ones are measured if time is short.
        rows: training rows.
        task: tells whether answers are classes.
        evaluated: number of rows that formats were evaluated on.
        exact: float weights by name, if those of the graph are rounded already.
    Returns: None if not even one layer fits the time limit.
    """
    parts, values = _Parts(mg, exact or {}), {}
    layers = [layer for layer in layers if parts.own(layer)]
    runs = int(SHARE * evaluated)  # each of one row
    count = min(MOST_ROWS, max(1, runs // (len(layers) + 1)))
    chosen = layers[: max(0, runs // count - 1)]
    if not chosen:
        return None
    sample = read_rows(rows, task).spread(count)
    evaluator = Evaluator(mg.model, sample, task=task).part(0)
    compare, metric = (kl_divergence, KL) if task.is_categorical else (_mean_square, MSE)
    with parts.all_float():
        try:
            reference = evaluator.logits()
        except (ConfigError, GuardError):
            return None  # no score per row, or the graph does not take batches of one row
        for layer in chosen:
            with parts.rounding(layer):
                values[layer] = compare(reference, evaluator.logits())
    return Sensitivities(metric, len(evaluator), values)


def exact_weights(
    method: Sequence[str], title: str, exact: MaseGraph
) -> Mapping[str, nn.Parameter] | None:
    """Returns float weights for a graph with rounded weights; empty if its weights are float.

    Args:
        method: rounding methods of the run.
        title: method of the candidate in tables.
        exact: the float graph.
    Returns: None if a method changed float weights before another one rounded them.
    """
    if title in ("PTQ", "QAT") or not ROUNDING & set(method):
        return {}
    if not ROUNDING.issuperset(method):
        return None
    return dict(exact.model.named_parameters(remove_duplicate=False))


class _Parts:
    """Quantized operators of a graph that can be switched between rounded and float.

    Args:
        mg: the graph.
        exact: float weights by name, if those of the graph are rounded already.
    """

    def __init__(self, mg: MaseGraph, exact: Mapping[str, nn.Parameter]) -> None:
        self.model = mg.model
        self.operators = {p: m for p, m in mg.model.named_modules() if _is_quantized(m)}
        self.specs = {path: x.spec for path, x in leaf_operators(mg.model).items()}
        self.rounded = {path: dict(own_parameters(x)) for path, x in self.operators.items()}
        self.exact = {
            path: {name: exact.get(f"{path}.{name}", x) for name, x in held.items()}
            for path, held in self.rounded.items()
        }

    @contextmanager
    def all_float(self) -> Iterator[None]:
        """Switches all operators to float, with float weights."""
        with quantizers_off(self.model):
            try:
                self._give(self.exact)
                yield
            finally:
                self._give(self.rounded)

    def own(self, layer: str) -> list[str]:
        """Returns the paths of a layer's operators; empty for a weight without a module."""
        holder = next((p for p in (layer, layer.rpartition(".")[0]) if p in self.operators), None)
        return [p for p in self.operators if p == holder or p.startswith(f"{holder}.")]

    @contextmanager
    def rounding(self, layer: str) -> Iterator[None]:
        """Switches one layer to rounded; others that share its weight use the rounded weight."""
        own = self.own(layer)
        specs = {path: self.specs[path] for path in own if path in self.specs}
        weights = {id(x) for path in own for x in self.rounded[path].values() if x is not None}
        for path in self.specs.keys() - set(own):
            if id(self.rounded[path].get("weight")) in weights:
                specs[path] = self.specs[path].keeping("weight")
        changed = {*own, *specs}
        floats = {path: self.operators[path].spec for path in specs}
        try:
            self._give({path: self.rounded[path] for path in changed})
            self._set(specs)
            yield
        finally:
            self._set(floats)
            self._give({path: self.exact[path] for path in changed})

    def _set(self, specs: Mapping[str, QuantSpec]) -> None:
        for path, spec in specs.items():
            self.operators[path].spec = spec

    def _give(self, parameters: Mapping[str, Mapping[str, nn.Parameter | None]]) -> None:
        for path, held in parameters.items():
            own_parameters(self.operators[path]).update(held)


def _is_quantized(module: nn.Module) -> bool:
    return isinstance(module, QuantizedOperator)


def _mean_square(reference: Tensor, other: Tensor) -> float:
    return F.mse_loss(other.double(), reference.double()).item()
