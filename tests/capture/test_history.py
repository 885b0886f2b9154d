"""Buffers that forward writes with a gradient: capture takes the history away again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.capture.tracer import capture


class Held:
    """An object that holds a tensor."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(4)


class Writer(nn.Module):
    """Writes what it has computed from its parameters into what it holds."""

    def __init__(self, write: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("part", self.mean[:2])
        self.register_buffer("same", self.mean, persistent=False)
        self.register_buffer("bank", torch.zeros(8, 4))
        self.rows = self.bank[0]
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.plain, self.several, self.held = torch.zeros(4), [torch.zeros(4)], Held()
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.write(self, h)
        return self.last(h) + self.bank.sum() + self.mean[0]


def _by_out(model: Any, h: Tensor) -> None:
    torch.mul(h[0].detach(), 1, out=model.mean)
    model.mean.mul_(h.mean())


def _by_index(model: Any, h: Tensor) -> None:
    model.bank.index_copy_(0, torch.arange(h.shape[0]), h)


def _by_assignment(model: Any, h: Tensor) -> None:
    model.bank[: h.shape[0]] = h


def _in_training(model: Any, h: Tensor) -> None:
    if model.training:
        model.mean.add_(h.mean(0))


WRITES: dict[str, Callable[[Any, Tensor], Any]] = {
    "add": lambda model, h: model.mean.add_(h.mean(0)),
    "average": lambda model, h: model.mean.mul_(0.9).add_(h.mean(0)),
    "assignment": _by_assignment,
    "index": _by_index,
    "out": _by_out,
    "through a view": lambda model, h: model.mean[:2].add_(h.mean()),
    "view": lambda model, h: model.part.add_(h.mean()),
    "attribute that is a view": lambda model, h: model.rows.add_(h[0]),
    "tied": lambda model, h: model.same.add_(h.mean(0)),
    "frozen parameter": lambda model, h: model.frozen.add_(h.mean(0)),
    "attribute": lambda model, h: model.plain.add_(h.mean(0)),
    "list": lambda model, h: model.several[0].copy_(h[0]),
    "object": lambda model, h: model.held.tensor.copy_(h[0]),
    "in training": _in_training,
}


def _tensors(model: Any) -> Iterator[Tensor]:
    yield from (*model.parameters(), *model.buffers())
    yield from (model.rows, model.plain, *model.several, model.held.tensor)


def same_grads(one: Tensor, other: Tensor) -> bool:
    """Whether two parameters have the same gradient, or none."""
    if one.grad is None or other.grad is None:
        return one.grad is other.grad
    return torch.equal(one.grad, other.grad)


@pytest.mark.filterwarnings("ignore::chop.capture.tracer.CaptureWarning")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("write", WRITES.values(), ids=[*WRITES])
@pytest.mark.sampled(3)
def test_a_model_can_be_trained_after_capture(
    write: Callable[[Any, Tensor], Any], training: bool
) -> None:
    torch.manual_seed(0)
    model, x = Writer(write).train(training), torch.randn(3, 4)
    expected = copy.deepcopy(model)
    before = list(_tensors(model))
    captured = capture(model, {"x": x})
    for found, same, value in zip(_tensors(model), before, _tensors(expected), strict=True):
        assert found is same and torch.equal(found, value) and found.grad is None
        assert found.grad_fn is None and found.requires_grad == value.requires_grad
    first = copy.deepcopy(captured)
    for each in (model, expected):
        each(x).square().sum().backward()
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert not parameter.is_leaf or same_grads(parameter, other)
    if not (training and captured.record.eval_only):
        first(x).square().sum().backward()
        assert torch.equal(first.get_parameter("first.weight").grad, expected.first.weight.grad)


@pytest.mark.filterwarnings("ignore::chop.capture.tracer.CaptureWarning")
@pytest.mark.parametrize("name", ["add", "average", "view", "list", "frozen parameter"])
@pytest.mark.sampled(3)
def test_passes_copy_a_graph_that_has_run(name: str) -> None:
    model, x = Writer(WRITES[name]), torch.randn(3, 4)
    mg = MaseGraph(model, dummy_in={"x": x})
    mg.model(x).sum().backward()
    config = {"config": {"name": "integer", "width": 8, "frac_width": 4}}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": config})
    for twin in (quantized.model, copy.deepcopy(mg.model), pickle.loads(pickle.dumps(mg.model))):
        for key, buffer in twin.named_buffers():
            assert buffer.is_leaf and not buffer.requires_grad
            assert torch.equal(buffer, mg.model.get_buffer(key))
        twin(x).sum().backward()


def test_copies_of_what_has_run_share_memory_as_before() -> None:
    model = Writer(WRITES["tied"])
    captured = capture(model, {"x": torch.randn(3, 4)})
    captured(torch.randn(3, 4)).sum().backward()
    twin = copy.deepcopy(captured)
    twin.get_buffer("mean").fill_(7.0)
    assert torch.equal(twin.get_buffer("part"), torch.full((2,), 7.0))
    assert twin.get_buffer("same") is twin.get_buffer("mean")
    assert not torch.equal(captured.get_buffer("mean"), twin.get_buffer("mean"))
