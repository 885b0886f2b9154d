"""Search problems drawn from a seed, whose optimum is known: an instance of its own for each seed.

Shapes: D choices, K options of each; a code (D,) is the place of the option taken of each choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.search import Choice, Config, Constraint, Goal, SearchSpace
from chop.search.result import TrialRecord
from chop.search.samplers.knapsack import best_sum

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
WIDTHS = (2, 3, 4, 5, 6, 7, 8)
NOISE = 0.5
"""Standard deviation of the noise, in those of the values of random configurations."""
DRAWN = 4000
"""Random configurations whose mean stands for that of a space too large to be listed."""


@dataclass(frozen=True)
class Problem:
    """A search problem with a known optimum.

    Attributes:
        name: what it is.
        space: what may be chosen.
        goals: one objective to maximize, and perhaps a budget; or two objectives to minimize.
        measure: configuration -> the goals' values.
        ends: the objective of the baseline, and of the optimum within the budgets; of two
            objectives their worst values.
        truth: configuration -> the objective without noise; None where there is none.
        volume: of the true front, of two objectives.
    """

    name: str
    space: SearchSpace
    goals: tuple[Goal, ...]
    measure: Callable[[Config, Any], Mapping[str, float]]
    ends: tuple[float, float]
    truth: Callable[[Config], float] | None = None
    volume: float | None = None

    def curve(self, tried: Sequence[TrialRecord], length: int) -> list[float]:
        """Percent of the optimum's gain over the baseline after each measured configuration.

        0 before one is better than the baseline and keeps to the budgets. With noise, the true
        gain of the configuration of the best measured value. Of two objectives, the hypervolume
        of what was found in percent of the true front's.
        """
        gains = self._volumes(tried) if self.volume is not None else self._gains(tried)
        gains = gains[:length]
        return gains + [gains[-1] if gains else 0.0] * (length - len(gains))

    def _gains(self, tried: Sequence[TrialRecord]) -> list[float]:
        start, end = self.ends
        best, gain, gains = -np.inf, 0.0, []
        for trial in tried:
            value = trial.values[self.goals[0].name]
            within = all(goal.excess(trial.values[goal.name]) <= 0 for goal in self.goals[1:])
            if within and value > best:
                best = value
                true = value if self.truth is None else self.truth(trial.config)
                gain = 100 * max(0.0, (true - start) / (end - start))
            gains.append(gain)
        return gains

    def _volumes(self, tried: Sequence[TrialRecord]) -> list[float]:
        points = [tuple(trial.values[goal.name] for goal in self.goals) for trial in tried]
        return [
            100 * hypervolume(np.array(points[: count + 1]), self.ends) / self.volume
            for count in range(len(points))
        ]


def hypervolume(points: Array, worst: tuple[float, float]) -> float:
    """The area that points (P, 2), to be minimized, dominate within a corner."""
    area, height = 0.0, worst[1]
    for x, y in points[np.lexsort((points[:, 1], points[:, 0]))]:
        if x < worst[0] and y < height:
            area += (worst[0] - x) * (height - y)
            height = float(y)
    return area


def space_of(counts: Sequence[int], costs: Array | None = None, **more: Any) -> SearchSpace:
    """Choices of so many options each; costs (D, K) or none."""
    choices = []
    for d, count in enumerate(counts):
        cost = None if costs is None else {str(k): float(costs[d, k]) for k in range(count)}
        choices.append(Choice(f"x{d}", {str(k): k for k in range(count)}, cost))
    return SearchSpace(tuple(choices), **more)


def get_code(space: SearchSpace, config: Config) -> Codes:
    """The places of the options taken, (D,)."""
    return np.array([choice.options[config[choice.name]] for choice in space.choices])


def _maximized(
    name: str,
    space: SearchSpace,
    value: Callable[[Codes], float],
    optimum: float,
    start: float | None = None,
) -> Problem:
    """A score to maximize; gains count from the mean of random configurations, or from `start`."""

    def truth(config: Config) -> float:
        return float(value(get_code(space, config)))

    if start is None:
        draw = np.random.default_rng(0)
        counts = [len(choice.texts) for choice in space.choices]
        start = float(
            np.mean([value(code) for code in draw.integers(counts, size=(DRAWN, len(counts)))])
        )
    return Problem(
        name,
        space,
        (Goal("score"),),
        lambda config, report: {"score": truth(config)},
        (start, optimum),
        truth,
    )


def additive(seed: int, count: int = 12, options: int = 5) -> Problem:
    """Every option has an effect of its own, in no order."""
    effects = np.random.default_rng([1, seed]).normal(size=(count, options))
    rows = np.arange(count)
    space = space_of([options] * count)
    return _maximized(
        "additive", space, lambda code: effects[rows, code].sum(), effects.max(1).sum()
    )


def chain(draw: np.random.Generator, count: int, options: int, own: float) -> tuple[Any, float]:
    """A value of single options and of pairs along a random path, and its maximum (Viterbi)."""
    order = draw.permutation(count)
    pairs = draw.normal(size=(count - 1, options, options))
    single = own * draw.normal(size=(count, options))
    best = single[order[0]]
    for step, table in enumerate(pairs):
        best = (best[:, None] + table).max(0) + single[order[step + 1]]

    def value(code: Codes) -> float:
        path = code[order]
        return float(
            single[np.arange(count), code].sum()
            + pairs[np.arange(count - 1), path[:-1], path[1:]].sum()
        )

    return value, float(best.max())


def pairs(seed: int, count: int = 12, options: int = 4) -> Problem:
    """What an option is worth depends on that of two other choices."""
    value, optimum = chain(np.random.default_rng([2, seed]), count, options, own=0.5)
    return _maximized("pairs", space_of([options] * count), value, optimum)


def cliffs(seed: int, count: int = 16, options: int = 5, fragile: int = 5) -> Problem:
    """Widths of layers: small losses and costs, and all is lost where one of a few is too low."""
    draw = np.random.default_rng([3, seed])
    losses = np.exp(draw.normal(size=count))[:, None] * 3.0 ** -np.arange(options)
    worth = -losses - 0.1 * np.arange(options)
    least = np.zeros(count, dtype=int)
    least[draw.choice(count, fragile, replace=False)] = draw.integers(1, options - 1, fragile)
    rows = np.arange(count)
    floor = worth.min(1).sum()

    def value(code: Codes) -> float:
        total = worth[rows, code].sum()
        return total if (code >= least).all() else floor + 0.05 * (total - floor)

    allowed = np.where(np.arange(options) >= least[:, None], worth, -np.inf)
    space = space_of([options] * count, np.tile(0.1 * np.arange(options), (count, 1)))
    return _maximized("cliffs", space, value, allowed.max(1).sum(), worth[:, -1].sum())


def traps(seed: int, blocks: int = 4, width: int = 3, options: int = 3) -> Problem:
    """Blocks whose best combination is the one that every single change leads away from."""
    draw = np.random.default_rng([4, seed])
    count = blocks * width
    members = draw.permutation(count).reshape(blocks, width)
    hidden = draw.integers(options, size=count)
    weights = draw.uniform(0.5, 1.5, blocks)

    def value(code: Codes) -> float:
        right = (code == hidden)[members].sum(1)
        worth = np.where(right == width, 1.0, 0.8 * (width - 1 - right) / (width - 1))
        return float(weights @ worth)

    return _maximized("traps", space_of([options] * count), value, float(weights.sum()))


def conditional(seed: int, layers: int = 6, kinds: int = 4, sizes: int = 4) -> Problem:
    """A depth, and of each layer a kind and a size that count only where there is the layer."""
    draw = np.random.default_rng([5, seed])
    own = 0.6 * draw.normal(size=(layers, kinds, sizes)) - 0.8
    joint = 0.6 * draw.normal(size=(layers - 1, kinds, kinds))

    def value(code: Codes) -> float:
        depth, kind, size = code[0] + 1, code[1 : layers + 1], code[layers + 1 :]
        rows = np.arange(depth)
        return float(
            own[rows, kind[:depth], size[:depth]].sum()
            + joint[rows[:-1], kind[: depth - 1], kind[1:depth]].sum()
        )

    best = own[0].max(1)
    found = [best.max()]
    for depth in range(1, layers):
        best = (best[:, None] + joint[depth - 1]).max(0) + own[depth].max(1)
        found.append(best.max())
    counts = [layers] + [kinds] * layers + [sizes] * layers

    def active(values: Mapping[str, Any]) -> list[str]:
        depth = values["x0"] + 1
        return ["x0", *(f"x{1 + i + part * layers}" for part in (0, 1) for i in range(depth))]

    space = space_of(counts, active=active)
    return _maximized("conditional", space, value, float(max(found)))


def noisy(seed: int, count: int = 10, options: int = 5) -> Problem:
    """Ordered options, pairs, and noise of half a deviation on every value."""
    draw = np.random.default_rng([6, seed])
    value, optimum = chain(draw, count, options, own=1.0)
    space = space_of([options] * count)
    plain = _maximized("noisy", space, value, optimum)
    codes = draw.integers(options, size=(DRAWN, count))
    size = NOISE * float(np.std([value(code) for code in codes]))

    def measure(config: Config, report: Any) -> dict[str, float]:
        code = get_code(space, config)
        noise = np.random.default_rng([7, seed, *code.tolist()]).normal()
        return {"score": float(value(code) + size * noise)}

    return replace(plain, measure=measure)


def _layers(seed: int, count: int) -> tuple[SearchSpace, Array, Array]:
    """Layers with 2 to 8 bits: the space, the bits (D, K) and the losses (D, K) of each option."""
    draw = np.random.default_rng([8, seed, count])
    share = np.exp(0.7 * draw.normal(size=count))
    bits = np.outer(share / share.sum(), WIDTHS)
    decay = draw.uniform(2.5, 4.5, count)[:, None]
    losses = np.exp(1.2 * draw.normal(size=count))[:, None] * decay ** -(np.array(WIDTHS) - 2)
    return space_of([len(WIDTHS)] * count, bits), bits, losses / losses.sum(0)[0]


def budget_44(seed: int, count: int = 44, budget: float = 4.0) -> Problem:
    """Accuracy falls with the sum of the layers' losses; at most 4 bits on average."""
    space, bits, losses = _layers(seed, count)
    rows = np.arange(count)

    def accuracy(code: Codes) -> float:
        return float(np.exp(-4 * losses[rows, code].sum()))

    best = best_sum(-losses, [len(WIDTHS)] * count, [(bits, budget)])
    assert best is not None

    def measure(config: Config, report: Any) -> dict[str, float]:
        code = get_code(space, config)
        return {"accuracy": accuracy(code), "bits": float(bits[rows, code].sum())}

    goals = (Goal("accuracy"), Constraint("bits", budget))
    ends = (accuracy(np.full(count, WIDTHS.index(int(budget)))), accuracy(best))
    return Problem("44 choices, budget", space, goals, measure, ends)


def score_200(seed: int, count: int = 200) -> Problem:
    """Accuracy less 0.1 for each bit on average; gains count from 8 bits everywhere."""
    space, bits, losses = _layers(seed, count)
    rows = np.arange(count)
    worth = -losses - 0.1 * bits
    start = worth[:, -1].sum()
    return _maximized(
        "200 choices", space, lambda code: worth[rows, code].sum(), worth.max(1).sum(), start
    )


def two_goals(seed: int, count: int = 10) -> Problem:
    """Loss and bits, both to be small: the hypervolume between the front and 2 bits' loss."""
    space, bits, losses = _layers(seed, count)
    rows = np.arange(count)

    def measure(config: Config, report: Any) -> dict[str, float]:
        code = get_code(space, config)
        return {"loss": float(losses[rows, code].sum()), "bits": float(bits[rows, code].sum())}

    points = np.array([[0.0, 0.0]])
    for d in range(count):
        points = (points[:, None, :] + np.stack([losses[d], bits[d]], 1)).reshape(-1, 2)
        points = points[np.lexsort((points[:, 1], points[:, 0]))]
        lower = np.minimum.accumulate(np.append(np.inf, points[:-1, 1]))
        points = points[points[:, 1] < lower]
    worst = (float(losses[:, 0].sum()), float(WIDTHS[-1]))
    goals = (Goal("loss", "minimize"), Goal("bits", "minimize"))
    return Problem("two goals", space, goals, measure, worst, volume=hypervolume(points, worst))


PROBLEMS: Mapping[str, Callable[[int], Problem]] = {
    "additive": additive,
    "pairs": pairs,
    "cliffs": cliffs,
    "traps": traps,
    "conditional": conditional,
    "noisy": noisy,
    "44 choices, budget": budget_44,
    "200 choices": score_200,
    "two goals": two_goals,
}
