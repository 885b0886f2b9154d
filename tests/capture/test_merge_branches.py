"""State that only training writes: a graph has the operators of both modes."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.module import CapturedModule
from chop.captured.nodes.modes import MODE
from chop.captured.record import CaptureWarning
from chop.captured.runtime import by_mode
from chop.errors import CaptureError, GuardError
from chop.ir import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.passes import quantize_transform_pass
from tests.capture.training_state import (
    MODELS,
    WIDTH,
    Auxiliary,
    Codebook,
    EmaTeacher,
    Normed,
    Queue,
    ReplacedAverage,
    Ring,
    RunningCenter,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:capture of .* (writes to its parameters|ring .*became a leaf)"
)

INTEGER = {
    **{f"{operand}_width": 8 for operand in ("data_in", "weight", "bias", "data_out")},
    **{f"{operand}_frac_width": 5 for operand in ("data_in", "weight", "bias", "data_out")},
}


def made(cls: type[nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return cls(), torch.randn(4, WIDTH)


def quantized(mg: MaseGraph, name: str = "integer") -> MaseGraph:
    by_name = {"integer": INTEGER, "mxint": {"data_in_width": 8, "weight_width": 8}}
    config = {"name": name, **by_name[name]}
    args = {"by": "type", "default": {"config": {"name": None}}, "linear": {"config": config}}
    mg, _ = quantize_transform_pass(mg, args)
    return mg


def assert_trains_alike(graph: nn.Module, model: nn.Module, modes: str = "101100") -> None:
    """Steps of training (1) and calls in evaluation (0), with equal results and state."""
    members = dict(graph.named_parameters())
    for step, mode in enumerate(modes):
        x = torch.randn(4, WIDTH)
        results = []
        for module in (graph, model):
            module.train(mode == "1").zero_grad()
            torch.manual_seed(step)
            given = x.clone().requires_grad_()
            y = module(given)
            parts = y if isinstance(y, tuple) else (y,)
            if mode == "1":
                sum(part.square().sum() for part in parts).backward()
            results.append((*parts, given.grad))
        torch.testing.assert_close(*results)
        state = graph.state_dict()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor)
        for name, parameter in model.named_parameters():
            assert (parameter.grad is None) == (members[name].grad is None), name
            if parameter.grad is not None:
                torch.testing.assert_close(members[name].grad, parameter.grad)
                with torch.no_grad():
                    for each in (parameter, members[name]):
                        each.sub_(0.1 * each.grad)


@pytest.mark.parametrize("cls", MODELS)
@pytest.mark.sampled(1)
def test_both_modes_are_those_of_the_model(cls: type[nn.Module]) -> None:
    model, x = made(cls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        captured = capture(copy.deepcopy(model), {"x": x})
    assert captured.eval_only is None
    assert_trains_alike(captured, model)
    for twin in (copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        assert_trains_alike(twin, copy.deepcopy(model), "10")


@pytest.mark.parametrize("cls", MODELS)
@pytest.mark.sampled(1)
def test_quantized_training_is_that_of_the_quantized_model(
    cls: type[nn.Module], tmp_path: Path
) -> None:
    model, x = made(cls)
    mg = quantized(MaseGraph(copy.deepcopy(model), dummy_in={"x": x}))
    for path, module in list(model.named_modules()):
        found = dict(mg.model.named_modules())[path]
        if isinstance(found, QuantizedOperator):
            model.set_submodule(path, type(found).from_float(module, found.spec))
    assert sum(isinstance(m, QuantizedOperator) for m in model.modules()) >= 2
    assert_trains_alike(mg.model, model)
    mg.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph", allow=[Ring])
    for parameter, other in zip(model.parameters(), again.model.parameters(), strict=True):
        assert parameter.requires_grad == other.requires_grad
    assert_trains_alike(again.model, model, "0110")
    assert_trains_alike(copy.deepcopy(again.model), copy.deepcopy(model), "10")


def test_evaluation_has_no_choice_where_training_writes_what_both_read() -> None:
    captured = capture(*with_inputs(RunningCenter))
    assert not any(node.target is by_mode for node in captured.graph.nodes)
    assert {node.name for node in captured.graph.nodes if MODE in node.meta} >= {"mul_", "add_"}


def with_inputs(cls: type[nn.Module]) -> tuple[nn.Module, dict[str, Tensor]]:
    model, x = made(cls)
    return model, {"x": x}


def test_a_frozen_part_stays_in_evaluation() -> None:
    model, x = made(Normed)
    captured = capture(copy.deepcopy(model), {"x": x}, strict=True)
    for module in (model, captured):
        module.train()
        module.get_submodule("norm").eval()
    x = torch.randn(4, WIDTH)
    torch.testing.assert_close(captured(x), model(x))
    state = captured.state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state[name], tensor)
    assert torch.equal(state["norm.mean"], torch.zeros(WIDTH))
    assert not torch.equal(state["out.mean"], torch.zeros(WIDTH))


def test_a_part_without_a_module_of_its_own_follows_the_model() -> None:
    captured = capture(*with_inputs(EmaTeacher))
    paths = {node.meta[MODE] for node in captured.graph.nodes if MODE in node.meta}
    assert paths == {(True, "")}


def test_sizes_that_training_asks_for_bind_training_alone() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("rows", torch.zeros(8, WIDTH))
            self.rows: Tensor

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                assert self.rows.shape[0] % x.shape[0] == 0
                self.rows[: x.shape[0]] = x.detach()
            y: Tensor = self.layer(x)
            return y

    model = Rows()
    captured = capture(model, {"x": torch.randn(4, WIDTH)}, strict=True)
    for rows in (3, 5, 11):
        x = torch.randn(rows, WIDTH)
        torch.testing.assert_close(captured.eval()(x), model.eval()(x))
    x = torch.randn(2, WIDTH)
    torch.testing.assert_close(captured.train()(x), model.train()(x))
    with pytest.raises(GuardError, match="test_merge_branches.py"):
        captured(torch.randn(3, WIDTH))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_dtype(dtype: torch.dtype) -> None:
    model, x = made(Codebook)
    captured = capture(copy.deepcopy(model), {"x": x}, strict=True).to(dtype)
    model, x = model.to(dtype), x.to(dtype)
    for training in (True, False, True):
        result, expected = captured.train(training)(x), model.train(training)(x)
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(captured.state_dict()["codes"], model.state_dict()["codes"])


@pytest.mark.long
def test_a_submodule_with_layers_is_seen_through() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), RunningCenter(), Codebook())
    captured = capture(copy.deepcopy(model), {"input": torch.randn(4, WIDTH)}, strict=True)
    called = [node.target for node in captured.graph.nodes if node.op == "call_module"]
    assert called == ["0", "1.first", "1.last", "2.encoder", "2.decoder"]
    assert_trains_alike(captured, model)


@pytest.mark.long
def test_steps_of_torch_compile_are_those_of_the_graph() -> None:
    model, x = made(RunningCenter)
    captured = capture(model, {"x": x}, strict=True)
    twin = copy.deepcopy(captured)
    compiled: Any = torch.compile(twin, backend="eager")
    for training in (True, False, True):
        result, expected = compiled.train(training)(x), captured.train(training)(x)
        torch.testing.assert_close(result, expected)
    torch.testing.assert_close(twin.state_dict()["mean"], captured.state_dict()["mean"])


def test_erased_and_replaced_nodes_are_those_of_both_modes() -> None:
    model, x = made(Queue)
    mg = MaseGraph(model, dummy_in={"x": x})
    (layer,) = (node for node in mg.nodes if node.target == "query")
    with torch.no_grad():
        wide = nn.Linear(WIDTH, 3)
        wide.weight.copy_(2 * model.get_submodule("query").weight)
    mg.replace(layer, wide)
    assert mg.model.train()(x).shape == (4, 17)
    assert mg.model.eval()(x).shape == (4, 16)
    other = MaseGraph(RunningCenter(), dummy_in={"x": x})
    (relu,) = (node for node in other.nodes if node.target == "relu")
    other.erase(relu)
    graph: CapturedModule = other.model
    for training in (False, True):
        y = graph.train(training)(x)
        kept = graph.state_dict()
        h = graph.get_submodule("first")(x) - kept["mean"]
        torch.testing.assert_close(y, graph.get_submodule("last")(h))


class ReturnsOld(ReplacedAverage):
    def forward(self, x: Tensor) -> Any:
        old = self.mean
        return super().forward(x), old


class SharesData(EmaTeacher):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.teacher.weight.data = self.student.weight.data
        y: Tensor = self.head(self.student(x))
        return y


class Grows(RunningCenter):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = torch.cat([self.mean, x.detach()[0]])
        y: Tensor = self.last(self.first(x))
        return y


class KeepsHistory(RunningCenter):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.mean(0)
        y: Tensor = self.last(h)
        return y


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cls", [ReturnsOld, SharesData, Grows, KeepsHistory])
def test_what_is_no_copy_is_evaluated_only(cls: type[nn.Module]) -> None:
    model, x = made(cls)
    with pytest.raises(CaptureError, match="replaces"):
        capture(model, {"x": x}, strict=True)
    with pytest.warns(CaptureWarning, match=r"supports eval\(\) only: the model replaces"):
        captured = capture(model, {"x": x})
    torch.testing.assert_close(captured.eval()(x), model.eval()(x))
    with pytest.raises(GuardError, match="move these lines into a submodule"):
        captured.train()(x)


def test_results_of_another_structure() -> None:
    model, x = made(Auxiliary)
    captured = capture(model, {"x": x}, strict=True)
    assert isinstance(captured.train()(x), tuple)
    assert isinstance(captured.eval()(x), Tensor)


class Part(nn.Module):
    """Counts its steps, keeps an average, or adds to its result while it trains."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(WIDTH, WIDTH)
        self.register_buffer("state", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if self.training:
            if self.kind == "branch":
                h = h + self.layer(h)
            elif self.kind == "counter":
                self.state += 1
            else:
                self.state.lerp_(h.detach().mean(), 0.5)
        return h * (1 + self.state)


class WithParts(nn.Module):
    """Two parts whose modes may differ."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.one, self.two = Part(kind), Part(kind)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu())


@pytest.mark.parametrize("kind", ["branch", "counter", "average"])
def test_a_part_follows_its_own_mode(kind: str) -> None:
    torch.manual_seed(0)
    model, x = WithParts(kind), torch.randn(4, WIDTH)
    graph = capture(copy.deepcopy(model), {"x": x})
    for whole, part, mode in [(True, "one", False), (False, "two", True), (True, "two", False)]:
        results = []
        for module in (graph, model):
            module.train(whole).get_submodule(part).train(mode)
            results.append(module(x))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(dict(graph.state_dict()), dict(model.state_dict()))
