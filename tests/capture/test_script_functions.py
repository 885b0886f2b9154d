"""TorchScript functions are recorded as the operators of their Python."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.ir import MaseGraph
from chop.passes import quantize_transform_pass


@torch.jit.script
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@torch.jit.script
def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    x = bias + y
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


@torch.jit.script
def gated(x: Tensor) -> Tensor:
    a, b = torch.chunk(x, 2, dim=-1)
    return torch.cat([F.silu(a) * b, a], -1)


@torch.jit.script
def add_dropped(x: Tensor, residual: Tensor, p: float, training: bool) -> Tensor:
    return residual + F.dropout(x, p=p, training=training)


@torch.jit.script
def repeated(x: Tensor, times: int) -> tuple[Tensor, Tensor]:
    y = x
    for _ in range(times):
        y = y * torch.sigmoid(y)
    return y, x + 1


class Scripted(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.shift = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.name == "gelu":
            y = quick_gelu(y)
        elif self.name == "bias":
            y = bias_gelu(y, self.shift)
        elif self.name == "gated":
            y = gated(y)
        elif self.name == "dropout":
            y = add_dropped(y, x, 0.5, self.training)
        else:
            y, z = repeated(y, 3)
            y = y + z
        return self.second(y)


def results(module: nn.Module, x: Tensor) -> list[Tensor]:
    """An output, and the gradients of the input and of the parameters."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    y = module(x)
    y.square().sum().backward()
    grads = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    assert x.grad is not None
    return [y.detach(), x.grad, *grads]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gelu", "bias", "gated", "dropout", "repeated"])
@pytest.mark.parametrize("inner", [False, True])
def test_calls_and_gradients_are_those_of_the_model(name: str, inner: bool) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 4), Scripted(name)) if inner else Scripted(name)
    key = "input" if inner else "x"
    captured = capture(model, {key: torch.randn(3, 4)}, strict=True)
    for module in (captured, copy.deepcopy(captured)):
        for training in (False, True, True, False):
            model.train(training)
            module.train(training)
            x = torch.randn(5, 4)
            torch.testing.assert_close(results(module, x), results(model, x))


def test_layers_beside_a_script_function_are_quantized_and_saved(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Scripted("bias")
    mg, _ = quantize_transform_pass(
        MaseGraph(model, dummy_in={"x": torch.randn(3, 4)}),
        {"by": "type", "default": {"config": {"name": None}}}
        | {"linear": {"config": {"name": "mxint", "weight_width": 8, "data_in_width": 8}}},
    )
    x = torch.randn(3, 4)
    y = quick = mg.model.get_submodule("first")(x)
    expected = mg.model.get_submodule("second")(bias_gelu(y, model.shift))
    torch.testing.assert_close(mg.model(x), expected)
    assert not torch.equal(quick, model.first(x))
    mg.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    torch.testing.assert_close(results(again.model.train(), x), results(mg.model.train(), x))


def test_a_traced_function_is_recorded_as_its_python() -> None:
    traced = torch.jit.trace(lambda x: x * torch.sigmoid(x), torch.randn(2, 4))

    class Traced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = traced(self.layer(x))
            return result

    model = Traced()
    captured = capture(model, {"x": torch.randn(3, 4)}, strict=True)
    x = torch.randn(5, 4)
    torch.testing.assert_close(results(captured, x), results(model, x))
