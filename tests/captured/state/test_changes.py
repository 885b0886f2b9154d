"""A call follows, refuses or warns of changes after the capture to what a model's Python reads."""

from __future__ import annotations

import copy
import gc
import importlib
import sys
import warnings
import weakref
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chop import MaseGraph
from chop.captured.module import CapturedModule
from chop.captured.state.outer_values import OuterValueWarning
from chop.captured.state.places import Places
from chop.errors import GuardError

FILES = ("model", "attributes", "objects", "files")


def loaded() -> Namespace:
    """The cases, with values and classes of their own, since they change these."""
    for name in FILES:
        sys.modules.pop(f"tests.captured.state.changes.{name}", None)
    model, *files = (importlib.import_module(f"tests.captured.state.changes.{x}") for x in FILES)
    cases = {name: case for file in files for name, case in file.CASES.items()}
    last = files[-1]
    return Namespace(Base=model.Base, CASES=cases, UNREAD=last.UNREAD, reads_much=last.reads_much)


NAMES, UNREAD = list(loaded().CASES), list(loaded().UNREAD)
SHORT = {
    *("number", "later, a child", "key with a default", "parameter in a list", "weak dictionary"),
    *("class of the model", "queue of a file", "environment, by getenv"),
}


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    monkeypatch.setattr(F, "softsign", F.softsign)
    for name in ("CHOP_TEST_SCALE", "CHOP_TEST_OTHER"):
        monkeypatch.setenv(name, "1")
        monkeypatch.delenv(name)
    yield loaded()
    del sys.modules["settings_of_the_test"]


def captured(
    changes: Namespace, forward: Callable[[Any, Tensor], Tensor]
) -> tuple[nn.Module, CapturedModule, Tensor]:
    """A model, and its graph."""
    cls = type("Model", (changes.Base,), {"forward": forward})
    torch.manual_seed(0)
    model, x = cls().eval(), torch.rand(2, 4) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, MaseGraph(model, dummy_in={"x": x}).model, x


def outcome(graph: nn.Module, x: Tensor, expected: Tensor) -> str:
    """Returns the outcome of a call after a change: followed, refused, warned or silent."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = graph(x)
            found = found if isinstance(found, Tensor) else found[0]
        except GuardError:
            return "refused"
    if any(issubclass(each.category, OuterValueWarning) for each in caught):
        return "warned"
    assert not caught
    same = found.dtype == expected.dtype and found.equal(expected)
    return "followed" if same else "silent"


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.long] * (x not in SHORT)) for x in NAMES]
)
def test_what_changes_the_model_is_followed_or_said(changes: Namespace, name: str) -> None:
    case = changes.CASES[name]
    model, graph, x = captured(changes, case.forward)
    twin = copy.deepcopy(graph).train()
    before = model(x)
    assert outcome(graph, x, before) == outcome(twin, x, before) == "followed"
    case.change(model)
    after = model(x)
    silent = name in ("requires_grad", "parameter of a layer")  # of the example alone
    assert (
        case.outcome == "followed"
        or silent
        or not before.equal(after)
        or before.dtype != after.dtype
    )
    for _ in range(2):
        assert outcome(graph, x, after) == case.outcome
    if case.outcome == "warned" and name != "requires_grad":
        assert outcome(twin, x, after) == "warned"


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.sampled(2)
def test_what_the_model_does_not_read_is_not_said(changes: Namespace, name: str) -> None:
    model, graph, x = captured(changes, changes.reads_much)
    twin = copy.deepcopy(graph)
    before = model(x)
    changes.UNREAD[name](model)
    assert outcome(graph, x, model(x)) == "followed"
    assert outcome(twin, x, before) == "followed"


@pytest.mark.parametrize("training", [False, True])
def test_an_equal_object_is_adopted_once(
    changes: Namespace, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, x = captured(changes, changes.reads_much)
    graph.train(training)
    before, old, taken = model(x), model.options, []
    usual = Places._take
    monkeypatch.setattr(
        Places, "_take", lambda places, found: taken.append(1) or usual(places, found)
    )
    model.options, model.table = copy.deepcopy(old), copy.deepcopy(model.table)
    for _ in range(5):
        assert outcome(graph, x, before) == "followed"
    assert len(taken) == 1
    old.scale = 7.0  # type: ignore[union-attr, operator]
    assert outcome(graph, x, before) == "followed"
    model.options.scale = 5.0  # type: ignore[union-attr, operator]
    assert outcome(graph, x, before) == outcome(copy.deepcopy(graph), x, before) == "warned"
    model.options.scale = 2.0  # type: ignore[union-attr, operator]
    # A program may make new objects for each call.
    taken.clear()
    for _ in range(9):
        model.options = copy.deepcopy(model.options)
        assert outcome(graph, x, before) == "followed"
    assert len(taken) < 4


def test_a_graph_does_not_keep_its_model_alive() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale, self.rows = nn.Linear(4, 4), 2.0, [2.0]
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale * self.rows[0] * self.weight

    model, x = Model(), torch.ones(2, 4)
    graph = MaseGraph(model, dummy_in={"x": x}).model
    before, gone = graph(x), weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert outcome(graph, x, before) == "followed"


@pytest.mark.long
def test_attributes_of_a_librarys_modules_are_seen(changes: Namespace) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 9, "num_hidden_layers": 1}
    model = BertModel(BertConfig(num_attention_heads=2, **sizes)).eval()
    ids = torch.arange(8).reshape(2, 4)
    graph = MaseGraph(model, dummy_in={"input_ids": ids}).model
    layer = model.encoder.layer[0]
    before = graph(ids)[0]
    for owner, name, value in (
        (layer.intermediate, "intermediate_act_fn", nn.ReLU()),
        (layer.attention.self, "scaling", 1.0),
        (model.embeddings, "LayerNorm", nn.Identity()),
    ):
        old = getattr(owner, name)
        setattr(owner, name, value)
        assert not model(ids)[0].equal(before)
        assert outcome(graph, ids, model(ids)[0]) == "warned"
        setattr(owner, name, old)
        assert graph(ids)[0].equal(before)
    model.config.use_cache = False
    model.config.id2label, model.config.dtype = {0: "a"}, torch.float32  # as saving does
    assert graph(ids)[0].equal(before)
