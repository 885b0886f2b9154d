"""Plain torch modules: the capture computes what the module computes, in every respect."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.errors import ConfigError, GuardError


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.layers = nn.Sequential(Residual(8), Residual(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.stem(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y, (_, cell) = self.lstm(x)
        z, last = self.gru(y.transpose(0, 1))
        return {"scores": self.head(F.dropout(z, 0.3, self.training)), "cell": cell, "last": last}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.block = nn.Linear(8, 8)
        self.decode = nn.Linear(8, 11, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x % 11)
        for _ in range(3):
            h = torch.tanh(self.block(h))
        return self.decode(h)


@dataclasses.dataclass
class Pair:
    scores: Tensor
    size: int
    extra: tuple[Tensor, Tensor] | None = None


class DataclassOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Pair:
        y = self.layer(x)
        return Pair(y, x.shape[1] // 2, (y.mean(), y.amax(-1)))


class GradientFree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.frozen(x)
            positions = torch.arange(x.shape[1], device=x.device)
        return self.layer(h) + positions[:, None]


class Shapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: float = 2.0, *, bias: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        heads = self.layer(x).view(b, t, 2, d // 2).permute(0, 2, 1, 3)
        scores = heads @ heads.transpose(-1, -2) / (d // 2) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ heads
        y = mixed.transpose(1, 2).reshape(b * t, d)[: b * t - 1].mean(0, keepdim=True)
        return scale * torch.cat([y.expand(t // 2 + 1, d), x[0]]) if bias is None else y + bias


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.gates = nn.ParameterDict({"a": torch.ones(8), "b": torch.zeros(8)})
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)

    def forward(self, x: Any) -> tuple[Tensor, list[Tensor]]:
        if not isinstance(x, Tensor):
            x = torch.as_tensor(x)
        seen = []
        for index, layer in enumerate(self.layers):
            x = layer(x) * (self.gates["a"] if index % 2 else self.scale) + self.gates["b"]
            seen.append(x)
        return x, seen


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        p = 0.4 if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return F.dropout(attended, p=0.2, training=self.training)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        left, right = batch["parts"]
        return self.layer(left + batch["x"]) + right.sum()


def floats(batch: int, length: int) -> dict[str, Any]:
    return {"x": torch.randn(batch, length, 8)}


def images(batch: int, length: int) -> dict[str, Any]:
    return {"x": torch.randn(batch, 3, 16, 16)}


def tokens(batch: int, length: int) -> dict[str, Any]:
    return {"x": torch.randint(0, 100, (batch, length))}


def nested(batch: int, length: int) -> dict[str, Any]:
    x = torch.randn(batch, length, 8)
    return {"batch": {"x": x, "parts": [2 * x, x[:, :1]]}}


CASES: dict[str, tuple[type[nn.Module], Callable[[int, int], dict[str, Any]]]] = {
    "resnet": (ResNet, images),
    "recurrent": (Recurrent, floats),
    "tied": (Tied, tokens),
    "dataclass": (DataclassOutput, floats),
    "gradient_free": (GradientFree, floats),
    "shapes": (Shapes, floats),
    "branches": (Branches, floats),
    "functional_dropout": (FunctionalDropout, floats),
    "nested": (Nested, nested),
}

SIZES = [(3, 14), (5, 9), (1, 20)]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    """A model, its capture and what makes its inputs; tests run copies of both."""
    cls, make = CASES[request.param]
    torch.manual_seed(0)
    model = cls()
    return model, capture(model, make(3, 14)), make


def outputs(model: nn.Module, inputs: dict[str, Any], seed: int = 1) -> list[Tensor]:
    torch.manual_seed(seed)
    return tensors_in(model(**inputs))


@pytest.mark.sampled(3)
def test_same_numbers_at_other_sizes(case: Any) -> None:
    model, captured, make = case
    for batch, length in SIZES:
        inputs = make(batch, length)
        expected = outputs(copy.deepcopy(model).eval(), inputs)
        assert expected
        torch.testing.assert_close(
            outputs(copy.deepcopy(captured).eval(), inputs), expected, rtol=0, atol=0
        )


@pytest.mark.sampled(3)
def test_same_numbers_in_training_from_the_same_seed(case: Any) -> None:
    model, captured, make = case
    if captured.eval_only:
        pytest.skip("refuses training, see the tests of refusals")
    for batch, length in SIZES[:2]:
        inputs = make(batch, length)
        expected = outputs(copy.deepcopy(model).train(), inputs)
        torch.testing.assert_close(
            outputs(copy.deepcopy(captured).train(), inputs), expected, rtol=0, atol=0
        )


@pytest.mark.sampled(3)
def test_same_gradients(case: Any) -> None:
    model, captured, make = case
    inputs = make(2, 11)
    twins = [copy.deepcopy(model).eval(), copy.deepcopy(captured).eval()]
    for twin in twins:
        sum(t.double().square().sum() for t in outputs(twin, inputs) if t.requires_grad).backward()
    theirs, ours = (dict(twin.named_parameters()) for twin in twins)
    assert list(ours) == list(theirs)
    assert any(parameter.grad is not None for parameter in ours.values())
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name].grad, parameter.grad)


@pytest.mark.sampled(3)
def test_same_state(case: Any) -> None:
    model, captured, _ = case
    assert list(captured.state_dict()) == list(model.state_dict())
    for name, parameter in model.named_parameters():
        assert captured.get_parameter(name) is parameter
    assert captured.training == model.training


@pytest.mark.sampled(3)
def test_copies_and_pickles_compute_the_same(case: Any) -> None:
    _, captured, make = case
    inputs = make(4, 7)
    expected = outputs(copy.deepcopy(captured).eval(), inputs)
    for twin in (copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        assert isinstance(twin, CapturedModule)
        assert [n.name for n in twin.graph.nodes] == [n.name for n in captured.graph.nodes]
        assert twin.guards == captured.guards
        torch.testing.assert_close(outputs(twin.eval(), inputs), expected, rtol=0, atol=0)


@pytest.mark.sampled(5)
def test_every_node_says_where_it_comes_from(case: Any) -> None:
    _, captured, _ = case
    calls = [node for node in captured.graph.nodes if "source" in node.meta]
    assert calls
    assert all("test_capture.py:" in node.meta["source"] for node in calls)
    placeholder = next(iter(captured.graph.nodes))
    assert placeholder.meta["spec"] is not None


def test_modules_keep_their_paths() -> None:
    captured = capture(ResNet(), images(3, 0))
    called = [node.target for node in captured.graph.nodes if node.op == "call_module"]
    assert called[:4] == ["stem", "layers.0.conv1", "layers.0.norm1", "layers.0.relu"]
    assert isinstance(captured.layers, nn.Sequential)
    assert type(captured.layers[0].conv1) is nn.Conv2d


def test_shapes_are_described_in_terms_of_the_inputs() -> None:
    captured = capture(Tied(), tokens(3, 14))
    last = next(node for node in captured.graph.nodes if node.target == "decode")
    assert last.meta["spec"].shape == ("x.shape[0]", "x.shape[1]", 11)
    assert last.meta["spec"].dtype is torch.float32
    assert captured.example_inputs["x"].shape == (3, 14)
    assert captured.example_inputs["x"].dummy().shape == (3, 14)


def test_functional_dropout_becomes_a_module_that_the_mode_switches() -> None:
    captured = capture(FunctionalDropout(), floats(3, 14))
    targets = [str(node.target) for node in captured.graph.nodes if node.op == "call_module"]
    assert "functional_dropout_0" in targets
    assert captured.get_submodule("functional_dropout_0").p == 0.2
    assert [captured.train().by_mode_0(), captured.eval().by_mode_0()] == [0.4, 0.0]


def test_an_example_of_batch_one_leaves_the_batch_free() -> None:
    model = Tied()
    captured = capture(model, tokens(1, 14))
    x = tokens(6, 4)["x"]
    torch.testing.assert_close(captured(x), model(x), rtol=0, atol=0)


def test_a_constant_argument_is_fixed_and_said_so() -> None:
    model = Shapes()
    captured = capture(model, floats(3, 14), concrete_args={"scale": 3.0})
    x = floats(2, 6)["x"]
    torch.testing.assert_close(captured(x), model(x, 3.0), rtol=0, atol=0)
    torch.testing.assert_close(captured(x=x, scale=3.0), model(x, 3.0), rtol=0, atol=0)
    with pytest.raises(GuardError, match=r"captured with scale=3\.0") as refusal:
        captured(x=x, scale=1.0)
    assert "got scale=1.0" in str(refusal.value)


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'x'"):
        capture(Shapes(), {"xx": torch.randn(3, 14, 8)})
    with pytest.raises(ConfigError, match="did you mean 'layer'"):
        capture(Shapes(), floats(3, 14), leaves=["layerr"])


def test_a_cast_that_did_nothing_at_capture_does_something_in_half_precision() -> None:
    class Normalize(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            variance = x.float().pow(2).mean(-1, keepdim=True)
            return x * torch.rsqrt(variance).type_as(x)

    captured = capture(Normalize(), {"x": torch.randn(3, 4)})
    x = torch.randn(5, 4).bfloat16()
    torch.testing.assert_close(captured(x), Normalize()(x), rtol=0, atol=0)


def test_devices_of_inputs_are_not_written_down() -> None:
    captured = capture(GradientFree(), floats(3, 14))
    arange = next(node for node in captured.graph.nodes if node.target is torch.arange)
    assert arange.kwargs["device"].target is getattr
    assert "device(" not in captured.code
