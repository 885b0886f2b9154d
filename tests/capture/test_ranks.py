"""Sizes of zero and one: what a graph was recorded for, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.errors import GuardError


class Sized(nn.Module):
    """A layer, and work that may go by sizes."""

    def __init__(self, work: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self, x)


def _viewed(model: Any, x: Tensor) -> Tensor:
    z = model.layer(x).squeeze()
    return z.reshape(z.shape[0], -1)


def _by_rank(model: Any, x: Tensor) -> Tensor:
    z = torch.squeeze(x)
    return model.layer(z.unsqueeze(0) if z.dim() == 1 else z) * z.ndim


def _after_a_layer(model: Any, x: Tensor) -> Tensor:
    z = torch.relu(model.layer(x.squeeze(0)))
    return z * z.shape[0]


def _in_parts(model: Any, x: Tensor) -> Tensor:
    return sum(model.layer(x).squeeze().unbind(), torch.zeros(4))


BY_RANK = [_viewed, _by_rank, _after_a_layer]
OF_ANY_RANK = {
    "layer": lambda model, x: model.layer(x.squeeze()),
    "sum": lambda model, x: model.layer(x).squeeze().sum(0),
    "cat": lambda model, x: torch.cat([model.layer(x).squeeze()] * 2, -1),
    "view": lambda model, x: model.layer(x.squeeze().view(-1, 4)),
    "softmax": lambda model, x: F.softmax(model.layer(x).squeeze(), -1),
}


def same_or_refused(model: nn.Module, captured: nn.Module, x: Tensor) -> bool:
    """Whether the graph takes an input; then it gives what the model gives."""
    try:
        found = captured(x)
    except GuardError:
        return False
    torch.testing.assert_close(found, model(x))
    return True


@pytest.mark.parametrize("batch", [3, 1])
@pytest.mark.parametrize("work", [*BY_RANK, _in_parts])
@pytest.mark.sampled(3)
def test_a_rank_that_python_reads_is_that_of_the_example(
    work: Callable[[Any, Tensor], Tensor], batch: int
) -> None:
    model = Sized(work)
    captured = capture(model, {"x": torch.randn(batch, 4)})
    taken = [same_or_refused(model, captured, torch.randn(b, 4)) for b in (batch, 1, 5)]
    assert taken[0] and taken[1] == (batch == 1)
    assert taken[2] == (batch == 3 and work is not _in_parts)


@pytest.mark.parametrize("work", OF_ANY_RANK.values(), ids=[*OF_ANY_RANK])
def test_a_rank_that_nobody_reads_is_free(work: Callable[[Any, Tensor], Tensor]) -> None:
    model = Sized(work)
    captured = capture(model, {"x": torch.randn(3, 4)})
    assert all(same_or_refused(model, captured, torch.randn(b, 4)) for b in (1, 2, 5))


EMPTY: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "numel": lambda model, x: model.layer(x) if x.numel() else x.new_ones(7),
    "nelement": lambda model, x: x.new_ones(7) if x.nelement() == 0 else model.layer(x),
    "size": lambda model, x: model.layer(x) if x.size(0) != 0 else x.new_ones(7),
    "bool": lambda model, x: model.layer(x) if x.shape[0] else x.new_ones(7),
    "max": lambda model, x: model.layer(x).sum(0) / max(x.shape[0], 1),
    "or": lambda model, x: model.layer(x).sum(0) / (x.shape[0] or 1),
}


@pytest.mark.parametrize("work", EMPTY.values(), ids=[*EMPTY])
@pytest.mark.sampled(3)
def test_a_test_for_emptiness_is_a_guard(work: Callable[[Any, Tensor], Tensor]) -> None:
    model = Sized(work)
    captured = capture(model, {"x": torch.randn(3, 4)})
    taken = [same_or_refused(model, captured, torch.randn(b, 4)) for b in (5, 1, 0)]
    assert taken == [True, True, False]
    with pytest.raises(GuardError, match=r"tested by the model at .*test_ranks\.py:\d+"):
        captured(torch.randn(0, 4))


def test_slices_of_one_row_need_no_guard() -> None:
    model = Sized(lambda model, x: model.layer(x[:1]) + x[-1:])
    captured = capture(model, {"x": torch.randn(3, 4)})
    assert all(same_or_refused(model, captured, torch.randn(b, 4)) for b in (0, 1, 5))
    assert captured.record.guards[1:] == []


def test_a_batch_of_one_that_takes_another_path_is_kept() -> None:
    model = Sized(lambda model, x: model.layer(x) * (3 if x.shape[0] == 1 else 1))
    captured = capture(model, {"x": torch.randn(1, 4)})
    assert [same_or_refused(model, captured, torch.randn(b, 4)) for b in (1, 3)] == [True, False]


def test_each_row_of_one_is_looped_over() -> None:
    model = Sized(lambda model, x: torch.stack([model.layer(row) for row in x]))
    captured = capture(model, {"x": torch.randn(1, 4)})
    assert [same_or_refused(model, captured, torch.randn(b, 4)) for b in (1, 3)] == [True, False]
