"""Calls that a recording has answered already are answered alike, and nothing else is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from transformers import BertConfig, BertForSequenceClassification

from chop.capture.fallback import DynamicDims
from chop.capture.recording.fake_result_cache import FakeCache
from chop.capture.sizes.symbols import FakeTensor, Sizes
from chop.capture.tracer import capture
from chop.errors import GuardError


class Counted:
    """Asks for calls and counts those that were run."""

    def __init__(self) -> None:
        self.repeats = FakeCache()
        self.runs = 0

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            self.runs += 1
            return function(*args, **kwargs)

        if isinstance(function, nn.Module):
            return self.repeats.call_module(function, args, kwargs, run)
        return self.repeats.call(function, args, kwargs, run)


@pytest.fixture
def call() -> Counted:
    return Counted()


@pytest.fixture
def x() -> Iterator[Tensor]:
    """A fake input with free sizes that needs a gradient."""
    sizes = Sizes(fx.Graph())
    fake = sizes.fake_input("x", torch.randn(3, 14, 8, requires_grad=True), DynamicDims.ALL)
    with sizes.fake_mode():
        yield fake * 1


def test_a_repeated_layer_runs_once(call: Counted, x: Tensor) -> None:
    first, second = nn.Linear(8, 5), nn.Linear(8, 5)
    one, two = call(first, x), call(second, x * 1)
    assert call.runs == 1
    assert one is not two
    assert (one.shape, one.stride(), one.dtype) == (two.shape, two.stride(), two.dtype)
    assert two.requires_grad
    assert two.grad_fn is not None
    two.add_(1)


@pytest.mark.parametrize(
    "other",
    [nn.Linear(8, 6), nn.Linear(8, 5, bias=False), nn.Linear(8, 5).requires_grad_(False)],
    ids=["width", "bias", "frozen"],
)
def test_another_layer_runs(call: Counted, x: Tensor, other: nn.Module) -> None:
    call(nn.Linear(8, 5), x)
    expected = other(x)
    found = call(other, x)
    assert call.runs == 2
    assert found.shape == expected.shape


def test_a_layer_with_hooks_runs(call: Counted, x: Tensor) -> None:
    layer = nn.Linear(8, 5)
    layer.register_forward_hook(lambda module, args, output: output[..., :2])
    call(layer, x)
    assert call(layer, x).shape[-1] == 2
    assert call.runs == 2


@pytest.mark.parametrize(
    ("function", "args", "others"),
    [
        (torch.sum, (1,), (2,)),
        (torch.sum, (1, True), (1, False)),
        (F.softmax, (-1,), (1,)),
        (torch.mul, (2.0,), (2.0 + 1j,)),
        (F.pad, ((1, 0),), ((0, 2),)),
    ],
)
def test_other_constants_are_other_calls(
    call: Counted, x: Tensor, function: Callable[..., Any], args: Any, others: Any
) -> None:
    call(function, x, *args)
    expected, runs = function(x, *others), call.runs
    found = call(function, x, *others)
    assert call.runs == runs + 1
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x.nonzero(), 2),
        (lambda x: x.detach().transpose(0, 1), 2),
        (lambda x: x.transpose(0, 1), 1),
        (torch.relu_, 2),
        (lambda x: F.relu(x, True), 2),
        (lambda x: torch.tensor(3), 2),
    ],
    ids=["data tells its size", "view", "view with gradient", "in place", "flag", "constant"],
)
def test_what_is_more_than_a_shape_runs_again(
    call: Counted, x: Tensor, function: Callable[[Tensor], Any], count: int
) -> None:
    one, two = call(function, x), call(function, x)
    assert call.runs == count
    assert (one is two) == (one is x)


def test_modes_are_part_of_a_call(call: Counted, x: Tensor) -> None:
    assert call(torch.exp, x).requires_grad
    with torch.no_grad():
        assert not call(torch.exp, x).requires_grad
        assert not call(torch.exp, x).requires_grad
    assert call.runs == 2
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            call(torch.exp, x)
    assert call.runs == 4
    assert call(torch.exp, x).requires_grad
    assert call.runs == 4


class Blocks(nn.Module):
    """Equal blocks with views, writes into them and a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.norm(layer(x)) * 1 for layer in self.layers]
        parts[0][:, 1:].add_(parts[1][:, :-1])
        parts[1][:, 1:] = parts[2][:, :-1]
        parts[2] += parts[3]
        table = torch.zeros(x.shape[0], 4, 8)
        other = torch.zeros(x.shape[0], 4, 8)
        other.transpose(0, 1)
        table.transpose(0, 1)[1] = parts[3][:, 0]
        with torch.no_grad():
            scale = (table + other).mean(1, keepdim=True)
            parts[3][:, 1:].mul_(scale)
        return self.dropout(torch.stack(parts).sum(0)) * scale


class Drops(nn.Module):
    """Drops whole rows in training, by a draw."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * torch.bernoulli(torch.full_like(x[:, :1], 0.8))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.drop = Drops()

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3 and x.shape[1] > 9:
            x = F.interpolate(x.transpose(1, 2), scale_factor=0.5).repeat(1, 1, 2).transpose(1, 2)
        return x + self.drop(self.layer(x))


def bert() -> nn.Module:
    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    return BertForSequenceClassification(config)


CASES = {
    "modes differ": (
        lambda: nn.Sequential(Residual(), Residual()),
        {"input": torch.randn(3, 14, 8)},
    ),
    "blocks": (Blocks, {"x": torch.randn(3, 14, 8)}),
    "bert": (
        bert,
        {
            "input_ids": torch.randint(0, 50, (3, 14)),
            "attention_mask": torch.ones(3, 14, dtype=torch.long),
            "labels": torch.tensor([0, 1, 0]),
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.long
def test_a_graph_is_the_same_without_answers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = CASES[case]
    model = make()
    graphs = [capture(model, inputs)]
    with monkeypatch.context() as patch:
        patch.setattr(FakeCache, "call", lambda self, function, args, kwargs, run: run())
        patch.setattr(FakeCache, "call_module", lambda self, module, args, kwargs, run: run())
        graphs.append(capture(model, inputs))
    for told in (
        lambda graph: graph.code,
        lambda graph: [guard.expression for guard in graph.record.guards],
        lambda graph: [node.meta.get("spec") for node in graph.graph.nodes],
    ):
        assert told(graphs[0]) == told(graphs[1])


def test_a_second_attempt_takes_over_the_answers_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[bool] = []
    forward = nn.Linear.forward

    def counted(self: nn.Linear, x: Tensor) -> Tensor:
        runs.append(isinstance(x, FakeTensor))
        return forward(self, x)

    model = nn.Sequential(Residual(), Residual(), Residual())
    monkeypatch.setattr(nn.Linear, "forward", counted)
    captured = capture(model, {"input": torch.randn(3, 4, 5, 8)})
    called = [node.target for node in captured.graph.nodes if node.op == "call_module"]
    assert called == [f"{block}.{part}" for block in range(3) for part in ("layer", "drop")]
    # Per mode one without a gradient of the input, and one with it.
    assert sum(runs) == 4


def test_gradients_and_writes_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = Blocks()
    captured = capture(model, {"x": torch.randn(3, 14, 8)})
    x = torch.randn(5, 9, 8)
    for context in (nullcontext, torch.no_grad):
        results = []
        for module in (model, captured):
            torch.manual_seed(1)
            model.zero_grad()
            with context():
                output = module(x)
            if output.requires_grad:
                output.square().sum().backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            results.append([output.detach(), *gradients])
        torch.testing.assert_close(*results, rtol=0, atol=0)


class Messages(nn.Module):
    """A graph layer: sums the messages along edges into a tensor that it makes itself."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(4, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        sent, to = self.linear(x)[edges[0]], edges[1]
        empty = {
            "zeros": lambda: torch.zeros(5, 4),
            "new_zeros": lambda: x.new_zeros(5, 4),
            "zeros_like": lambda: torch.zeros_like(x),
            "full": lambda: torch.full((5, 4), 0.5),
            "empty": lambda: torch.empty(5, 4).fill_(0.5),
        }
        if self.how in empty:
            return x + empty[self.how]().index_add_(0, to, sent)
        total = torch.zeros(5, 4)
        if self.how == "scatter_add_":
            total.scatter_add_(0, to[:, None].expand_as(sent), sent)
        elif self.how == "index_put_":
            total.index_put_((to,), sent, accumulate=True)
        elif self.how == "item":
            total[to] = sent
        else:
            total = torch.zeros(4, 5).t_().index_add_(0, to, sent).unsqueeze_(0).squeeze_(0)
        return x + total


MAKERS = ["zeros", "new_zeros", "zeros_like", "full", "empty"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [*MAKERS, "scatter_add_", "index_put_", "item", "shape"])
def test_what_a_first_layer_writes_in_place_is_new_in_the_second(how: str) -> None:
    torch.manual_seed(0)
    layers = [Messages(how), Messages(how)]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, edges).relu()
            return x

    model = Network()
    edges = torch.tensor([[0, 1, 2, 3, 4, 1], [1, 0, 3, 2, 1, 4]])
    captured = capture(model, {"x": torch.randn(5, 4), "edges": edges}, strict=True)
    called = [node.target for node in captured.graph.nodes if node.op == "call_module"]
    assert called == ["layers.0.linear", "layers.1.linear"]
    x = torch.randn(5, 4)
    for training in (False, True):
        results = []
        for module in (model.train(training), captured.train(training)):
            model.zero_grad()
            module(x, edges).square().sum().backward()
            results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(*results)
    torch.testing.assert_close(captured(x, edges), model(x, edges))


class EqualInTraining(nn.Module):
    """Model whose two inputs have equal lengths in `train()` only."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            x = x + 0 * y
        return x * 2, y * 2


def test_sizes_that_training_makes_equal_stay_apart_in_eval() -> None:
    model = EqualInTraining().eval()
    graph = capture(model, {"x": torch.ones(3, 4), "y": torch.ones(3, 4)})
    specs = [n.meta["spec"].shape[0] for n in graph.graph.nodes if n.op == "placeholder"]
    assert specs == ["x.shape[0]", "y.shape[0]"]
    given = torch.randn(5, 4), torch.randn(2, 4)
    torch.testing.assert_close(graph(*given), model(*given), rtol=0, atol=0)
    with pytest.raises(GuardError, match=r"x\.shape\[0\] == y\.shape\[0\]"):
        graph.train()(*given)


def test_fake_parameters_change_no_log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[int] = []
    monkeypatch.setattr(logging.Logger, "setLevel", lambda self, level: changes.append(level))
    sizes = Sizes(fx.Graph())
    parameter = nn.Parameter(torch.ones(2, 3).T)
    fake = sizes.fake_member(parameter, torch.bfloat16)
    assert not changes
    assert isinstance(fake, nn.Parameter)
    assert (fake.dtype, fake.stride(), fake.requires_grad) == (torch.bfloat16, (1, 3), True)
    assert not isinstance(sizes.fake_member(torch.ones(2), torch.bfloat16), nn.Parameter)
