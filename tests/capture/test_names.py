"""Members of a model that are called as the captured module's own attributes are."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import Tensor, fx, nn

from chop import MaseGraph, passes
from chop.capture.tracer import capture
from chop.captured.module import CapturedModule
from chop.errors import CaptureError

OF_TORCH_FX = ("graph", "code", "meta", "recompile", "train_")
OF_NO_CODE = (
    "class",
    "None",
    "in",
    "lambda",
    "self",
    "print",
    "a b",
    "0",
    'say "x"',
    "\ufb01",
    "torch",
)
OWN = ("guards", "class_name", "config", "example_inputs", "eval_only", "record", "_record")


class Named(nn.Module):
    """A child, a parameter and a buffer below each other, all of one name."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.name, self.kind = name, kind
        self.first = nn.Linear(4, 4)
        if kind == "child":
            self.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        elif kind == "parameter":
            self.register_parameter(name, nn.Parameter(torch.randn(4)))
        else:
            self.register_buffer(name, torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        member = getattr(self, self.name)
        return member(self.first(x)) if self.kind == "child" else self.first(x) * member


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("kind", ["child", "parameter", "buffer"])
@pytest.mark.parametrize("name", [*OF_TORCH_FX, *OWN, *OF_NO_CODE])
@pytest.mark.sampled(3)
def test_names_of_the_model_survive(name: str, kind: str) -> None:
    model, x = Named(name, kind).eval(), torch.randn(2, 4)
    captured = capture(model, {"x": x})
    assert captured.state_dict().keys() == model.state_dict().keys()
    twins = (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured)))
    for twin in twins:
        assert torch.equal(twin(x), model(x))
        twin.load_state_dict(model.state_dict())
        assert isinstance(twin.graph, fx.Graph)
    assert list(inspect.signature(captured.forward).parameters) == ["x"]
    assert list(captured.record.example_inputs) == ["x"]
    if name in OWN and name != "_record" and name != "record":
        assert (
            getattr(captured, name)
            is getattr(captured, f"_{kind}s".replace("childs", "modules"))[name]
        )


@pytest.mark.parametrize("name", ["graph", "guards", "class", "naïve b"])
def test_passes_and_checkpoints_work_on_such_a_model(name, tmp_path) -> None:
    model, x = Named(name, "child").eval(), torch.randn(2, 4)
    mg = MaseGraph(model, dummy_in={"x": x})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": x}})
    config = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    small, info = passes.quantize_transform_pass(mg, config)
    assert info["quantized"] == 2
    assert small.model.state_dict().keys() == model.state_dict().keys()
    assert small.get_module(small.nodes[2]) is small.model.get_submodule(f"{name}.0")
    small.export(tmp_path / "named")
    again = MaseGraph.from_checkpoint(tmp_path / "named")
    assert torch.equal(again.model(x), small.model(x))
    assert not torch.equal(again.model(x), model(x))


@pytest.mark.parametrize("name", ["class_name", "guards", "graph"])
def test_names_below_the_root_survive(name: str) -> None:
    model, x = Holder(Named(name, "child")).eval(), torch.randn(2, 4)
    captured = capture(model, {"x": x})
    assert torch.equal(captured(x), model(x))
    assert captured.state_dict().keys() == model.state_dict().keys()
    assert "Named(" in repr(captured)


@pytest.mark.parametrize("name", ["class", "self", "a'b\\"])
def test_code_of_any_names_holds_outside_of_the_module(name: str) -> None:
    model, x = Holder(Named(name, "parameter")).eval(), torch.randn(2, 4)
    graph = copy.deepcopy(capture(model, {"x": x}).graph)
    assert torch.equal(fx.GraphModule(model, graph)(x), model(x))


class Shadowing(nn.Module):
    """Its inputs have the names of what generated code calls."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("0", nn.Linear(4, 4))

    def forward(self, torch: Tensor, getattr: Tensor, slice: Tensor | None = None) -> Tensor:
        y = self._modules["0"](torch)[..., :3] * nn.functional.elu(getattr)[:, :3]
        return y if slice is None else y.masked_fill(slice, float("inf"))


@pytest.mark.parametrize("names", [("torch", "getattr"), ("torch", "getattr", "slice")])
def test_inputs_do_not_hide_what_the_code_calls(names: tuple[str, ...]) -> None:
    given = {"torch": torch.randn(2, 4), "getattr": torch.randn(2, 4)}
    given |= {"slice": torch.rand(2, 3) > 0.5} if "slice" in names else {}
    model = Shadowing().eval()
    captured = capture(model, given)
    assert tuple(inspect.signature(captured.forward).parameters) == names
    for twin in (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        assert torch.equal(twin(**given), model(**given))
        assert torch.equal(twin(*given.values()), model(**given))


@pytest.mark.parametrize("name", ["class", "a b", "0", "\ufb01"])
def test_inputs_that_no_function_can_have_are_refused(name: str) -> None:
    class Open(nn.Module):
        def forward(self, x: Tensor, **inputs: Tensor) -> Tensor:
            return x + inputs[name]

    with pytest.raises(CaptureError, match=f"Python identifier .*, got '{name}'; rename it"):
        capture(Open(), {"x": torch.ones(2), name: torch.ones(2)})


def test_a_name_that_no_graph_can_reach_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.extra_repr = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self._modules["extra_repr"](x)

    with pytest.raises(
        CaptureError, match="inner.extra_repr has the name of an attribute of its class Odd"
    ):
        capture(Holder(Odd()), {"x": torch.randn(2, 4)})


def test_constants_of_a_captured_graph_do_not_take_each_others_names() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("_tensor_constant0", torch.tensor([1.0, 2.0]))
            self.table = torch.tensor([10.0, 20.0])

        def forward(self, x: Tensor) -> Tensor:
            return x * self._tensor_constant0 + self.table

    model, x = Constant(), torch.randn(3, 2)
    captured = capture(model, {"x": x})
    assert torch.equal(captured(x), model(x))
    assert isinstance(captured, CapturedModule)
    assert captured.state_dict().keys() == model.state_dict().keys()


def test_modules_that_the_graph_adds_do_not_take_the_place_of_the_models_own() -> None:
    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.functional_dropout_0 = nn.Linear(4, 4)
            self.by_mode_0 = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.dropout(self.functional_dropout_0(x), 0.5, self.training)
            return self.by_mode_0(x) * (2.0 if self.training else 1.0)

    model, x = Switching().eval(), torch.randn(3, 4)
    captured = capture(model, {"x": x})
    for train in (False, True):
        torch.manual_seed(0)
        expected = model.train(train)(x)
        torch.manual_seed(0)
        assert torch.equal(captured.train(train)(x), expected)
    assert captured.state_dict().keys() == model.state_dict().keys()


class Argument(nn.Module):
    """A model with inputs of the names that a recorder gives its own arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, module: Tensor, function: Tensor) -> Tensor:
        return self.fc(module) + function


def test_inputs_have_any_names() -> None:
    model = Argument()
    given = {"module": torch.ones(3, 4), "function": torch.ones(3, 2)}
    mg = MaseGraph(model, dummy_in=given)
    torch.testing.assert_close(mg.model(**given), model(**given))
