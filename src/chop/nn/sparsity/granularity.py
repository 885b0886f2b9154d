"""In which groups weights are masked: one by one, n of m neighbors, or whole columns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from chop.errors import ConfigError, did_you_mean
from chop.nn.sparsity.scores import Score
from chop.nn.sparsity.selection import lowest

Scope = Literal["local", "global"]
UNITS = ("row", "channel", "head")
"""Granularities that take whole units out of the model instead of hiding weights."""
NAMES = ("elementwise", "column", *UNITS, "2:4")


@dataclass(frozen=True)
class Granularity:
    """A granularity by name; of each `group` neighbors along the input `kept` are kept.

    `kept` and `group` are 0 unless the name is of the form "2:4".
    """

    name: str
    kept: int = 0
    group: int = 0

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """From the name in a config.

        Raises:
            ConfigError: there is no such granularity.
        """
        pattern = re.fullmatch(r"(\d+):(\d+)", text)
        if pattern is None:
            if text in NAMES:
                return cls(text)
            raise ConfigError(f"granularity '{text}': {did_you_mean(text, NAMES)}")
        kept, group = map(int, pattern.groups())
        if not 0 < kept < group:
            raise ConfigError(f"granularity '{text}': expected n:m with 0 < n < m, such as 2:4.")
        return cls(text, kept, group)

    @property
    def sparsity(self) -> float:
        """The share that n:m hides."""
        return 1 - self.kept / self.group

    @property
    def is_structured(self) -> bool:
        """True where units leave the model."""
        return self.name in UNITS

    def why_infeasible(self, size: int) -> str | None:
        """Why a weight of `size` inputs cannot be pruned so; None if it can."""
        if self.group and size % self.group:
            return f"its {size} inputs are no multiple of {self.group}"
        return None


@dataclass(frozen=True)
class Scored:
    """The scores of one weight tensor.

    Attributes:
        values: the weight's shape.
        input_axis: the axis along which inputs are summed; of a table, its columns.
        sparsity: the share to hide.
        masked: boolean, the weight's shape: True for weights that are masked already; default,
            none is.
    """

    values: Tensor
    input_axis: int
    sparsity: float
    masked: Tensor | None = None

    @property
    def hidden(self) -> Tensor:
        """Boolean, the weight's shape: True for weights that are masked already."""
        if self.masked is None:
            return torch.zeros_like(self.values, dtype=torch.bool)
        return self.masked

    @property
    def ranked(self) -> Tensor:
        """The scores, with masked weights below all others."""
        return self.values.masked_fill(self.hidden, -math.inf)


def lowest_weights(
    layers: Sequence[Scored],
    score: Score,
    granularity: Granularity,
    scope: Scope,
    of_all: bool = False,
) -> list[Tensor]:
    """Which weights to hide: boolean tensors of the weights' shapes, True for masked ones.

    What is masked already stays masked. A sparsity is the share of the weights (or columns) that
    are not, as in `torch.nn.utils.prune`; n of every m neighbors are kept at most.

    Args:
        layers: with `global` scope all of the same sparsity.
        score: the score.
        granularity: unit of weights that are hidden together.
        scope: group of weights in which a share is counted.
        of_all: the sparsity is the share of all weights, masked ones included.
    """
    if granularity.group:
        marks = [_lowest_of_groups(layer, granularity) for layer in layers]
    elif granularity.name == "column":
        marks = _lowest_columns(layers, score, scope, of_all)
    elif scope == "local" and score.within_rows:
        marks = [_lowest_in_rows(layer) for layer in layers]
    else:
        ranked = [(layer.ranked, int(layer.hidden.sum()), layer.sparsity) for layer in layers]
        marks = _select_lowest(ranked, scope, of_all)
    return [mark | layer.hidden for mark, layer in zip(marks, layers, strict=True)]


def _select_lowest(
    ranked: Sequence[tuple[Tensor, int, float]], scope: Scope, of_all: bool
) -> list[Tensor]:
    """The lowest of each tensor, or of all together.

    Args:
        ranked: scores, how many of them are masked (these come first), and the share to hide.
        scope: group of weights in which a share is counted.
        of_all: see `lowest_weights`.
    """
    if scope == "local":
        return [lowest([x], _due(share, x.numel(), old, of_all))[0] for x, old, share in ranked]
    size, masked = sum(x.numel() for x, _, _ in ranked), sum(old for _, old, _ in ranked)
    return lowest([x for x, _, _ in ranked], _due(ranked[0][2], size, masked, of_all))


def _due(share: float, size: int, masked: int, of_all: bool) -> int:
    """Counts the units of `size` that are to be hidden, those that are `masked` included."""
    return max(round(share * size), masked) if of_all else masked + round(share * (size - masked))


def _lowest_of_groups(layer: Scored, granularity: Granularity) -> Tensor:
    grouped = layer.ranked.movedim(layer.input_axis, -1)
    groups = grouped.reshape(*grouped.shape[:-1], -1, granularity.group).nan_to_num(torch.inf)
    masked = groups.topk(granularity.group - granularity.kept, largest=False).indices
    marks = torch.zeros_like(groups, dtype=torch.bool).scatter(-1, masked, True)
    return marks.view(grouped.shape).movedim(-1, layer.input_axis).contiguous()


def _lowest_columns(
    layers: Sequence[Scored], score: Score, scope: Scope, of_all: bool
) -> list[Tensor]:
    columns: list[tuple[Tensor, int, float]] = []
    for layer in layers:
        is_gone = layer.hidden.movedim(layer.input_axis, 0).flatten(1).all(1)
        values = unit_scores(layer.values, layer.input_axis, score)
        ranked = values.masked_fill(is_gone, -math.inf)
        columns.append((ranked, int(is_gone.sum()), layer.sparsity))
    marks = _select_lowest(columns, scope, of_all)
    shapes = [_along(layer.values, layer.input_axis) for layer in layers]
    return [
        mark.view(shape).expand_as(layer.values).clone()
        for mark, shape, layer in zip(marks, shapes, layers, strict=True)
    ]


def _lowest_in_rows(layer: Scored) -> Tensor:
    """The same share of each output's weights that are not masked, to within one."""
    by_output = layer.ranked.movedim(1 - layer.input_axis, 0)
    rows = by_output.reshape(len(by_output), -1).nan_to_num(torch.inf, neginf=-torch.inf)
    masked = layer.hidden.movedim(1 - layer.input_axis, 0).reshape(rows.shape).sum(1)
    remaining = (rows.shape[1] - masked).cumsum(0)
    total = int(remaining[-1]) if len(rows) else 0
    ends = remaining * round(layer.sparsity * total) // max(total, 1)
    shares = masked + ends.diff(prepend=ends.new_zeros(1))
    most = int(shares.max()) if len(rows) else 0
    lowest_first = rows.topk(most, dim=1, largest=False).indices
    is_hidden = torch.arange(most, device=rows.device) < shares[:, None]
    marks = torch.zeros_like(rows, dtype=torch.bool).scatter(1, lowest_first, is_hidden)
    return marks.view(by_output.shape).movedim(0, 1 - layer.input_axis).contiguous()


def unit_scores(values: Tensor, axis: int, score: Score) -> Tensor:
    """One score per index of `axis`: the mean of its weights' scores to the score's power.

    The mean, so that units of layers of different sizes can be compared.
    """
    return values.movedim(axis, 0).flatten(1).double().pow(score.power).mean(1)


def _along(values: Tensor, axis: int) -> list[int]:
    return [-1 if dim == axis else 1 for dim in range(values.dim())]
