"""Graphs in onnxruntime behind the interface of their module."""

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError, GuardError

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(4))
INTEGER = {"name": "scale_integer", "width": 8}


class Pair(NamedTuple):
    hidden: torch.Tensor
    rest: dict


class Net(nn.Module):
    """Nested results, an optional input and a size that the graph fixes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, shift=None):
        hidden = torch.relu(self.first(x))
        hidden = hidden if shift is None else hidden + shift
        return Pair(hidden, {"logits": [self.second(hidden), None]})


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x), self.head.weight


class Counts(nn.Linear):
    def forward(self, x):
        return super().forward(x), x.shape[0]


class Shifts(nn.Linear):
    def forward(self, x):
        return super().forward(x.add_(1))


def quantized(net, names=("x",), data_in=INTEGER):
    example = dict.fromkeys(names, X) | ({"shift": torch.ones(16)} if "shift" in names else {})
    config = {"weight": INTEGER, **({"data_in": data_in} if data_in else {})}
    rules = {"by": "type", "default": {"config": config}}
    mg, _ = passes.quantize_transform_pass(MaseGraph(net.eval(), dummy_in=example), rules)
    return passes.calibrate_transform_pass(mg, {"batches": [example]})[0]


def in_onnxruntime(mg):
    return passes.freeze_transform_pass(mg, {"engine": "onnxruntime"})[1]["compiled"]


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(3)
    return quantized(Net(), ("x", "shift"))


@pytest.mark.sampled(1)
@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 5, 9])
def test_results_have_the_structure_and_the_values_of_the_graph(graph, rows):
    x, shift = torch.cat([X, X])[:rows].flip(0), torch.rand(16)
    model = in_onnxruntime(graph)
    expected = graph.model.eval()(x, shift)
    for got in (
        model(x, shift),
        model(shift=shift, x=x),
        pickle.loads(pickle.dumps(model))(x, shift),
    ):
        assert type(got) is Pair and list(got.rest) == ["logits"] and got.rest["logits"][1] is None
        torch.testing.assert_close(got.hidden, expected.hidden, rtol=1e-5, atol=1e-5)
        step = expected.rest["logits"][0].abs().max() / 100
        torch.testing.assert_close(
            got.rest["logits"][0], expected.rest["logits"][0], rtol=0, atol=step
        )


def test_the_module_has_constants_only(graph):
    mg = graph.copy()
    model = in_onnxruntime(mg)
    before = model(X, torch.ones(16)).hidden
    with torch.no_grad():
        mg.model.first.weight.zero_()
    assert not [*model.parameters(), *model.state_dict()] and not model.training
    assert torch.equal(model(X, torch.ones(16)).hidden, before)
    assert torch.equal(copy.deepcopy(model)(X, torch.ones(16)).hidden, before)


CALLS = {
    "another size": (GuardError, "x.shape", lambda m: m(X[:, :7], torch.ones(16))),
    "another dtype": (GuardError, "double", lambda m: m(X.double(), torch.ones(16))),
    "a missing input": (GuardError, "got no shift", lambda m: m(X)),
    "an unknown input": (GuardError, "labels", lambda m: m(X, torch.ones(16), labels=X)),
    "a gradient": (ConfigError, "computes none", lambda m: m(X, torch.ones(16).requires_grad_())),
    "autocast": (ConfigError, "float32", lambda m: _under_autocast(m)),
    "training": (ConfigError, "train", lambda m: copy.copy(m).train()(X, torch.ones(16))),
}


def _under_autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        return model(X, torch.ones(16))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CALLS)
def test_calls_that_it_cannot_answer_are_refused(graph, case):
    """Also after a call with inputs of the same shapes."""
    error, text, call = CALLS[case]
    model = in_onnxruntime(graph)
    for _ in range(2):
        with pytest.raises(error, match=text):
            call(model)
        model(X, torch.ones(16))


@torch.no_grad()
def test_guards_are_checked_once_for_each_combination_of_shapes(graph, monkeypatch):
    model, shift = in_onnxruntime(graph), torch.ones(16)
    expected = [model(X, shift).hidden, model(x=X, shift=shift).hidden]
    names = []
    monkeypatch.setattr(model._model[0], "check_inputs", lambda given: names.append([*given]))
    again = [model(X, shift).hidden, model(x=X, shift=shift).hidden]
    assert names == [] and all(map(torch.equal, again, expected))
    model(shift=shift, x=X)
    model(X[:2], shift)
    model(X[:2], shift)
    assert names == [["shift", "x"], ["x", "shift"]]


@torch.no_grad()
def test_remembered_calls_are_not_pickled(graph):
    class Local(torch.Tensor):
        """Class that pickles cannot name."""

    model, shift = in_onnxruntime(graph), torch.ones(16)
    expected = model(X.as_subclass(Local), shift).hidden
    assert torch.equal(pickle.loads(pickle.dumps(model))(X, shift).hidden, expected)


GRAPHS = {
    "inputs in a format of no engine": (
        "ONNX lacks",
        lambda: quantized(Net(), data_in={"name": "mxint"}),
    ),
    "numbers as results": ("return them as tensors", lambda: quantized(Counts(8, 8))),
    "a quantized weight as a result": ("returns a quantized weight", lambda: quantized(Tied())),
    "a written input": ("clone it in forward", lambda: quantized(Shifts(8, 8))),
    "bfloat16": ("float32", lambda: _cast(quantized(nn.Linear(8, 8), ("input",)))),
}


def _cast(mg):
    mg.model.bfloat16()
    return mg


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_that_it_cannot_compute_are_refused(case):
    text, make = GRAPHS[case]
    with pytest.raises((ConfigError, GraphError), match=text):
        in_onnxruntime(make())


def test_compilers_exclude_one_another(graph):
    with pytest.raises(ConfigError, match="choose one of them"):
        passes.freeze_transform_pass(graph, {"engine": "onnxruntime", "compile": True})
    with pytest.raises(ConfigError, match="engine"):
        passes.freeze_transform_pass(graph, {"engine": "tensorrt"})


def test_a_loss_is_none_and_other_sizes_are_those_of_the_graph(caplog):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 16)
    config = BertConfig(vocab_size=20, num_hidden_layers=1, num_attention_heads=2, **sizes)
    config.max_position_embeddings = 40
    ids, labels = torch.arange(8).reshape(2, 4), torch.tensor([0, 1])
    example = {"input_ids": ids, "labels": labels}
    mg = MaseGraph(BertForSequenceClassification(config).eval(), dummy_in=example)
    rules = {"by": "type", "linear": {"config": {"weight": INTEGER}}}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    model = in_onnxruntime(mg)
    assert "other sizes" not in caplog.text
    longer = {"input_ids": torch.arange(18).reshape(3, 6) % 20, "labels": labels[[0, 1, 1]]}
    for inputs in (example, longer):
        with torch.no_grad():
            expected, got = mg.model(**inputs), model(**inputs)
        assert type(got) is type(expected) and got.loss is None
        torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-5)
    ignored = torch.zeros_like(ids)
    assert torch.equal(model(**example, token_type_ids=ignored).logits, model(**example).logits)
    with pytest.raises(GuardError, match="token_type_ids"):
        model(**example, token_type_ids=ignored + 1)
    with pytest.raises(GuardError, match="input_ids"):
        model(input_ids=torch.zeros(1, 41, dtype=torch.long), labels=labels[:1])
