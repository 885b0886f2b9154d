"""Arrays, custom operators, scripted modules and hooks that a capture takes."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError, GuardError
from tests.capture.following import assert_follows, example, silent_capture

TABLE = np.linspace(0, 1, 8, dtype=np.float32)


class FromArray(nn.Module):
    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.make = make

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + self.make(y)


def shared(x: Tensor) -> Tensor:
    return torch.as_tensor(TABLE)


def converted(x: Tensor) -> Tensor:
    return torch.as_tensor(TABLE.astype(np.float64), dtype=x.dtype, device=x.device)


def by_keyword(x: Tensor) -> Tensor:
    return torch.tensor(data=TABLE, dtype=x.dtype)


def from_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(TABLE)


def copied(x: Tensor) -> Tensor:
    return torch.tensor(TABLE).mul_(2)


def as_array(x: Tensor) -> Tensor:
    return torch.asarray(TABLE)


def like_input(x: Tensor) -> Tensor:
    return x.new_tensor(TABLE.astype(np.float64))


@pytest.mark.parametrize(
    "make",
    [shared, converted, by_keyword, from_numpy, copied, as_array, like_input],
    ids=lambda function: function.__name__,
)
@pytest.mark.sampled(3)
def test_arrays_become_constants(make: Callable[[Tensor], Tensor]) -> None:
    model = FromArray(make)
    before = TABLE.copy()
    captured = silent_capture(model, example())
    # Twice: a copy that is changed in place must not change the constant.
    assert_follows(model, captured, example(), example(5, 9), example(5, 9))
    assert np.array_equal(TABLE, before)


@torch.library.custom_op("chop_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scaled.register_fake(lambda x, factor: torch.empty_like(x))
scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=_keep_factor
)


@torch.library.custom_op("chop_tests::doubled_width", mutates_args=())
def doubled_width(x: Tensor) -> Tensor:
    return torch.cat([x, x], -1)


@torch.library.custom_op("chop_tests::clamp_below", mutates_args=("x",))
def clamp_below(x: Tensor, least: float) -> None:
    x.clamp_(min=least)


_LIBRARY = torch.library.Library("chop_tests", "FRAGMENT")
_LIBRARY.define("shift(Tensor x, float by) -> Tensor")
_LIBRARY.impl("shift", lambda x, by: x + by, "CompositeImplicitAutograd")


class Custom(nn.Module):
    def __init__(self, operator: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        y = self.operator(self.layer(x))
        return y.reshape(x.shape[0], -1) + 1


def with_a_fake(x: Tensor) -> Tensor:
    return scaled(x, 3.0)


def by_namespace(x: Tensor) -> Tensor:
    return torch.ops.chop_tests.scaled(x, 3.0)


def composite(x: Tensor) -> Tensor:
    return torch.ops.chop_tests.shift(x, 0.5)


def without_a_fake(x: Tensor) -> Tensor:
    return doubled_width(x.detach())


def in_place(x: Tensor) -> Tensor:
    y = x.detach().clone()
    clamp_below(y, 0.1)
    return y


@pytest.mark.parametrize(
    "operator",
    [with_a_fake, by_namespace, composite, without_a_fake, in_place],
    ids=lambda function: function.__name__,
)
@pytest.mark.sampled(3)
def test_custom_operators_are_nodes(operator: Callable[[Tensor], Tensor]) -> None:
    model = Custom(operator)
    captured = silent_capture(model, example())
    targets = [str(node.target) for node in captured.graph.nodes]
    assert any(target.startswith("chop_tests.") for target in targets)
    assert_follows(model, captured, example(), example(5, 9))


def test_the_gradient_of_a_custom_operator_is_its_own() -> None:
    model = Custom(with_a_fake)
    captured = silent_capture(model, example())
    gradients = []
    inputs = example(5, 9)
    for module in (model, captured):
        model.zero_grad()
        module(**inputs).square().sum().backward()
        gradients.append(model.layer.weight.grad.clone())
    assert torch.equal(*gradients)


class WidensInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return doubled_width(x.detach()) if self.training else torch.cat([x, x], -1)


def test_an_operator_that_only_training_calls_leaves_a_graph_of_the_rest() -> None:
    model = WidensInTraining()
    with pytest.warns(CaptureWarning, match=r"eval\(\) only: the operator .*register_fake"):
        captured = capture(model, example())
    given = example(5, 9)
    assert torch.equal(captured.eval()(**given), model.eval()(**given))
    with pytest.raises(GuardError, match="only"):
        captured.train()(**given)


def test_a_list_operator_without_a_result_is_recorded() -> None:
    class AddsToAll(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            parts = [x * 1, x * 2]
            torch._foreach_add_(parts, 1.0)
            return parts[0] * parts[1]

    model = AddsToAll()
    assert_follows(model, silent_capture(model, example()), example(), example(5, 9))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.shape[0] > 100:
            y = -y
        return torch.relu(y)


class HoldsScripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = torch.jit.script(Scripted())
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_child_is_a_leaf() -> None:
    model = HoldsScripted()
    with pytest.warns(CaptureWarning, match=r"inner .*it is compiled by TorchScript") as caught:
        captured = capture(model, example())
    assert len(caught) == 1
    assert [str(node.target) for node in captured.graph.nodes if node.op == "call_module"] == [
        "first",
        "inner",
        "last",
    ]
    # torch itself does not pickle compiled modules.
    assert_follows(model, captured, example(), example(5, 9), pickles=False)
    with pytest.raises(CaptureError, match=r"inner .*TorchScript"):
        capture(model, example(), strict=True)
    with pytest.raises(CaptureError, match=r"got Scripted compiled by TorchScript; pass"):
        capture(torch.jit.script(Scripted()), example())


GRADIENTS: list[tuple[int, ...]] = []


def keep_shape(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
    GRADIENTS.append(tuple(grad_output[0].shape))


def halve(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return (grad_input[0] / 2,)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) * 2


class Hooked(nn.Module):
    def __init__(self, hooked: str) -> None:
        super().__init__()
        self.first = Twice()
        self.second = Twice()
        self.last = nn.Linear(8, 3)
        self.get_submodule(hooked).register_full_backward_hook(halve)
        self.get_submodule(hooked).register_full_backward_hook(keep_shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hooked", ["second", "last", ""], ids=["block", "layer", "model"])
def test_hooks_on_gradients_are_kept(hooked: str) -> None:
    model = Hooked(hooked)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured = capture(model, example())
    assert [re.search("second.*gradient hooks", str(w.message)) is not None for w in caught] == (
        [True] if hooked == "second" else []
    )
    called = [str(node.target) for node in captured.graph.nodes if node.op == "call_module"]
    assert "first.layer" in called
    assert ("second" in called) == (hooked == "second")
    assert_follows(model, captured, example(), example(5, 9))
    for module in (captured, copy.deepcopy(captured)):
        gradients = []
        x = example(5, 9)["x"]
        for one in (model, module):
            GRADIENTS.clear()
            given = x.clone().requires_grad_()
            one(given).square().sum().backward()
            gradients.append((given.grad, list(GRADIENTS)))
        assert torch.equal(gradients[0][0], gradients[1][0])
        assert gradients[0][1] == gradients[1][1]
        assert len(gradients[0][1]) == 1
