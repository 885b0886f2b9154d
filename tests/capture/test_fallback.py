"""Fallbacks of the capture: leaves, refused calls and errors, but never wrong results."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.captured.record import CaptureWarning
from chop.captured.runtime import guard_value
from chop.errors import CaptureError, GuardError


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, *, twice: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        y = self.layer(x)
        if y.sum() > 0:
            y = -y
        if twice:
            y = 2 * y
        return y, {"sum": y.sum(-1)}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = nn.ModuleList(DataDependent() for _ in range(2))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for inner in self.inner:
            x, parts = inner(x, twice=True)
            x = x + parts["sum"][..., None]
        return self.last(x).reshape(x.shape[0], -1)


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x if x.sum() > 0 else 2 * x


class LengthTest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, ::2] if x.shape[1] <= 14 else x


class PositionTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(20, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.table[: x.shape[1]].sum()).sum(1)


class PythonLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = torch.tanh(state + x[:, step])
        return state


class Chunks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part.sum(1) for part in x.split(5, dim=1)])


class PythonRandom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Draws()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


class _Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


def example(batch: int = 3, length: int = 14) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, length, 8)}


def assert_same(model: nn.Module, captured: CapturedModule, inputs: dict[str, Any]) -> None:
    expected = tensors_in(model(**inputs))
    assert expected
    torch.testing.assert_close(tensors_in(captured(**inputs)), expected, rtol=0, atol=0)


def test_a_data_dependent_branch_makes_its_module_a_leaf() -> None:
    model = Outer()
    with pytest.warns(CaptureWarning) as caught:
        captured = capture(model, example())
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "inner.0" in text
    assert "DataDependent" in text
    assert "test_fallback.py:" in text
    assert f"hides {captured.auto_leaves[0].operators} operators" in text
    report = captured.auto_leaves[0]
    assert (report.path, report.class_name.rpartition(".")[2]) == ("inner.0", "DataDependent")
    assert report.operators > 3
    called = [node.target for node in captured.graph.nodes if node.op == "call_module"]
    assert called == ["first", "inner.0", "inner.1", "last"]
    for batch, length in ((3, 14), (5, 9), (1, 2)):
        assert_same(model, captured, example(batch, length))


def test_strict_says_where_and_what_to_do_instead() -> None:
    with pytest.raises(CaptureError) as error:
        capture(Outer(), example(), strict=True)
    text = str(error.value)
    assert "inner.0 (DataDependent)" in text
    assert "test_fallback.py:" in text
    assert "custom_ops" in text


def test_chosen_leaves_by_class_and_by_path() -> None:
    model = Outer()
    by_class = capture(model, example(), leaves=[DataDependent])
    by_path = capture(model, example(), leaves=["inner.0", "inner.1"])
    for captured in (by_class, by_path):
        assert captured.auto_leaves == ()
        assert captured.get_submodule("inner.0") is model.inner[0]
        assert_same(model, captured, example(4, 5))


def test_a_decision_of_the_model_itself_is_checked_at_run_time() -> None:
    model = Root()
    positive = {"x": torch.rand(3, 4)}
    with pytest.warns(CaptureWarning, match="checked at run time"):
        captured = capture(model, positive)
    assert_same(model, captured, {"x": torch.rand(5, 2)})
    with pytest.raises(GuardError, match=r"reads True at .*test_fallback\.py:\d+, got False"):
        captured(-torch.rand(3, 4))
    with pytest.raises(CaptureError, match="move these lines into a submodule"):
        capture(model, positive, strict=True)


def test_expect_is_silent_when_the_decision_holds() -> None:
    assert guard_value(torch.tensor([1, 2]), "tolist", [1, 2], "here") is None
    with pytest.raises(GuardError, match=r"reads \[1, 2\] at here, got \[3\]"):
        guard_value(torch.tensor([3]), "tolist", [1, 2], "here")


@pytest.mark.parametrize(
    ("model", "good", "bad", "condition"),
    [
        (LengthTest(), (5, 8), (2, 15), r"x\.shape\[1\] <= 14"),
        (PositionTable(), (5, 20), (2, 21), r"x\.shape\[1\] <= 20"),
        (PythonLoop(), (5, 14), (2, 13), r"x\.shape\[1\] == 14"),
        (Chunks(), (5, 11), (2, 16), r"== 3"),
    ],
    ids=["test", "slice", "loop", "split"],
)
@pytest.mark.sampled(3)
def test_sizes_outside_the_recording_are_refused_with_the_line(
    model: nn.Module, good: tuple[int, int], bad: tuple[int, int], condition: str
) -> None:
    captured = capture(model, example())
    assert_same(model, captured, example(*good))
    with pytest.raises(GuardError, match=condition) as refusal:
        captured(**example(*bad))
    assert "test_fallback.py:" in str(refusal.value)
    assert f"x: {(*bad, 8)}" in str(refusal.value)


def test_image_sizes_are_fixed_and_said_so() -> None:
    captured = capture(nn.Conv2d(3, 4, 3), {"input": torch.randn(2, 3, 16, 16)})
    assert captured(torch.randn(5, 3, 16, 16)).shape == (5, 4, 14, 14)
    with pytest.raises(GuardError, match=r"input\.shape\[2\] == 16 \(fixed at capture\)"):
        captured(torch.randn(2, 3, 20, 16))


def test_draws_from_python_random_are_not_frozen() -> None:
    model = PythonRandom()
    with pytest.warns(CaptureWarning, match=r"`random`"):
        captured = capture(model, example())
    x = example()["x"]
    random.seed(3)
    expected = model(x)
    random.seed(3)
    torch.testing.assert_close(captured(x), expected, rtol=0, atol=0)
    assert not torch.equal(captured(x), expected)


class _Half(nn.Module):
    """Cannot run on fake tensors, and its output length depends on its input's."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        assert np.asarray(x.detach()).shape == tuple(x.shape)
        return {"half": x[:, : x.shape[1] // 2], "mean": x.mean(1)}


class UsesHalf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.halver = _Half()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.halver(x)
        return self.layer(torch.cat([parts["half"], parts["mean"][:, None]], 1))


def test_a_leaf_that_cannot_run_on_fake_tensors_is_seen_in_a_real_run() -> None:
    model = UsesHalf()
    with pytest.warns(CaptureWarning, match="halver"):
        captured = capture(model, example())
    assert [r.path for r in captured.auto_leaves] == ["halver"]
    for batch, length in ((3, 14), (4, 22), (2, 7)):
        assert_same(model, captured, example(batch, length))


def test_a_model_that_fails_on_its_inputs_says_so() -> None:
    with pytest.raises(CaptureError, match="cannot be captured|itself fails"):
        capture(nn.Sequential(nn.Linear(8, 2)), {"input": torch.randn(3, 5)})


def test_inputs_that_cannot_be_guessed_are_asked_for() -> None:
    class TwoInputs(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left @ right

    with pytest.raises(CaptureError, match=r"dummy_in=\{'left': torch\.randn"):
        capture(TwoInputs())
    assert capture(nn.Sequential(nn.Linear(4, 2))).example_inputs["input"].shape == (3, 4)
