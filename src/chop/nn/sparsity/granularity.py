"""Granularity of pruning: single weights, n of m neighbors, or whole columns."""

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
"""Granularities that remove whole units from the model instead of masking weights."""
NAMES = ("elementwise", "column", *UNITS, "2:4")


@dataclass(frozen=True)
class Granularity:
    """Granularity by name; `per_group` of each `group` neighbors along the input are kept.

    `per_group` and `group` are 0 unless the name has the form "2:4".
    """

    name: str
    per_group: int = 0
    group: int = 0

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """Parses the name in a config.

        Raises:
            ConfigError: if the granularity is unknown.
        """
        pattern = re.fullmatch(r"(\d+):(\d+)", text)
        if pattern is None:
            if text in NAMES:
                return cls(text)
            raise ConfigError(f"granularity '{text}': {did_you_mean(text, NAMES)}")
        per_group, group = map(int, pattern.groups())
        if not 0 < per_group < group:
            raise ConfigError(f"granularity '{text}': expected n:m with 0 < n < m, such as 2:4.")
        return cls(text, per_group, group)

    @property
    def sparsity(self) -> float:
        """The share that n:m masks."""
        return 1 - self.per_group / self.group

    @property
    def is_structured(self) -> bool:
        """True if units leave the model."""
        return self.name in UNITS

    def why_infeasible(self, size: int) -> str | None:
        """Explains why a weight of `size` inputs cannot be pruned this way; None if it can."""
        if self.group and size % self.group:
            return f"its {size} inputs are not a multiple of {self.group}"
        return None


@dataclass(frozen=True)
class Scored:
    """Scores of one weight tensor.

    Attributes:
        values: shape of the weight.
        input_axis: axis of the summed inputs; for an embedding table, its columns.
        sparsity: share to mask.
        masked: boolean, shape of the weight: True for already masked weights. Default: none.
    """

    values: Tensor
    input_axis: int
    sparsity: float
    masked: Tensor | None = None

    @property
    def hidden(self) -> Tensor:
        """Already masked weights as boolean, shape of the weight."""
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
    includes_masked: bool = False,
) -> list[Tensor]:
    """Returns the weights to mask: boolean tensors of the weights' shapes.

    Already masked weights stay masked. A sparsity is the share of the unmasked weights (or
    columns), as in `torch.nn.utils.prune`; at most n of every m neighbors are kept.

    Args:
        layers: with `global` scope all of the same sparsity.
        score: the score.
        granularity: unit of weights that are masked together.
        scope: group of weights that a share refers to.
        includes_masked: the sparsity is the share of all weights, including masked ones.
    """
    if granularity.group:
        marks = [_lowest_of_groups(layer, granularity) for layer in layers]
    elif granularity.name == "column":
        marks = _lowest_columns(layers, score, scope, includes_masked)
    elif scope == "local" and score.within_rows:
        marks = [_lowest_in_rows(layer) for layer in layers]
    else:
        ranked = [(layer.ranked, int(layer.hidden.sum()), layer.sparsity) for layer in layers]
        marks = _select_lowest(ranked, scope, includes_masked)
    return [mark | layer.hidden for mark, layer in zip(marks, layers, strict=True)]


def _select_lowest(
    ranked: Sequence[tuple[Tensor, int, float]], scope: Scope, includes_masked: bool
) -> list[Tensor]:
    """Selects the lowest of each tensor, or of all together.

    Args:
        ranked: scores, number of masked ones (which come first), and the share to mask.
        scope: group of weights that a share refers to.
        includes_masked: see `lowest_weights`.
    """
    if scope == "local":
        return [
            lowest([x], _due(share, x.numel(), old, includes_masked))[0] for x, old, share in ranked
        ]
    size, masked = sum(x.numel() for x, _, _ in ranked), sum(old for _, old, _ in ranked)
    return lowest([x for x, _, _ in ranked], _due(ranked[0][2], size, masked, includes_masked))


def _due(share: float, size: int, masked: int, includes_masked: bool) -> int:
    """Returns the number of units of `size` to mask, including those that are `masked`."""
    return (
        max(round(share * size), masked)
        if includes_masked
        else masked + round(share * (size - masked))
    )


def _lowest_of_groups(layer: Scored, granularity: Granularity) -> Tensor:
    grouped = layer.ranked.movedim(layer.input_axis, -1)
    groups = grouped.reshape(*grouped.shape[:-1], -1, granularity.group).nan_to_num(torch.inf)
    masked = groups.topk(granularity.group - granularity.per_group, largest=False).indices
    marks = torch.zeros_like(groups, dtype=torch.bool).scatter(-1, masked, True)
    return marks.view(grouped.shape).movedim(-1, layer.input_axis).contiguous()


def _lowest_columns(
    layers: Sequence[Scored], score: Score, scope: Scope, includes_masked: bool
) -> list[Tensor]:
    columns: list[tuple[Tensor, int, float]] = []
    for layer in layers:
        is_gone = layer.hidden.movedim(layer.input_axis, 0).flatten(1).all(1)
        values = unit_scores(layer.values, layer.input_axis, score)
        ranked = values.masked_fill(is_gone, -math.inf)
        columns.append((ranked, int(is_gone.sum()), layer.sparsity))
    marks = _select_lowest(columns, scope, includes_masked)
    shapes = [_along(layer.values, layer.input_axis) for layer in layers]
    return [
        mark.view(shape).expand_as(layer.values).clone()
        for mark, shape, layer in zip(marks, shapes, layers, strict=True)
    ]


def _lowest_in_rows(layer: Scored) -> Tensor:
    """Selects the same share of each output's unmasked weights, to within one."""
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
    """Returns one score per index of `axis`: the mean power of its weights' scores.

    A mean allows comparison of units in layers of different sizes.
    """
    return values.movedim(axis, 0).flatten(1).double().pow(score.power).mean(1)


def _along(values: Tensor, axis: int) -> list[int]:
    return [-1 if dim == axis else 1 for dim in range(values.dim())]
