"""Effects of forward that no node has: modes and attributes of layers, frozen parts, hooks."""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import (
    get_gradient_edge,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.nn.utils import parametrizations, parametrize

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError, GuardError
from tests.capture.trained import assert_trains_alike

Forward = Callable[[Any, Tensor], Tensor]


class Noise(nn.Module):
    """A parametrization that draws in training."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + 0.1 * torch.randn_like(weight) if self.training else weight


class Layers(nn.Module):
    """Layers that behave otherwise in training, and a forward that is given."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.critic = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
        self.normed = parametrizations.weight_norm(nn.Linear(4, 4))
        self.noisy = nn.Linear(4, 4)
        parametrize.register_parametrization(self.noisy, "weight", Noise())
        self.call = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


# --- attributes of layers ------------------------------------------------------------------------


def sets_eval_and_restores(self: Any, x: Tensor) -> Tensor:
    was = self.norm.training
    self.norm.eval()
    x = self.norm(self.fc(x))
    self.norm.train(was)
    return x


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    was = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was)


def sets_eval_in_a_context(self: Any, x: Tensor) -> Tensor:
    with evaluating(self.block):
        return self.block(x)


def sets_training_by_name(self: Any, x: Tensor) -> Tensor:
    was, self.drop.training = self.drop.training, True
    x = self.drop(self.fc(x))
    self.drop.training = was
    return x


def stops_statistics(self: Any, x: Tensor) -> Tensor:
    self.norm.track_running_stats = False
    x = self.norm(x)
    self.norm.track_running_stats = True
    return x


def changes_momentum(self: Any, x: Tensor) -> Tensor:
    vars(self.norm)["momentum"] = 0.7
    x = self.norm(x)
    self.norm.momentum = 0.1
    return x


def sets_momentum_after_the_call(self: Any, x: Tensor) -> Tensor:
    x = self.norm(x)
    self.norm.momentum = 0.7
    return x


def sets_probability(self: Any, x: Tensor) -> Tensor:
    self.drop.p = 0.1
    return self.drop(self.fc(x))


def sets_probability_from_a_size(self: Any, x: Tensor) -> Tensor:
    self.drop.p = 1.0 / x.shape[0]
    return self.drop(self.fc(x))


def sets_probability_in_training(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.drop.p = 0.2
    return self.drop(self.fc(x))


def replaces_a_weight(self: Any, x: Tensor) -> Tensor:
    weight = self.fc.weight
    del self.fc.weight
    self.fc.weight = weight.detach()
    x = self.fc(x)
    self.fc.weight = weight
    return x


def adds_a_hook(self: Any, x: Tensor) -> Tensor:
    handle = self.fc.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    x = self.fc(x)
    handle.remove()
    return x


# --- gradients -----------------------------------------------------------------------------------


def freezes_a_part(self: Any, x: Tensor) -> Tensor:
    self.critic.requires_grad_(False)
    x = self.critic(self.fc(x))
    self.critic.requires_grad_(True)
    return x


def freezes_by_name(self: Any, x: Tensor) -> Tensor:
    self.critic.weight.requires_grad = False
    x = F.linear(self.fc(x), self.critic.weight)
    self.critic.weight.requires_grad = True
    return x


def freezes_for_good(self: Any, x: Tensor) -> Tensor:
    self.critic.requires_grad_(False)
    return self.critic(self.fc(x))


def freezes_in_training(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.critic.requires_grad_(False)
    x = self.critic(self.fc(x))
    if self.training:
        self.critic.requires_grad_(True)
    return x


def hooks_a_node(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    if y.grad_fn is not None:
        y.grad_fn.register_prehook(lambda gradients: tuple(-g for g in gradients))
    return y


def hooks_a_node_behind(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).exp().tanh()
    if y.grad_fn is not None:
        node = y.grad_fn.next_functions[0][0]
        node.register_hook(lambda given, came: tuple(None if g is None else -g for g in given))
    return y


def hooks_an_edge(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    if y.requires_grad:
        get_gradient_edge(y).node.register_prehook(lambda gradients: tuple(-g for g in gradients))
    return y


def hooks_a_tensor(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    if y.requires_grad:
        y.register_hook(lambda gradient: -gradient)
    return y


def hooks_several(self: Any, x: Tensor) -> Tensor:
    y, z = self.fc(x), self.critic(x)
    if y.requires_grad:
        register_multi_grad_hook((y, z), lambda gradients: None)
    return y * z


def rounds_what_is_saved(self: Any, x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.detach().round(), lambda t: t):
        return torch.sigmoid(self.fc(x)) * x


class Rounding(saved_tensors_hooks):
    def __init__(self) -> None:
        super().__init__(lambda t: t.detach().bfloat16(), lambda t: t.float())


def rounds_by_a_class(self: Any, x: Tensor) -> Tensor:
    with Rounding():
        return torch.sigmoid(self.fc(x)) * x


def computes_a_weight_once(self: Any, x: Tensor) -> Tensor:
    with parametrize.cached():
        return self.noisy(self.noisy(x))


ATTRIBUTES: dict[Forward, str] = {
    sets_eval_and_restores: "sets 1.norm to eval()",
    sets_eval_in_a_context: "sets 1.block.1 to eval()",
    sets_training_by_name: "sets 1.drop to train()",
    stops_statistics: "changes 1.norm.track_running_stats from True to False",
    changes_momentum: "changes 1.norm.momentum from 0.1 to 0.7",
    sets_momentum_after_the_call: "changes 1.norm.momentum from 0.1 to 0.7",
    sets_probability: "changes 1.drop.p from 0.5 to 0.1",
    sets_probability_from_a_size: "changes 1.drop.p while",
    sets_probability_in_training: "changes 1.drop.p from 0.5 to 0.2",
    replaces_a_weight: "changes 1.fc.weight",
    adds_a_hook: "changes 1.fc.backward_hooks",
    freezes_a_part: "changes requires_grad of 1.critic.weight",
    freezes_by_name: "changes requires_grad of 1.critic.weight",
    freezes_for_good: "changes requires_grad of 1.critic.weight",
    freezes_in_training: "changes requires_grad of 1.critic.weight",
    hooks_a_node: "hook on an autograd node (grad_fn.register_prehook)",
    hooks_a_node_behind: "hook on an autograd node (grad_fn.register_hook)",
    hooks_an_edge: "hook on an autograd node",
    hooks_a_tensor: "hook on the gradient of a tensor",
    hooks_several: "hook on the gradient of a tensor",
    rounds_what_is_saved: "changes the tensors that autograd saves",
    rounds_by_a_class: "changes the tensors that autograd saves",
    computes_a_weight_once: "in train() on the example inputs its outputs differ",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("forward", ATTRIBUTES, ids=lambda forward: forward.__name__)
def test_what_no_node_does_makes_its_module_a_leaf(forward: Forward) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Layers(forward))
    with pytest.warns(CaptureWarning, match=re.escape(ATTRIBUTES[forward])) as caught:
        captured = capture(model, {"input": torch.randn(3, 4)})
    assert len(caught) == 1
    assert [report.path for report in captured.auto_leaves] == ["1"]
    code = inspect.unwrap(evaluating if forward is sets_eval_in_a_context else forward).__code__
    lines = [line for *_, line in code.co_lines() if line]
    named = map(int, re.findall(r"test_effects\.py:(\d+)", str(caught[0].message)))
    assert any(min(lines) <= line <= max(lines) for line in named)
    assert_trains_alike(model, captured)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("forward", ATTRIBUTES, ids=lambda forward: forward.__name__)
def test_in_the_model_itself_it_is_refused_or_said(forward: Forward) -> None:
    text = ATTRIBUTES[forward].replace("1.", "", 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            captured = capture(Layers(forward), {"x": torch.randn(3, 4)})
        except CaptureError as error:
            assert text in str(error)
            assert "test_effects.py:" in str(error)
            return
    # The recording in train() was refused.
    assert "the graph supports eval() only" in str(caught[0].message)
    assert "test_effects.py:" in str(caught[0].message)
    with pytest.raises(GuardError, match="captured for eval"):
        captured.train()(torch.randn(3, 4))


# --- what changes nothing ------------------------------------------------------------------------


def switches_a_linear_layer(self: Any, x: Tensor) -> Tensor:
    was = self.fc.training
    self.fc.eval()
    x = self.fc(x)
    self.fc.train(was)
    return x


def sets_what_is_there(self: Any, x: Tensor) -> Tensor:
    self.drop.p = 0.5
    self.norm.momentum = 0.1
    return self.drop(self.norm(self.fc(x)))


def notes_on_a_layer(self: Any, x: Tensor) -> Tensor:
    self.fc.requires_grad_(True)
    self.fc.width = 4
    return self.fc(x)


def freezes_without_gradients(self: Any, x: Tensor) -> Tensor:
    self.critic.requires_grad_(False)
    with torch.no_grad():
        scale = self.critic(x)
    self.critic.requires_grad_(True)
    return self.fc(x) * scale


def saves_elsewhere(self: Any, x: Tensor) -> Tensor:
    with save_on_cpu(), saved_tensors_hooks(lambda t: [t], lambda kept: kept[0]):
        return torch.sigmoid(self.fc(x)) * x


def looks_at_a_node(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    return y if y.grad_fn is None or y.grad_fn.name() else -y


def computes_the_same_weight_once(self: Any, x: Tensor) -> Tensor:
    with parametrize.cached():
        return self.normed(self.normed(x))


HARMLESS = (
    *(switches_a_linear_layer, sets_what_is_there, freezes_without_gradients),
    *(saves_elsewhere, looks_at_a_node, computes_the_same_weight_once),
    notes_on_a_layer,
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("forward", HARMLESS, ids=lambda forward: forward.__name__)
def test_what_changes_nothing_is_captured(forward: Forward) -> None:
    model = Layers(forward)
    captured = capture(model, {"x": torch.randn(3, 4)})
    assert captured.auto_leaves == ()
    assert_trains_alike(model, captured)


def test_the_leaf_is_the_module_around_the_setting_and_the_call() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Dropout(0.5)
            self.setter, self.caller = nn.Module(), nn.Module()
            self.layers = nn.ModuleList([_Setter(self.shared), _Caller(self.shared)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class _Setter(nn.Module):
        def __init__(self, shared: nn.Module) -> None:
            super().__init__()
            self.shared = shared

        def forward(self, x: Tensor) -> Tensor:
            self.shared.p = 0.25
            return x * 2

    class _Caller(_Setter):
        def forward(self, x: Tensor) -> Tensor:
            return self.shared(x)

    model = nn.Sequential(nn.Linear(4, 4), Outer())
    with pytest.warns(CaptureWarning, match=r"shared\.p from 0\.5 to 0\.25"):
        captured = capture(model, {"input": torch.randn(3, 4)})
    assert [report.path for report in captured.auto_leaves] == ["1"]
    assert_trains_alike(model, captured)
