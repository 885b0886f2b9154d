"""Buffers that Python reads and parameters that `forward` writes: checked, put back or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.errors import GuardError
from tests.capture.stateful import Forward, Made, assert_same_calls, draws, within

# --- buffers that Python reads -----------------------------------------------------------------


def enqueues(self: Any, x: Tensor) -> Tensor:
    start = int(self.pointer)
    self.queue[start : start + 2] = x[:2].detach()
    self.pointer[0] = (start + 2) % len(self.queue)
    return x + self.queue.mean(0)


def queue() -> dict[str, Tensor]:
    return {"queue": torch.zeros(6, 4), "pointer": torch.zeros(1, dtype=torch.long)}


def test_a_pointer_that_a_submodule_moves_moves() -> None:
    model = within(Made(enqueues, **queue()))
    with pytest.warns(CaptureWarning, match=r"its buffer 1\.pointer, which its forward writes"):
        captured = capture(model, {"input": draws()})
    assert [report.path for report in captured.auto_leaves] == ["1"]
    assert_same_calls(model, captured, calls=5)
    assert int(model[1].pointer) == 0


def test_a_pointer_that_has_moved_is_refused_by_name() -> None:
    model = Made(enqueues, **queue())
    with pytest.warns(CaptureWarning, match="checked at run time"):
        captured = capture(model, {"x": draws()})
    x = draws()
    assert torch.equal(captured(x), x + x[:2].sum(0) / 6)
    with pytest.raises(GuardError, match=r"with pointer = 0.*state_tensors\.py:\d+, got 2"):
        captured(x)


READINGS: dict[str, Callable[[Any], Any]] = {
    "int": lambda self: int(self.size),
    "float": lambda self: float(self.size),
    "bool": lambda self: 3 if self.size else 1,
    "item": lambda self: self.size.item(),
    "tolist": lambda self: self.size.tolist(),
    "numpy": lambda self: float(self.size.numpy()),
    "index": lambda self: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0][self.size],
    "format": lambda self: len(f"{int(self.size):3d}"),
}


@pytest.mark.parametrize("reading", READINGS)
def test_a_buffer_read_by_python_is_followed_or_checked(reading: str) -> None:
    read = READINGS[reading]
    model = Made(lambda self, x: x * read(self), size=torch.tensor(3))
    captured = capture(model, {"x": draws()})
    assert_same_calls(model, captured)
    with torch.no_grad():
        model.size.zero_() if reading == "bool" else model.size.fill_(5)
    x = draws()
    try:
        found = captured(x)
    except GuardError as refusal:
        assert "size = " in str(refusal) and "test_state_tensors.py:" in str(refusal)
    else:
        assert torch.equal(found, model(x))
        assert reading == "item"


# --- parameters that forward writes ------------------------------------------------------------


def clamps(self: Any, x: Tensor) -> Tensor:
    self.weight.data.clamp_(-1.0, 1.0)
    return x * self.weight


def decays(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.weight.mul_(0.5)
    return x * self.weight


def averages(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.data.mul_(0.9).add_(fast.data, alpha=0.1)
    return self.student(x) - self.teacher(x).detach()


def averages_at_once(self: Any, x: Tensor) -> Tensor:
    slow, fast = list(self.teacher.parameters()), list(self.student.parameters())
    with torch.no_grad():
        torch._foreach_lerp_(slow, fast, 0.1)
    return self.student(x) - self.teacher(x).detach()


def starts_a_scale(self: Any, x: Tensor) -> Tensor:
    if not self.ready:
        with torch.no_grad():
            self.weight.copy_(x.std(0))
        self.ready = True
    return x / self.weight


def starts_by_buffer(self: Any, x: Tensor) -> Tensor:
    if not self.started:
        with torch.no_grad():
            self.weight.copy_(x.std(0))
            self.started.fill_(True)
    return x / self.weight


def assigns(self: Any, x: Tensor) -> Tensor:
    self.weight.data = self.weight.data * 0.5
    return x * self.weight


def pair() -> dict[str, nn.Module]:
    return {"teacher": nn.Linear(4, 4), "student": nn.Linear(4, 4)}


WRITES: dict[str, tuple[Forward, Callable[[], dict[str, Any]], str]] = {
    "clamp": (clamps, dict, "parameters 1.weight"),
    "decay": (decays, dict, "parameters 1.weight"),
    "teacher": (averages, pair, "parameters 1.teacher.bias, 1.teacher.weight"),
    "foreach": (averages_at_once, pair, "parameters 1.teacher.bias, 1.teacher.weight"),
    "flag": (starts_a_scale, lambda: {"ready": False}, r"keeps state .*1\.ready"),
    "buffer": (starts_by_buffer, lambda: {"started": torch.tensor(False)}, r"buffer 1\.started"),
    "assignment": (assigns, dict, r"replaces the data of a tensor"),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.sampled(3)
def test_parameters_that_forward_writes_are_put_back_and_named(kind: str, training: bool) -> None:
    forward, attributes, told = WRITES[kind]
    model = within(Made(forward, **attributes())).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(CaptureWarning, match=told) as caught:
        captured = capture(model, {"input": draws()})
    assert len(caught) == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.data_ptr() == captured.state_dict()[name].data_ptr()
    assert_same_calls(model, captured, training)


def test_parameters_written_in_training_only_are_put_back_and_named() -> None:
    def trains(self: Any, x: Tensor) -> Tensor:
        if self.training:
            self.weight.data.mul_(0.5)
        return x * self.weight

    model = nn.Sequential(Made(trains))
    before = model[0].weight.clone()
    with pytest.warns(CaptureWarning):
        captured = capture(model, {"input": draws()})
    assert torch.equal(model[0].weight, before)
    assert_same_calls(model, captured, training=True)


def test_a_graph_of_the_time_before_stays_differentiable() -> None:
    model = within(Made(clamps))
    x = draws()
    with torch.no_grad():
        model[1].weight.clamp_(-1, 1)
    loss = model(x).square().sum()
    with pytest.warns(CaptureWarning):
        capture(model, {"input": x})
    loss.backward()
    assert model[0].weight.grad is not None


def test_tensors_in_plain_attributes_are_written_as_by_the_model() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.9).add_(x.detach().mean(0))
            return x - self.mean

    model = within(Plain())
    mean = model[1].mean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        captured = capture(model, {"input": draws()})
    assert model[1].mean is mean
    assert torch.equal(mean, torch.zeros(4))
    assert_same_calls(model, captured)


def test_sparse_buffers_are_left_alone() -> None:
    model = Made(lambda self, x: x @ self.sparse, sparse=torch.eye(4).to_sparse())
    before = model.sparse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        captured = capture(model, {"x": draws()})
    assert model.sparse is before
    assert torch.equal(before.to_dense(), torch.eye(4))
    assert captured.sparse is before
