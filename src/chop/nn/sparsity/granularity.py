"""In which groups weights are masked: one by one, n of m neighbors, or whole columns."""

from __future__ import annotations

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
    """

    values: Tensor
    input_axis: int
    sparsity: float


def lowest_weights(
    layers: Sequence[Scored], score: Score, granularity: Granularity, scope: Scope
) -> list[Tensor]:
    """Which weights to hide: boolean tensors of the weights' shapes, True for masked ones.

    With `global` scope all layers have the same sparsity.
    """
    if granularity.group:
        return [_lowest_of_groups(layer, granularity) for layer in layers]
    if granularity.name == "column":
        return _lowest_columns(layers, score, scope)
    if scope == "local" and score.within_rows:
        return [_lowest_in_rows(layer) for layer in layers]
    return _lowest_of([(layer.values, layer.sparsity) for layer in layers], scope)


def _lowest_of(scored: Sequence[tuple[Tensor, float]], scope: Scope) -> list[Tensor]:
    """Exactly round(sparsity * number) of each tensor, or of all together."""
    if scope == "local":
        return [lowest([x], round(share * x.numel()))[0] for x, share in scored]
    total = sum(x.numel() for x, _ in scored)
    return lowest([x for x, _ in scored], round(scored[0][1] * total))


def _lowest_of_groups(layer: Scored, granularity: Granularity) -> Tensor:
    grouped = layer.values.movedim(layer.input_axis, -1)
    groups = grouped.reshape(*grouped.shape[:-1], -1, granularity.group).nan_to_num(torch.inf)
    masked = groups.topk(granularity.group - granularity.kept, largest=False).indices
    marks = torch.zeros_like(groups, dtype=torch.bool).scatter(-1, masked, True)
    return marks.view(grouped.shape).movedim(-1, layer.input_axis).contiguous()


def _lowest_columns(layers: Sequence[Scored], score: Score, scope: Scope) -> list[Tensor]:
    columns = [(unit_scores(x.values, x.input_axis, score), x.sparsity) for x in layers]
    marks = _lowest_of(columns, scope)
    shapes = [_along(layer.values, layer.input_axis) for layer in layers]
    return [
        mark.view(shape).expand_as(layer.values).clone()
        for mark, shape, layer in zip(marks, shapes, layers, strict=True)
    ]


def _lowest_in_rows(layer: Scored) -> Tensor:
    """The same share of each output's weights, to within one."""
    by_output = layer.values.movedim(1 - layer.input_axis, 0)
    rows = by_output.reshape(len(by_output), -1).nan_to_num(torch.inf)
    count = round(layer.sparsity * rows.numel())
    ends = torch.arange(len(rows) + 1, device=rows.device) * count // max(len(rows), 1)
    shares = ends.diff()
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
