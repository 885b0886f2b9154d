"""Search problems that were measured completely, so that the optimum is known.

Each table is computed once, in minutes on one core, and kept on disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from search_problems import Problem, space_of
from torch import Tensor, nn

from chop.base.files import atomic_file
from chop.data import load_dataset
from chop.formats import Integer
from chop.models.plain import MLP
from chop.search import Choice, Config, Constraint, Goal, SearchSpace
from chop.train import Rows, evaluate, fit, read_rows

LAYERS, HIDDEN, WIDTHS = 10, 64, (4, 6, 8)
ACCURACY_PER_BIT = 0.01
BUDGET_BITS = 5.0
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "width": {str(width): width for width in (8, 16, 32, 64)},
    "depth": {str(depth): depth for depth in (1, 2, 3, 4)},
    "activation": {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "identity": nn.Identity},
    "norm": {"none": None, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d},
    "skip": {"no": False, "yes": True},
    "lr": {str(lr): lr for lr in (3e-4, 1e-3, 3e-3, 1e-2)},
}
EPOCHS, BATCH = 4, 128


def _looked_up(
    name: str,
    space: SearchSpace,
    goals: tuple[Goal, ...],
    numbers: Mapping[str, NDArray[np.float64]],
    baseline: tuple[int, ...] | None = None,
) -> Problem:
    """A problem from each goal's value at the place of every choice's option.

    Gains count from a configuration, or where there is none from the table's median.
    """

    def measure(config: Config, report: Any) -> dict[str, float]:
        at = tuple(c.texts.index(config[c.name]) for c in space.choices)
        return {goal.name: float(numbers[goal.name][at]) for goal in goals}

    objective = numbers[goals[0].name]
    within = np.ones(objective.shape, dtype=bool)
    for goal in goals[1:]:
        within &= np.vectorize(goal.excess)(numbers[goal.name]) <= 0
    start = np.median(objective) if baseline is None else objective[baseline]
    return Problem(name, space, goals, measure, (float(start), float(objective[within].max())))


def precision_tables(folder: Path, seed: int = 0) -> list[Problem]:
    """4, 6 or 8 bits for each layer of an MLP on digits: 3^10 configurations.

    Weights and inputs of a layer share the width; fractions are calibrated (least squared error),
    the weights' on themselves and the inputs' on the training rows. Two problems: accuracy minus
    0.01 per average bit of the weights, gains counted from 8 bits everywhere; and accuracy with
    at most 5 bits on average, gains counted from 4 bits everywhere.
    """
    path = folder / f"precision-{LAYERS}-{HIDDEN}-{seed}.npz"
    kept = _kept(path, lambda: _measure_precision(seed))
    accuracy, elements = kept["accuracy"], kept["elements"]
    share = elements / elements.sum()
    choices = tuple(
        Choice(f"layer{i}", {str(w): w for w in WIDTHS}, {str(w): w * share[i] for w in WIDTHS})
        for i in range(LAYERS)
    )
    places = np.indices(accuracy.shape)
    bits = sum(np.array(WIDTHS)[places[i]] * share[i] for i in range(LAYERS))
    numbers = {"accuracy": accuracy, "bits": bits, "score": accuracy - ACCURACY_PER_BIT * bits}
    space = SearchSpace(choices)
    budget = (Goal("accuracy"), Constraint("bits", BUDGET_BITS))
    return [
        _looked_up("precision, score", space, (Goal("score"),), numbers, (2,) * LAYERS),
        _looked_up("precision, budget", space, budget, numbers, (0,) * LAYERS),
    ]


def architecture_table(folder: Path) -> Problem:
    """Accuracy on digits of 1,536 architectures and learning rates after four epochs.

    Options without an order, no costs, strong interactions; gains counted from the median.
    """
    accuracy = _kept(folder / "architectures.npz", _measure_architectures)["accuracy"]
    space = SearchSpace(tuple(Choice(name, options) for name, options in ARCHITECTURES.items()))
    return _looked_up("architectures", space, (Goal("accuracy"),), {"accuracy": accuracy})


def landscape_table(seed: int = 0, count: int = 8, options: int = 4, partners: int = 2) -> Problem:
    """Kauffman's NK landscape: each choice's worth is drawn anew for every combination with two
    others, so that neither order nor additive effects help. Gains counted from the median.

    Source: S. Kauffman and S. Levin, J. Theor. Biol. 128, 1987.
    """
    draw = np.random.default_rng(seed)
    places = np.indices((options,) * count)
    score = np.zeros((options,) * count)
    for i in range(count):
        others = draw.choice([j for j in range(count) if j != i], partners, replace=False)
        score += draw.random((options,) * (partners + 1))[tuple(places[[i, *others]])] / count
    return _looked_up(
        "NK landscape", space_of([options] * count), (Goal("score"),), {"score": score}
    )


def _kept(path: Path, make: Callable[[], dict[str, NDArray]]) -> dict[str, NDArray]:
    if not path.is_file():
        made = make()
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **made)
    with np.load(path) as found:
        return {name: found[name].astype(float) for name in found.files}


def _digits() -> tuple[Rows, Rows]:
    data = load_dataset("digits")
    return read_rows(data["train"]), read_rows(data["test"])


def _measure_precision(seed: int) -> dict[str, NDArray]:
    """Training rows: 997 of the 1,797 digits; the other 800 are measured on."""
    parts = _digits()
    x = torch.cat([part.columns["pixel_values"].flatten(1) for part in parts])
    y = torch.cat([part.labels for part in parts])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:997], order[997:]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MLP((64,), [HIDDEN] * (LAYERS - 1) + [10])
    fit(model, Rows({"x": x[train]}, y[train]), epochs=60, lr=2e-3, seed=seed)
    layers = [layer for layer in model.seq_blocks if isinstance(layer, nn.Linear)]
    with torch.inference_mode():
        options = list(_quantized(layers, x[train]))
        shape = (len(WIDTHS),) * LAYERS
        right = [(z.argmax(1) == y[test]).double().mean() for z in _paths(options, x[test])]
    accuracy = torch.stack(right).view(shape).numpy()
    return {"accuracy": accuracy, "elements": np.array([w.weight.numel() for w in layers])}


def _quantized(layers: Sequence[nn.Linear], x: Tensor) -> Any:
    """Of each layer, one function per width."""
    for layer in layers:
        yield [_with_width(layer, x, width) for width in WIDTHS]
        x = layer(x).relu()


def _with_width(layer: nn.Linear, x: Tensor, width: int) -> Callable[[Tensor], Tensor]:
    waiting = Integer(width, "mse")
    data_in, weight = waiting.fitted(x), waiting.fitted(layer.weight).round(layer.weight)
    return lambda z: F.linear(data_in.round(z), weight, layer.bias)


def _paths(options: Sequence[Sequence[Callable[[Tensor], Tensor]]], x: Tensor) -> Any:
    """The result of every combination, the last layer varying fastest: what layers have in common
    is computed once."""
    for function in options[0]:
        result = function(x)
        if len(options) == 1:
            yield result
        else:
            yield from _paths(options[1:], result.relu())


class _Network(nn.Module):
    """A residual or plain MLP on pictures (B, 1, 8, 8)."""

    def __init__(
        self, width: int, depth: int, activation: Any, norm: Any, skip: bool, **_: Any
    ) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width), norm(width) if norm else nn.Identity(), activation()
            )
            for _ in range(depth)
        )
        self.last = nn.Linear(width, 10)
        self.skip = skip

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.first(pixel_values.flatten(1))
        for block in self.blocks:
            x = x + block(x) if self.skip else block(x)
        return self.last(x)


def _measure_architectures() -> dict[str, NDArray]:
    train, test = _digits()
    found = []
    for values in itertools.product(*(options.values() for options in ARCHITECTURES.values())):
        settings = dict(zip(ARCHITECTURES, values, strict=True))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = _Network(**settings)
        fit(model, train, epochs=EPOCHS, lr=settings["lr"], batch_size=BATCH)
        found.append(evaluate(model, test))
    shape = [len(options) for options in ARCHITECTURES.values()]
    return {"accuracy": np.array(found).reshape(shape)}
