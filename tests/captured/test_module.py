"""The captured module as an object, and what a capture leaves behind in the process: nothing."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
import random
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from chop.capture.tracer import capture
from chop.captured.guards.shape_guards import ShapeGuard, compile_guard, guard_holds
from chop.captured.nodes.node_list import NodeRecord, NodeRef, graph_to_nodes, nodes_to_graph
from chop.captured.nodes.targets import function_reference, resolve_reference
from chop.captured.record import CaptureWarning
from chop.captured.runtime import AutogradCall, ByMode
from chop.captured.specs import TensorSpec
from chop.errors import CaptureError, GraphError, GuardError
from tests.subcases import subcases


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 3)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        x = self.embed(ids)
        if mask is not None:
            x = x * mask[..., None]
        logits = self.head(self.dropout(x.mean(1)))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def example(**more: Tensor) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, 50, (3, 7)), **more}


def test_the_signature_is_the_inputs_that_were_asked_for() -> None:
    model = Classifier().eval()
    inputs = example(labels=torch.tensor([0, 1, 2]), mask=torch.ones(3, 7))
    captured = capture(model, inputs, input_names=["labels", "ids"])
    assert list(inspect.signature(captured.forward).parameters) == ["ids", "labels"]
    assert captured.ignored_inputs == ("mask", "segments")
    ids, labels = inputs["ids"], inputs["labels"]
    expected = model(ids, labels=labels)
    torch.testing.assert_close(captured(ids, labels), expected, rtol=0, atol=0)
    dropped = captured(ids=ids, labels=labels, segments=None, mask=None)
    torch.testing.assert_close(dropped["loss"], expected["loss"], rtol=0, atol=0)


class Guarded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.guards, self.constants = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.guards(x) * self.constants


def test_entries_of_the_record_are_attributes_where_the_model_has_no_such_member() -> None:
    captured = capture(Classifier().eval(), example())
    for name in ("class_name", "example_inputs", "ignored_inputs", "auto_leaves", "guards"):
        assert getattr(captured, name) is getattr(captured.record, name)
    captured.guessed = True  # type: ignore[assignment]
    assert captured.record.guessed is True and "guessed" not in vars(captured)
    assert not hasattr(captured, "config")
    model, x = Guarded().eval(), torch.randn(2, 3)
    captured = capture(model, {"x": x})
    for twin in (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        assert isinstance(twin.guards, nn.Linear) and isinstance(twin.constants, nn.Parameter)
        assert twin.record.class_name == twin.class_name == "Guarded"
        assert torch.equal(twin(x), model(x))


def test_missing_and_unknown_inputs_are_refused() -> None:
    captured = capture(Classifier(), example(mask=torch.ones(3, 7)))
    with pytest.raises(GuardError, match=r"captured with the inputs ids, mask, got no mask"):
        captured(example()["ids"])
    with pytest.raises(TypeError, match="typo"):
        captured(**example(mask=torch.ones(3, 7)), typo=1)


def test_nodes_can_be_deleted_and_modules_swapped() -> None:
    model = Classifier()
    captured = capture(model, example())
    for node in list(captured.graph.nodes):
        if node.op == "call_module" and "dropout" in node.target:
            node.replace_all_uses_with(node.args[0])
            captured.graph.erase_node(node)
    captured.head = nn.Linear(8, 5)
    captured.recompile()
    inputs = example()
    assert captured(**inputs)["logits"].shape == (3, 5)
    twin = pickle.loads(pickle.dumps(captured))
    torch.testing.assert_close(twin(**inputs), captured(**inputs), rtol=0, atol=0)
    assert model.head.out_features == 3


def test_a_part_of_the_model_cannot_be_called_alone() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Classifier()

        def forward(self, ids: Tensor) -> Tensor:
            return self.inner(ids)["logits"]

    captured = capture(Wrapper(), example())
    with pytest.raises(GraphError, match="one of its Classifier"):
        captured.inner(example()["ids"])
    assert "Classifier(" in repr(captured)


def test_the_node_list_makes_the_same_graph() -> None:
    captured = capture(Classifier(), example())
    records = graph_to_nodes(captured.graph)
    assert records[0] == NodeRecord("placeholder", "ids", "ids", (), {})
    assert records[1].args == (NodeRef("ids"),)
    again = nodes_to_graph(records)
    again.lint()
    assert graph_to_nodes(again) == records


@pytest.mark.parametrize(
    "function",
    [operator.add, torch.cat, torch.nn.functional.max_pool2d, getattr, max, torch.Tensor.add],
)
def test_functions_are_found_by_name(function: Any) -> None:
    assert resolve_reference(function_reference(function)) is function


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="top level of a module"):
        function_reference(lambda x: x)
    graph = fx.Graph()
    graph.call_function(lambda: 1)
    with pytest.raises(ValueError, match="an importable function"):
        graph_to_nodes(graph)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_autograd_functions_are_found_by_name() -> None:
    call = AutogradCall(Square)
    assert resolve_reference(function_reference(call)) == call
    assert hash(resolve_reference(function_reference(call))) == hash(call)


def test_guards_are_arithmetic_on_shapes_and_nothing_else() -> None:
    given = {"x": torch.zeros(3, 14)}
    assert guard_holds(
        compile_guard(ShapeGuard("x.shape[1] % 2 == 0 and x.shape[0] < 4", "")), given
    )
    assert not guard_holds(compile_guard(ShapeGuard("max(x.shape[0], 20) == 3", "")), given)
    assert not guard_holds(compile_guard(ShapeGuard("x.shape[2] == 3", "")), given)
    for expression in ("__import__('os')", "x.__class__", "[1]", "x.shape.count(1)", "print(1)"):
        with pytest.raises(CaptureError, match="arithmetic on shapes"):
            compile_guard(ShapeGuard(expression, ""))


@subcases(
    "expression",
    [
        *("x.shape * 9999999999 == 1", "'a' * 9999999999 == 'a'", "1 << 2 == 4"),
        *("math.factorial(200000000) == 1", "math.comb(9, 3) == 84", "x.shape[0:1] == 3"),
        *("int('9') == 9", "max(key=1)", "x.shape[x.shape[0]] == 1", "torch.load('x')"),
        *("-" * 90_000 + "1", "(" * 500, "1+" * 60_000 + "1", "9" * 5000, "x.shape[0].real"),
    ],
    ids=lambda text: text[:30],
)
def test_guards_that_could_build_something_large_are_refused(expression: str) -> None:
    start = time.process_time()
    with pytest.raises(CaptureError, match="arithmetic on shapes"):
        compile_guard(ShapeGuard(expression, ""))
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "expression",
    [
        *("9**9**9**9 > 0", "x.shape[0]**x.shape[1]**99 > 0", "round(12345, -1000000000) == 0"),
        *("9**600*9**600*9**600 > 0", "2**-99999999 < 1", "2.5**9999 > 0", "1 // 0 == 0"),
        "x * 9 == x",
    ],
)
def test_numbers_in_guards_stay_small(expression: str) -> None:
    start = time.process_time()
    assert not guard_holds(compile_guard(ShapeGuard(expression, "")), {"x": torch.zeros(3, 14)})
    assert time.process_time() - start < 1


class WideEnough(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.shape[1] ** 0.5 > 2.5 else x


def test_a_guard_may_take_roots_of_sizes() -> None:
    captured = capture(WideEnough(), {"x": torch.zeros(2, 9)})
    assert captured(torch.zeros(3, 7)).shape == (3, 7)
    with pytest.raises(GuardError, match=r"captured for .*0\.5.* > 2\.5"):
        captured(torch.zeros(3, 6))


def test_a_spec_rebuilds_a_dummy() -> None:
    spec = TensorSpec.of(torch.tensor([[3, 9], [5, 4]]))
    dummy = spec.dummy(torch.Generator().manual_seed(0))
    assert (dummy.shape, dummy.dtype) == ((2, 2), torch.int64)
    assert dummy.min() >= 3
    assert dummy.max() <= 9
    with pytest.raises(CaptureError, match="numeric sizes"):
        TensorSpec(("x.shape[0]", 3), torch.float32).dummy()


def test_by_mode_follows_its_own_mode() -> None:
    both = nn.ModuleDict({"a": ByMode(1, 2), "b": ByMode(3, 4)})
    both["a"].eval()
    assert (both["a"](), both["b"]()) == (2, 3)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("count", torch.zeros(()))
        self.cache: dict[str, Tensor] = {}
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.last = self.norm(x) + torch.randn_like(x)
        self.cache["x"] = x
        self.fresh = x
        return self.last


def test_a_capture_changes_neither_the_model_nor_the_process() -> None:
    model = Stateful()
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = {"x": torch.randn(3, 8)}
    draws, python_draws = torch.get_rng_state(), random.getstate()
    numpy_draws = np.random.get_state()[1].copy()
    patched = [nn.Module.__call__, torch.autograd.Function.apply.__func__, torch.from_numpy]
    with pytest.warns(CaptureWarning, match=r"sets Stateful\.cache .*Stateful\.fresh .*\.last"):
        capture(model, inputs)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert (model.last, model.cache, hasattr(model, "fresh")) == (None, {}, False)
    assert (model.training, model.norm.training) == (True, False)
    assert torch.equal(torch.get_rng_state(), draws)
    assert random.getstate() == python_draws
    assert np.array_equal(np.random.get_state()[1], numpy_draws)
    now = [nn.Module.__call__, torch.autograd.Function.apply.__func__, torch.from_numpy]
    assert now == patched


def test_a_failed_capture_cleans_up_too() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.left = x
            raise KeyError("no")

    model = Fails()
    patched = (nn.Module.__call__, torch.from_numpy)
    with pytest.raises(CaptureError, match="KeyError"):
        capture(model, {"x": torch.randn(3, 8)})
    assert (nn.Module.__call__, torch.from_numpy) == patched
    assert not hasattr(model, "left")
    assert isinstance(nn.Linear(2, 2)(torch.ones(1, 2)), Tensor)


def test_no_warnings_in_normal_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = capture(Classifier(), example())
    assert captured.auto_leaves == ()
