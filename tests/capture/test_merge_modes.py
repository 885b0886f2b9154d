"""What depends on the mode is the model's in both modes, or it is said that it is not."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.module import CapturedModule
from chop.captured.record import CaptureWarning
from chop.captured.runtime import ByMode
from chop.errors import CaptureError


class SliceByMode(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x[:, : (2 if self.training else 4)] * 2, 0.5, self.training)


class OtherOperand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x + 1, x * 2
        return torch.addcmul(a, b, b) if self.training else torch.addcmul(a, b, a)


class OtherNumber(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x + 1, 1 if self.training else 2


class OtherKey(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"a" if self.training else "b": x + 1}


class OtherRank(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        return y.reshape(-1, 2, 4) if self.training else y.reshape(-1, 8)


class OtherKeyword(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        return y.sum(1, keepdim=True) if self.training else y.sum(1)


class OtherLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        return torch.cat([x, y, x]) if self.training else torch.cat([x, y])


class OtherType(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.full((2,), 1.0 if self.training else 1) + x[0, :2].long()


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(self.first(x))


def assert_same_call(model: nn.Module, captured: CapturedModule, x: Tensor) -> None:
    torch.manual_seed(5)
    expected = model(x)
    torch.manual_seed(5)
    result = captured(x)
    assert type(result) is type(expected)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def assert_same_in_both_modes(model: nn.Module, captured: CapturedModule) -> None:
    for training in (False, True, False):
        model.train(training)
        captured.train(training)
        for batch in (3, 5):
            assert_same_call(model, captured, torch.randn(batch, 8))


@pytest.mark.parametrize("cls", [SliceByMode, OtherNumber, OtherType])
def test_a_constant_that_depends_on_the_mode_switches(cls: type[nn.Module]) -> None:
    model = cls()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        captured = capture(model, {"x": torch.randn(3, 8)}, strict=True)
    assert sum(isinstance(module, ByMode) for module in captured.modules()) == 1
    assert_same_in_both_modes(model, captured)


_STRUCTURES = [OtherOperand, OtherRank, OtherKeyword, OtherLength]


@pytest.mark.parametrize("cls", _STRUCTURES)
@pytest.mark.sampled(3)
def test_a_submodule_with_other_calls_in_train_is_one_node(cls: type[nn.Module]) -> None:
    model = Around(cls())
    captured = capture(model, {"x": torch.randn(3, 8)})
    assert "inner" in [node.target for node in captured.graph.nodes]
    assert_same_in_both_modes(model, captured)


@pytest.mark.parametrize("cls", [*_STRUCTURES, OtherKey])
@pytest.mark.sampled(3)
def test_a_model_with_other_calls_in_train_has_those_of_both_modes(cls: type[nn.Module]) -> None:
    model = cls()
    captured = capture(model.eval(), {"x": torch.randn(3, 8)}, strict=True)
    assert captured.eval_only is None
    assert_same_in_both_modes(model, captured)


class Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + x.detach().mean(0)
        self.calls = self.calls + 1
        return x - self.mean


class AverageInPlace(Average):
    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        self.calls += 1
        return x - self.mean


class Moves(Average):
    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean.to(x.device).to(x.dtype)
        return x - self.mean


class RebindsBelow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Average()

    def forward(self, x: Tensor) -> Tensor:
        self.inner.mean = self.inner.mean + x.detach().mean(0)
        return x - self.inner.mean


def assert_same_state_after_calls(model: nn.Module, captured: CapturedModule) -> None:
    own = copy.deepcopy(model)
    start = {name: value.clone() for name, value in own.state_dict().items()}
    for training in (True, False):
        own.train(training)
        captured.train(training)
        for batch in (3, 5):
            assert_same_call(own, captured, torch.randn(batch, 8))
    assert not torch.equal(own.state_dict()["inner.mean"], start["inner.mean"])
    for name, value in own.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], value, rtol=0, atol=0)


def test_a_submodule_that_replaces_its_buffers_is_one_node() -> None:
    model = Around(Average())
    with pytest.raises(CaptureError, match="replaces its buffer inner.mean"):
        capture(model, {"x": torch.randn(3, 8)}, strict=True)
    with pytest.warns(CaptureWarning, match="replaces its buffer inner.mean"):
        captured = capture(model, {"x": torch.randn(3, 8)})
    assert [report.path for report in captured.auto_leaves] == ["inner"]
    assert_same_state_after_calls(model, captured)


def test_a_buffer_written_in_place_needs_no_leaf() -> None:
    model = Around(AverageInPlace())
    with warnings.catch_warnings():
        # Whether the outputs agree is compared below, from the same state.
        warnings.simplefilter("ignore", CaptureWarning)
        captured = capture(model, {"x": torch.randn(3, 8)})
    assert captured.auto_leaves == ()
    assert_same_state_after_calls(model, captured)


def test_a_buffer_bound_to_itself_needs_no_leaf() -> None:
    model = Around(Moves())
    captured = capture(model, {"x": torch.randn(3, 8)}, strict=True)
    assert_same_in_both_modes(model, captured)


@pytest.mark.parametrize("cls", [Average, RebindsBelow])
def test_a_model_that_replaces_buffers_is_refused(cls: type[nn.Module]) -> None:
    with pytest.raises(CaptureError, match="replaces its buffer .*mean"):
        capture(cls(), {"x": torch.randn(3, 8)})


class SignOfZero(nn.Module):
    """Divides by another zero in each mode."""

    def forward(self, x):
        return 1 / (x.relu() * (0.0 if self.training else -0.0))


def test_zeros_of_both_signs_are_two_constants():
    captured, x = capture(SignOfZero(), {"x": torch.ones(2, 3)}), torch.ones(2, 3)
    for training in (True, False):
        captured.train(training)
        assert torch.equal(captured(x), SignOfZero().train(training)(x))
