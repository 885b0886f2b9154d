"""Arguments that were fixed at capture are compared by type and content."""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.captured.module import CapturedModule
from chop.errors import GuardError

X = torch.ones(2, 3)


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Number(enum.IntEnum):
    ONE = 1


@dataclass
class Options:
    scale: Any = 1


class Model(nn.Module):
    def forward(self, x: Tensor, option: Any = None) -> Tensor:
        return x * 2


def captured_with(option: Any) -> CapturedModule:
    return MaseGraph(Model(), dummy_in={"x": X}, cf_args={"option": option}).model


NAN = float("nan")
ALIKE = [
    *(1, True, 1.0, -0.0, NAN, 1j, "a", b"a", None, Kind.ONE, Number.ONE, torch.float32),
    *((1, 2), [1, [NAN]], {"a": [1.0]}, {1, 2}, slice(1, 2), range(3), Options([1]), torch.relu),
    *(np.int64(1), np.float32(NAN), np.array([1.0, NAN]), types.SimpleNamespace(a=1)),
    *(torch.tensor([1.0, NAN]), [torch.ones(2)], functools.partial(torch.softmax, dim=-1)),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("option", ALIKE, ids=lambda x: type(x).__name__)
def test_the_same_value_is_taken(option: Any) -> None:
    graph = captured_with(option)
    for each in (graph, copy.deepcopy(graph).train()):
        for given in (option, copy.deepcopy(option)):
            assert torch.equal(each(X, option=given), X * 2)


SAVED = [1, NAN, [1.0, NAN], (1, 2), {"a": -0.0}, torch.ones(2)]


@pytest.mark.parametrize("option", SAVED, ids=lambda x: type(x).__name__)
def test_a_saved_graph_takes_the_same_value(option: Any, tmp_path: Path) -> None:
    MaseGraph(Model(), dummy_in={"x": X}, cf_args={"option": option}).export(tmp_path / "graph")
    graph = MaseGraph.from_checkpoint(tmp_path / "graph").model
    assert torch.equal(graph(X, option=copy.deepcopy(option)), X * 2)
    with pytest.raises(GuardError, match="captured with option"):
        graph(X, option=True)


OTHERS = [
    *((1, True), (1, 1.0), (True, 1), (1.0, 1), (0.0, -0.0), (NAN, 1.0), (False, None), (1j, 1.0)),
    *((Kind.ONE, 1), (Kind.ONE, Kind.TWO), (Number.ONE, 1), (1, Number.ONE), ("a", b"a")),
    *(((1, 2), [1, 2]), ([1, 2], [1, True]), ({"a": [0.0]}, {"a": [-0.0]}), ({1}, {True})),
    *(({"a": 1}, {"a": 1, "b": 1}), ({True: 1}, {1: 1}), ({"a": 1, "b": 1}, {"b": 1, "a": 1})),
    *((Options(1), Options(True)), (types.SimpleNamespace(a=1), types.SimpleNamespace(a=1.0))),
    *((np.int64(1), 1), (np.float32(1), np.float64(1)), (np.ones(2), np.ones(2, dtype=int))),
    *((np.ones(2), np.zeros(2)), (torch.ones(2), torch.zeros(2)), (torch.ones(2), np.ones(2))),
    *(([torch.ones(2)], [torch.ones(2).double()]), (torch.float32, torch.float64)),
    (functools.partial(torch.softmax, dim=-1), functools.partial(torch.softmax, dim=0)),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("option", "other"), OTHERS, ids=lambda x: type(x).__name__)
def test_another_type_or_content_is_refused(option: Any, other: Any) -> None:
    graph = captured_with(option)
    for each in (graph, copy.deepcopy(graph).train()):
        with pytest.raises(GuardError, match="captured with option=.*, got option="):
            each(X, option=other)


CHANGES: list[tuple[Any, Callable[[Any], Any]]] = [
    ([1, 2], lambda option: option.append(3)),
    ({"a": [1]}, lambda option: option["a"].append(2)),
    (Options(1), lambda option: setattr(option, "scale", 2)),
    (types.SimpleNamespace(a=1), lambda option: setattr(option, "a", 2)),
    (np.ones(2), lambda option: option.fill(2)),
    (torch.ones(2), lambda option: option.fill_(2)),
]


@pytest.mark.parametrize(("option", "change"), CHANGES, ids=lambda x: type(x).__name__)
def test_a_value_that_was_changed_in_place_is_refused(
    option: Any, change: Callable[[Any], Any]
) -> None:
    option = copy.deepcopy(option)
    graph = captured_with(option)
    change(option)
    with pytest.raises(GuardError, match="captured with option"):
        graph(X, option=option)


def test_defaults_of_arguments_that_were_left_out_are_compared_alike() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, scale: float = 0.0) -> Tensor:
            return x + scale

    graph = MaseGraph(Scaled(), dummy_in={"x": X}).model
    assert torch.equal(graph(X, scale=0.0), X)
    for other in (-0.0, 0, False):
        with pytest.raises(GuardError, match="captured without scale"):
            graph(X, scale=other)


@pytest.mark.parametrize(
    ("value", "way_out"),
    [({"x": X}, r"model\(\*\*inputs\)"), ("a text", r"model\(\*\*tokenizer\(text, return_tensors")],
)
def test_mappings_and_texts_are_no_tensors(value, way_out):
    model = MaseGraph(nn.Linear(3, 2), dummy_in={"input": X}).model
    with pytest.raises(GuardError, match=f"expected input as a tensor, got a .*{way_out}"):
        model(value)
