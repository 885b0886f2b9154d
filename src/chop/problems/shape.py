"""Shape search: sizes of a pruned decoder within a budget of parameters."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor

from chop.errors import ConfigError
from chop.pruning.decoder.axes import HIDDEN, SIZES, WIDTH
from chop.pruning.decoder.prune import COMPARED, PrunedDecoder, RankedDecoder
from chop.search.objective import Direction, NotANumberError, Report
from chop.search.space import Choice, Config, SearchSpace
from chop.train import Rows, Task
from chop.train.evaluator import Evaluator, kl_divergence

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PARAMETERS = "parameters"
SCORES = ("kl", "loss")
EIGHTHS = (4, 5, 6, 7, 8)
"""Default sizes, in eighths of the model's."""
WIDTHS = (WIDTH, HIDDEN)
"""Fields with defaults in multiples of 8."""
Texts = Sequence[Mapping[str, Tensor]]


def directions(metric: str, is_higher_better: bool) -> dict[str, Direction]:
    """Returns the direction of each number that a trial measures, by name.

    Args:
        metric: name of the task's metric.
        is_higher_better: True if the metric is to be maximized.
    """
    scores: dict[str, Direction] = dict.fromkeys((*SCORES, PARAMETERS), "minimize")
    return {**scores, metric: "maximize" if is_higher_better else "minimize"}


class ShapeProblem:
    """Shapes of a decoder within a budget of parameters, pruned and measured without training.

    A shape is one size for each field of the configuration. All parts of the model are ranked once.

    Args:
        model: decoder of transformers. It is not changed.
        texts: calibration texts that rank the parts, see `RankedDecoder`.
        rows: labeled rows that measure shapes.
        given: sizes to choose from by field. The default for other fields is eighths of the model's
            size, from half of it on, and the largest size that meets the budget alone (for widths
            in multiples of 8, which matrix units prefer).
        budget: largest number of parameters.
        least: smallest number of parameters.
        task: task of the model.

    Raises:
        ConfigError: no shape is within the budget, or the model cannot be pruned.

    Attributes:
        space: one choice for each field; shapes outside of the budget are infeasible.
        omitted: fields without a choice, because the model cannot be pruned in them -> reason.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        texts: Texts,
        rows: Rows,
        given: Mapping[str, Sequence[int]],
        *,
        budget: int,
        least: int,
        task: Task,
    ) -> None:
        if budget >= model.num_parameters():
            raise ConfigError(
                f"max_params: the model has {model.num_parameters():,} parameters, expected a "
                f"budget below, got {budget:,}."
            )
        self.budget, self.least = budget, least
        sizes, self.omitted = _choose_sizes(model, texts, given)
        self.ranked = RankedDecoder(model, texts, {name: x[0] for name, x in sizes.items()})
        for field in sizes.keys() - given.keys():
            sizes[field] = sorted({*sizes[field], *self._largest(field, _all_sizes(model, field))})
        choices = [Choice(field, {str(n): n for n in values}) for field, values in sizes.items()]
        self._why_not = cache(self._find_reason)
        self.space = SearchSpace(tuple(choices), self._infeasible)
        self._evaluator = Evaluator(model, rows, task=task)
        self._reference = self._evaluator.logits()
        self._last: tuple[dict[str, int], PrunedDecoder] | None = None
        self._check_budget()

    def _check_budget(self) -> None:
        shapes = [self.space.values(config) for config in self.space.grid()]
        if all(map(self._infeasible, shapes)):
            nearest = min(shapes, key=self._distance)
            sizes = ", ".join(f"{field} {size}" for field, size in nearest.items())
            reason = str(self._infeasible(nearest)).rstrip(".")
            raise ConfigError(
                f"no shape is within the budget. The nearest has {sizes}: {reason}. Give more "
                "sizes, another budget, or a smaller least_share."
            )

    def _distance(self, shape: Mapping[str, int]) -> int:
        """Returns the number of parameters to the budget's range; at most 0 within it."""
        count = self.ranked.count_parameters(shape)
        return max(count - self.budget, self.least - count)

    def _infeasible(self, values: Mapping[str, Any]) -> str | None:
        return self._why_not(tuple(values.items()))

    def _find_reason(self, shape: tuple[tuple[str, int], ...]) -> str | None:
        """Returns the reason that excludes a shape, or None."""
        count = self.ranked.count_parameters(dict(shape))
        if not self.least <= count <= self.budget:
            return f"{count:,} parameters, expected {self.least:,} to {self.budget:,}"
        return self._why_refused(dict(shape))

    def _why_refused(self, shape: Mapping[str, int]) -> str | None:
        try:
            self.ranked.check_sizes(shape)
        except ConfigError as error:
            return str(error)
        return None

    def prune(self, shape: Mapping[str, int]) -> PrunedDecoder:
        """Returns the decoder of a shape; the latest one is cached."""
        if self._last is None or self._last[0] != shape:
            self._last = dict(shape), self.ranked.prune(shape)
        return self._last[1]

    def measure(self, config: Config, report: Report) -> dict[str, float]:
        """Measures a shape.

        Returns: the task's metric by its name (`perplexity`), `loss`, `kl` (mean divergence from
            the original's answers in nats) and `parameters`.
        Raises:
            NotANumberError: the pruned model computes another function than expected.
        """
        try:
            pruned = self.prune(self.space.values(config))
        except ConfigError as error:  # specific to this shape: only its trial fails
            raise NotANumberError(str(error)) from error
        logits = self._evaluator.of(pruned.model).logits()
        divergence = kl_divergence(self._reference, logits)
        parameters = float(pruned.parameters[1])
        return {**self._evaluator.scores(logits), "kl": divergence, PARAMETERS: parameters}

    def single_sizes(self) -> dict[str, dict[str, int]]:
        """Returns the largest shape within the budget that reduces only one size, by field.

        A field is missing if no choice of it alone meets the budget.
        """
        options = {each.name: [*each.options.values()] for each in self.space.choices}
        largest = {field: self._largest(field, values) for field, values in options.items()}
        return {field: {field: size} for field, sizes in largest.items() for size in sizes}

    def starts(self) -> list[Config]:
        """Returns the configurations of `single_sizes` that the space has, to measure first."""
        whole = self.ranked.counts
        shapes = [{**whole, **shape} for shape in self.single_sizes().values()]
        configs = [{field: str(size) for field, size in shape.items()} for shape in shapes]
        options = {each.name: each.options for each in self.space.choices}
        return [
            config
            for config in configs
            if all(text in options[field] for field, text in config.items())
            and self.space.is_feasible(config)
        ]

    def _largest(self, field: str, sizes: Sequence[int]) -> list[int]:
        """Returns the largest of ascending sizes that alone meets the budget, or none."""

        def count(size: int) -> int:
            return self.ranked.count_parameters({field: size})

        small = sizes[: bisect.bisect_right(sizes, self.budget, key=count)]
        accepted = (n for n in reversed(small) if self._why_refused({field: n}) is None)
        return [*itertools.islice(accepted, 1)]


def _choose_sizes(
    model: PreTrainedModel, texts: Texts, given: Mapping[str, Sequence[int]]
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Returns ascending sizes by field, and the reason by omitted field, see `ShapeProblem`."""
    few = [{name: x[:COMPARED] for name, x in texts[0].items()}]
    sizes: dict[str, list[int]] = {}
    omitted: dict[str, str] = {}
    for field in SIZES:
        present = getattr(model.config, field, None)
        usual = [max(1, round(present * n / 8)) for n in EIGHTHS] if present else [1]
        values = sorted({*given.get(field, usual)})
        if present and values[-1] > present:
            raise ConfigError(
                f"{field}: expected numbers from 1 to {present}, the model's, got {values[-1]}."
            )
        if values[0] == present:
            continue
        try:
            RankedDecoder(model, few, {field: values[0]}).prune({field: values[0]})
        except ConfigError as error:
            if field in given:
                raise
            omitted[field] = str(error)
        else:
            sizes[field] = values
    if not sizes:
        raise ConfigError(next(iter(omitted.values()), "all given sizes are the model's."))
    return sizes, omitted


def _all_sizes(model: PreTrainedModel, field: str) -> range:
    """Returns all sizes below the model's, for widths in multiples of 8."""
    present = getattr(model.config, field)
    step = 8 if field in WIDTHS and present % 8 == 0 else 1
    return range(step, present, step)
