"""Draws, seeds and hooks inside `forward`: kept by a leaf or refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.module import CapturedModule
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError, GuardError
from tests.capture.stateful import Forward, Made, assert_same_calls, draws, within

DRAWS: dict[str, Forward] = {
    "numpy": lambda self, x: x + float(np.random.rand()),
    "array": lambda self, x: x + torch.from_numpy(np.random.randn(4)).float(),
    "python": lambda self, x: x + random.random(),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("only_training", [False, True])
@pytest.mark.sampled(2)
def test_draws_of_numpy_make_their_module_a_leaf(kind: str, only_training: bool) -> None:
    def noisy(self: Any, x: Tensor) -> Tensor:
        return DRAWS[kind](self, x) if self.training or not only_training else x

    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), Made(noisy)), nn.Linear(4, 4))
    with pytest.warns(CaptureWarning, match="draws from"):
        captured = capture(model, {"input": draws()})
    assert [report.path for report in captured.auto_leaves] == ["0.1"]
    x = draws()
    results = []
    for twin in (model.train(), captured.train()):
        np.random.seed(3)
        random.seed(3)
        results.append([twin(x), twin(x)])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert not torch.equal(*results[1])
    with pytest.raises(CaptureError, match="draws from"):
        capture(Made(noisy), {"x": draws()}, strict=True)


def seeds(self: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x + torch.randn(4)


def seeds_in_a_fork(self: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return x + torch.randn(4)


def forks(self: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        noise = torch.randn(4)
    return x + noise - torch.randn(4)


def draws_again(self: Any, x: Tensor) -> Tensor:
    state = torch.random.get_rng_state()
    noise = torch.randn(4)
    torch.random.set_rng_state(state)
    return x + noise - 2 * torch.randn(4)


def seeds_the_generator(self: Any, x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(0)
    return x + torch.randn(4)


@pytest.mark.parametrize("only_training", [False, True])
@pytest.mark.parametrize("kind", [seeds, seeds_in_a_fork, forks, draws_again, seeds_the_generator])
@pytest.mark.sampled(3)
def test_seeds_set_in_forward_make_their_module_a_leaf(kind: Forward, only_training: bool) -> None:
    def seeded(self: Any, x: Tensor) -> Tensor:
        return kind(self, x) if self.training or not only_training else x

    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), Made(seeded)), nn.Linear(4, 4))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    example = torch.ones(3, 4)
    with pytest.warns(
        CaptureWarning, match=r"sets torch's random generators .*state\w*\.py:"
    ) as caught:
        captured = capture(model, {"input": example})
    assert len(caught) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert [report.path for report in captured.auto_leaves] == ["0.1"]
    assert_same_calls(model, captured, training=True)
    assert_same_calls(model, captured)
    with pytest.raises(CaptureError, match=r"itself \(Made\) .* sets torch's random generators"):
        capture(Made(seeded), {"x": example}, strict=True)
    assert torch.random.default_generator is torch.default_generator


COMPILED = {
    "cond": lambda self, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,)),
    "while": lambda self, x: torch.while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x,))[0],
    "compile": lambda self, x: torch.compile(lambda x: x * 2, backend="eager")(x),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_code_that_is_compiled_in_forward_is_named_and_no_seed_is_blamed(kind: str) -> None:
    with pytest.raises(CaptureError, match=r"compiles code while it runs \(torch.cond") as caught:
        capture(Made(COMPILED[kind]), {"x": torch.ones(3, 4)}, strict=True)
    assert "generators" not in str(caught.value)
    torch._dynamo.reset()


def test_a_capture_does_not_move_the_generators_of_numpy_and_python() -> None:
    np.random.seed(3)
    random.seed(3)
    expected = (np.random.rand(), random.random())
    np.random.seed(3)
    random.seed(3)
    with pytest.warns(CaptureWarning):
        capture(within(Made(DRAWS["numpy"])), {"input": draws()})
    assert (np.random.rand(), random.random()) == expected


def reverses(self: Any, x: Tensor) -> Tensor:
    y = x * self.weight
    if y.requires_grad:
        y.register_hook(lambda gradient: -gradient)
    return y


def test_hooks_on_gradients_are_kept_by_a_leaf_or_refused() -> None:
    model = within(Made(reverses))
    with pytest.warns(CaptureWarning, match="hook on the gradient"):
        captured = capture(model, {"input": draws()})
    x, gradients = draws(), []
    for twin in (model, captured):
        model.zero_grad()
        twin(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    with pytest.raises(CaptureError, match="hook on the gradient"):
        capture(Made(reverses), {"x": draws()})


def test_a_result_that_keeps_its_gradient_keeps_it() -> None:
    def keeps(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.weight
        if y.requires_grad:
            y.retain_grad()
        return y, y.square().sum()

    model = Made(keeps)
    captured: CapturedModule = capture(model, {"x": draws()}, strict=True)
    y, loss = captured(draws())
    loss.backward()
    torch.testing.assert_close(y.grad, 2 * y.detach())


@pytest.mark.parametrize("path", ["", "0", "0.1", "0.1.inner", "1"])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.sampled(3)
def test_hooks_added_after_a_capture_run_or_are_refused(path: str, backward: bool) -> None:
    inner = Made(lambda self, x: self.inner(x) * self.weight, inner=nn.Linear(4, 4))
    model = nn.Sequential(nn.Sequential(nn.ReLU(), inner), nn.Linear(4, 4))
    captured = capture(model, {"input": draws()}, strict=True)
    module, calls = captured.get_submodule(path), []
    add = module.register_full_backward_hook if backward else module.register_forward_hook
    handle = add(lambda *_: calls.append(path))
    if path in ("0", "0.1"):
        with pytest.raises(GuardError, match=rf"got one on {path}, .*leaves=\['{path}'\]"):
            captured(draws())
    else:
        captured(draws().requires_grad_()).sum().backward()
        assert calls == [path]
    handle.remove()
    captured(draws())
