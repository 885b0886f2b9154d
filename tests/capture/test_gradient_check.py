"""The self-check with gradients: what it finds, what it costs, and what it leaves behind."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop.capture.checks import self_check
from chop.capture.checks.gradients import Differentiation, Gradients, difference
from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError
from tests.capture.trained import assert_trains_alike

Forward = Callable[[Any, Tensor], Tensor]
PUSH = torch._C._autograd._push_saved_tensors_default_hooks
POP = torch._C._autograd._pop_saved_tensors_default_hooks


class Pair(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.critic = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.call = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


# What follows is hidden from a recording, so that the comparison alone can find it.


def rounds_what_is_saved(self: Any, x: Tensor) -> Tensor:
    PUSH(lambda t: t.detach().round(), lambda t: t)
    x = torch.sigmoid(self.fc(x))
    POP()
    return self.critic(x)


def freezes_a_weight(self: Any, x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        self.critic.weight.requires_grad_(False)
    x = self.critic(self.fc(x))
    with torch._C.DisableTorchFunction():
        self.critic.weight.requires_grad_(True)
    return x


def turns_a_gradient(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    with torch._C.DisableTorchFunction():
        if x.requires_grad and torch._C._len_torch_function_stack() == 0:
            x.register_hook(torch.neg)
    return self.critic(x)


def freezes_in_eval(self: Any, x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        self.fc.weight.requires_grad_(self.training)
    x = self.fc(x)
    with torch._C.DisableTorchFunction():
        self.fc.weight.requires_grad_(True)
    return x


FOUND: dict[Forward, str] = {
    rounds_what_is_saved: "in train.* gradient of .* differs",
    freezes_a_weight: "in train.* 1.critic.weight has a gradient, unlike",
    turns_a_gradient: "in train.* gradient of .* differs",
    freezes_in_eval: "1.fc.weight has a gradient, unlike",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("forward", FOUND, ids=lambda forward: forward.__name__)
def test_a_difference_in_gradients_alone_makes_a_leaf(forward: Forward) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Pair(forward))
    with pytest.warns(CaptureWarning, match=FOUND[forward]) as caught:
        captured = capture(model, {"input": torch.randn(3, 4)})
    assert [report.path for report in captured.auto_leaves] == ["1"]
    assert "test_gradient_check.py:" in str(caught[0].message)
    assert_trains_alike(model, captured)
    with pytest.raises(CaptureError, match=FOUND[forward].replace("1.", "")):
        capture(Pair(forward), {"x": torch.randn(3, 4)})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_of_other_widths_are_compared(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, dtype=dtype)
    with pytest.raises(CaptureError, match="critic.weight has a gradient"):
        capture(Pair(freezes_a_weight).to(dtype), {"x": x})
    plain = Pair(lambda self, x: self.critic(self.fc(x).relu())).to(dtype)
    assert capture(plain, {"x": x}).auto_leaves == ()


def test_large_gradients_are_compared_by_a_sketch() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(512, 256)

        def forward(self, x: Tensor) -> Tensor:
            PUSH(lambda t: t.detach().round(), lambda t: t)
            x = self.fc(x)
            POP()
            return x

    with pytest.raises(CaptureError, match=r"gradient of .* differs"):
        capture(Wide(), {"x": torch.randn(3, 512)})
    own = Differentiation(dict(Wide().named_parameters()))
    weight = own.parameters["fc.weight"]
    found = own.gradients([torch.ones(1, 512) @ weight.T], {}).by_name
    assert (found["fc.weight"].shape, found["fc.bias"]) == ((256,), None)
    other = {"fc.weight": -found["fc.weight"], "fc.bias": None}
    assert difference(gradients(other), gradients(found), 1e-2)[1] == {"fc.weight"}


# --- what it leaves behind -----------------------------------------------------------------------


class Listening(nn.Module):
    """A model with everything that calls with gradients may change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.heard: list[str] = []
        self.fc.weight.register_hook(lambda gradient: self.heard.append("hook"))
        self.fc.weight.register_post_accumulate_grad_hook(lambda x: self.heard.append("step"))
        self.norm.register_full_backward_hook(lambda *_: self.heard.append("backward"))
        self.fc.weight.grad = torch.full((4, 4), 3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.fc(x))) * self.frozen


def test_the_model_and_the_random_state_are_as_before() -> None:
    model, x = Listening().train(), torch.randn(5, 4)
    model.norm.eval()
    gradient, before = model.fc.weight.grad, copy.deepcopy(model.state_dict())
    draws = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    capture(model, {"x": x})
    assert model.heard == []
    assert model.fc.weight.grad is gradient
    assert torch.equal(gradient, torch.full((4, 4), 3.0))
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["fc.weight"]
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["frozen"]
    assert (model.training, model.norm.training, model.drop.training) == (True, False, True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), draws[0])
    assert random.getstate() == draws[1]
    assert np.array_equal(np.random.get_state()[1], draws[2])
    assert (x.requires_grad, x.grad) == (False, None)
    model.train()(x).sum().backward()
    assert sorted(model.heard) == ["backward", "hook", "step"]


def test_hooks_that_a_forward_adds_to_a_parameter_are_gone() -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.fc.weight.register_hook(torch.neg)
            return self.fc(x)

    model = nn.Sequential(nn.Linear(4, 4), Adding())
    with pytest.warns(CaptureWarning, match="hook on the gradient"):
        capture(model, {"input": torch.randn(3, 4)})
    assert not model[1].fc.weight._backward_hooks


def test_inputs_that_cannot_need_gradients_are_left_without() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                raise ValueError("expected plain inputs")
            return self.fc(x)

    with pytest.warns(CaptureWarning, match="reads requires_grad of a tensor"):
        captured = capture(Reads(), {"x": torch.randn(3, 4)})
    assert captured.auto_leaves == ()


def test_large_models_are_not_called_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    seen: list[int] = []
    for most in (0.0, 1e9):
        monkeypatch.setattr(self_check, "_MOST_IN_TRAINING", most)
        monkeypatch.setattr(self_check, "_MOST_IN_EVAL", most)
        calls: list[bool] = []
        original = self_check.run_once

        def counting(module: Any, *args: Any, to: list[bool] = calls, run: Any = original) -> Any:
            to.append(module.training)
            return run(module, *args)

        with monkeypatch.context() as patch:
            patch.setattr(self_check, "run_once", counting)
            capture(model, {"input": torch.randn(3, 4)})
        seen.append(sum(calls))
    assert seen == [0, 2]


# --- the comparison ------------------------------------------------------------------------------


def gradients(by_name: dict[str, Tensor | None], **entries: Any) -> Gradients:
    return Gradients((True,), by_name, **entries)


def test_gradients_are_compared_with_their_own_size() -> None:
    large, small = torch.full((4,), 1e3), torch.full((4,), 2.0)
    expected = gradients({"a": large, "b": small, "c": None})
    assert difference(expected, expected, 1e-2) == ("", set())
    found = gradients({"a": large, "b": small * 1.1, "c": None})
    reason, names = difference(found, expected, 1e-2)
    assert names == {"b"}
    assert "gradient of b differs from the model's by up to 0.1 of" in reason
    # The rounding error of a sum of large numbers is no difference.
    assert difference(gradients({"a": large, "b": small, "c": None}), expected, 1e-2)[0] == ""
    faint = gradients({"a": large, "b": torch.full((4,), 1e-7), "c": None})
    noise = gradients({"a": large, "b": torch.full((4,), -1e-7), "c": None})
    assert difference(noise, faint, 1e-2)[0] == ""


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        ({"a": torch.zeros(2)}, {"a": None}, "a has a gradient, unlike in the model"),
        ({"a": None}, {"a": torch.zeros(2)}, "a has no gradient, unlike in the model"),
        ({"a": torch.tensor([1.0, 2])}, {"a": torch.tensor([1.0, torch.nan])}, "by up to inf"),
        ({"a": torch.ones(2) * 1j}, {"a": torch.ones(2) * -1j}, "by up to 2 of"),
        ({"a": torch.full((2,), torch.nan)}, {"a": torch.full((2,), torch.nan)}, ""),
        ({"a": torch.ones(2, 0)}, {"a": torch.ones(2, 0)}, ""),
        ({"a": torch.ones(3)}, {"a": torch.ones(2)}, "by up to inf"),
    ],
)
def test_presence_and_values_that_are_no_numbers_count(
    found: dict[str, Tensor | None], expected: dict[str, Tensor | None], text: str
) -> None:
    reason, names = difference(gradients(found), gradients(expected), 1e-2)
    assert text in reason
    assert bool(reason) == bool(text) == bool(names)


def test_outputs_that_require_a_gradient_count() -> None:
    one, other = Gradients((True, False), {}), Gradients((True, True), {})
    assert "an output requires no gradient" in difference(one, other, 1e-2)[0]
    assert "an output requires a gradient, unlike" in difference(other, one, 1e-2)[0]
    failed = gradients({}, fails=True)
    assert difference(failed, failed, 1e-2)[0] == ""
    assert (
        "differentiate the model but not its capture" in difference(failed, gradients({}), 1e-2)[0]
    )


def test_gradients_are_those_of_a_fixed_projection() -> None:
    weight = nn.Parameter(torch.randn(3, 4))
    own = Differentiation({"w": weight, "free": nn.Parameter(torch.ones(2))}, ["x"])
    x = torch.randn(5, 4)
    given, leaves = own.prepare({"x": [x, torch.arange(3)], "y": x})
    assert [*leaves] == ["input tensor 0"]
    assert not given["y"].requires_grad
    product = given["x"][0] @ weight.T
    found = own.gradients([product, given["x"][1]], leaves)
    assert found.required == (True, False)
    assert found.by_name["free"] is None
    cotangent = found.by_name["input tensor 0"] @ torch.linalg.pinv(weight.detach())
    torch.testing.assert_close(found.by_name["w"], cotangent.T @ x, rtol=1e-4, atol=1e-4)
