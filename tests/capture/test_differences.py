"""What a recording sees otherwise than a call does becomes a leaf, or is an error with its line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError

STATE = {"calls": 0}


class Odd(nn.Module):
    """Does something else while it is recorded."""

    calls = 0

    def __init__(self, work: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self, x)


class Around(nn.Module):
    """A model around one part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(4, 4), part, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.part(self.first(x))))


def functional_call(model: Any, x: Tensor) -> Tensor:
    return torch.func.functional_call(model.layer, {"weight": model.other.weight}, (x,))


def swapped(model: Any, x: Tensor) -> Tensor:
    kept = model.layer.weight
    model.layer.weight = nn.Parameter(2 * kept.detach())
    try:
        return model.layer(x)
    finally:
        model.layer.weight = kept


def by_gradient(model: Any, x: Tensor) -> Tensor:
    y = model.layer(x)
    return y * 2 if y.requires_grad else y - 1


def by_grad_mode(model: Any, x: Tensor) -> Tensor:
    y = model.layer(x)
    return y * 2 if torch.is_grad_enabled() else y - 1


def by_history(model: Any, x: Tensor) -> Tensor:
    y = model.layer(x)
    return y * 2 if y.grad_fn is not None else y - 1


def more_if_fake(model: Any, x: Tensor) -> Tensor:
    y = model.layer(x)
    return y * 2 if isinstance(y, FakeTensor) else y


def less_if_fake(model: Any, x: Tensor) -> Tensor:
    y = model.layer(x)
    return y * 2 if type(y) is Tensor else y


def by_inner_gradient(model: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(model.layer(x).square().sum(), x)[0]


def global_dict(model: Any, x: Tensor) -> Tensor:
    STATE["calls"] += 1
    return model.layer(x) * STATE["calls"]


def class_count(model: Any, x: Tensor) -> Tensor:
    Odd.calls += 1
    return model.layer(x) + model.calls


def late_count(model: Any, x: Tensor) -> Tensor:
    Odd.calls += 1
    return model.layer(x) + (10 if Odd.calls > 100 else 0)


BY_PATH = [functional_call, swapped, by_gradient, by_grad_mode, by_history]
BY_PATH += [more_if_fake, by_inner_gradient, less_if_fake]


def function_count(model: Any, x: Tensor) -> Tensor:
    function_count.calls += 1
    return model.layer(x) * function_count.calls


function_count.calls = 0  # type: ignore[attr-defined]
BY_STATE = [global_dict, class_count, late_count, function_count]


def _state() -> list[int]:
    return [STATE["calls"], Odd.calls, function_count.calls]


def reset() -> None:
    STATE["calls"] = Odd.calls = function_count.calls = 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("work", [*BY_PATH, *BY_STATE], ids=lambda work: work.__name__)
@pytest.mark.sampled(3)
def test_a_model_that_is_not_its_recording_is_refused_with_the_line(
    work: Callable[[Any, Tensor], Tensor],
) -> None:
    reset()
    with pytest.raises(CaptureError, match=rf"{re.escape(__file__)}:\d+\b"):
        capture(Odd(work), {"x": torch.randn(3, 4)})
    assert _state() == [0, 0, 0]


@pytest.mark.parametrize("work", [*BY_PATH, *BY_STATE], ids=lambda work: work.__name__)
@pytest.mark.sampled(1)
def test_a_part_that_is_not_its_recording_is_one_node(
    work: Callable[[Any, Tensor], Tensor],
) -> None:
    reset()
    torch.manual_seed(0)
    model = Around(Odd(work))
    with pytest.warns(CaptureWarning, match="part .* became a leaf"):
        captured = capture(model, {"x": torch.randn(3, 4)})
    assert [report.path for report in captured.record.auto_leaves] == ["part"]
    assert _state() == [0, 0, 0]
    for mode in (torch.no_grad, torch.enable_grad):
        for batch in (3, 5):
            x = torch.randn(batch, 4)
            results = []
            for each in (model, captured):
                reset()
                with mode():
                    results.append(each(x))
            torch.testing.assert_close(results[1], results[0])


def test_a_model_that_differs_from_itself_is_refused() -> None:
    numbers = itertools.count(1)

    def by_number(model: Any, x: Tensor) -> Tensor:
        return model.layer(x) + next(numbers)

    with pytest.raises(CaptureError, match=r"outputs differ .*test_differences\.py:\d+"):
        capture(Odd(by_number), {"x": torch.randn(3, 4)})
    with pytest.raises(CaptureError, match="outputs differ"):
        capture(Odd(more_if_fake), {"x": torch.randn(3, 4)}, strict=True)
