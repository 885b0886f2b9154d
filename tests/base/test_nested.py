"""Inputs that are made of several tensors."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from chop import MaseGraph, passes
from chop.base.nested import tree_map_with, tree_pairs, tree_tensors
from chop.capture.tracer import capture
from chop.errors import CaptureError, CheckpointError, GuardError


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclasses.dataclass
class Fields:
    a: Tensor
    b: Tensor
    scale: float = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Tensor
    b: Tensor
    inner: Pair | None = None


class Reads(nn.Module):
    """Reads its input by attribute and, as named tuples allow, by index."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, p: Any) -> Tensor:
        a, b = (p.a, p[1]) if isinstance(p, tuple) else (p.a, p.b)
        if a.shape[0] > 20:
            a = -a
        y = self.layer(a) * b * getattr(p, "scale", 1.0)
        inner = getattr(p, "inner", None)
        return y if inner is None else y + inner.b


def tensors(rows: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4), torch.randn(rows, 4)


MAKERS = {
    "named tuple": lambda rows=3: Pair(*tensors(rows)),
    "dataclass": lambda rows=3: Fields(*tensors(rows)),
    "frozen dataclass": lambda rows=3: Frozen(*tensors(rows)),
    "a named tuple in a dataclass": lambda rows=3: Frozen(*tensors(rows), Pair(*tensors(rows))),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.sampled(3)
def test_structured_inputs_are_read_at_run_time(make, tmp_path) -> None:
    model = Reads().eval()
    mg = MaseGraph(model, dummy_in={"p": make()})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    mg.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph").model
    pickled = pickle.loads(pickle.dumps(mg.model))
    for graph in (mg.model, copy.deepcopy(mg.model), pickled, again):
        for rows in (3, 5):
            value = make(rows)
            assert torch.equal(graph(value), model(value))
            assert torch.equal(graph(p=value), model(p=value))
    with pytest.raises(GuardError, match=r"captured for p(\.a|\[0\])\.shape\[0\] <= 20"):
        mg.model(make(21))
    with pytest.raises(GuardError, match=r"captured for p as "):
        mg.model(torch.ones(3, 4))
    half = copy.deepcopy(mg.model).bfloat16()
    assert half.record.example_inputs != mg.model.record.example_inputs


def test_what_is_no_tensor_in_a_dataclass_is_fixed() -> None:
    captured = capture(Reads(), {"p": Fields(*tensors())})
    with pytest.raises(GuardError, match=r"captured for p.scale as 2.0, got 3.0"):
        captured(Fields(*tensors(), scale=3.0))


def test_inputs_are_left_alone() -> None:
    class Writes(nn.Module):
        def forward(self, p: Fields) -> Tensor:
            return p.a.add_(1) + p.b

    value = Fields(*tensors())
    before = value.a.clone()
    captured = capture(Writes(), {"p": value})
    assert torch.equal(value.a, before)
    assert torch.equal(captured(copy.deepcopy(value)), before + 1 + value.b)


def test_packed_sequences_are_refused_by_name() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 4)

        def forward(self, p: Any) -> Tensor:
            return self.lstm(p)[0].data

    with pytest.raises(CaptureError, match="got a PackedSequence; pass the padded tensor and"):
        capture(Packed(), {"p": pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])})


def test_sparse_buffers_are_captured() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(4).to_sparse())
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(self.adjacency, self.layer(x).to(torch.float32))

    model, x = Graph().eval(), torch.randn(4, 4)
    with pytest.warns(UserWarning, match="an operator has no rule for its output shapes"):
        captured = capture(model, {"x": x})
    assert torch.equal(captured(x), model(x))
    assert torch.equal(copy.deepcopy(captured)(x), model(x))
    assert captured.adjacency.is_sparse and captured.adjacency is model.adjacency
    with pytest.raises(CheckpointError, match="tensor 'adjacency' cannot be exported"):
        MaseGraph(captured).export("nowhere")


@dataclasses.dataclass
class Output(OrderedDict):
    """A mapping that is a dataclass, as the outputs of transformers are."""

    a: Any = None
    b: Any = None

    def __post_init__(self) -> None:
        self.update(a=self.a, b=self.b)


FORMS = {
    "tuple": lambda a, b: (a, (b,)),
    "list": lambda a, b: [a, [], b],
    "mapping": lambda a, b: OrderedDict(b=a, a={"x": b, "y": "text"}),
    "named tuple": Pair,
    "dataclass": Fields,
    "frozen dataclass": lambda a, b: Frozen(a, b, Pair(a, b)),
    "mapping that is a dataclass": Output,
    "packed sequence": lambda a, b: PackedSequence(a, b),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_tensors_come_in_order(form) -> None:
    a, b = torch.ones(2), torch.arange(2)
    expected = [a, b, a, b] if isinstance(form(a, b), Frozen) else [a, b]
    found = list(tree_tensors(form(a, b)))
    assert [id(x) for x in found] == [id(x) for x in expected]
    has_entries = isinstance(form(a, b), Mapping | tuple | list)
    assert len(list(tree_tensors(form(a, b), fields=False))) == (2 if has_entries else 0)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_are_kept_where_two_are_mapped(form) -> None:
    a, b = torch.ones(2), torch.arange(2)
    value = form(a, b)

    def add(x: Any, y: Any) -> Any:
        return x + (0 if y is None else y) if isinstance(x, Tensor) else x

    doubled = tree_map_with(add, value, form(a, b))
    assert type(doubled) in (type(value), dict)
    given, found = list(tree_tensors(value)), list(tree_tensors(doubled))
    assert all(torch.equal(y, 2 * x) for x, y in zip(given, found, strict=True))
    alone = tree_tensors(tree_map_with(add, value, None))
    assert all(torch.equal(x, y) for x, y in zip(given, alone, strict=True))
    pairs = [(x, y) for x, y in tree_pairs(value, form(b, a)) if isinstance(x, Tensor)]
    assert (pairs[0][0] is a, pairs[0][1] is b) == (True, True)
    assert {id(y) for _, y in pairs} == {id(a), id(b)}


def test_values_of_other_kinds_are_looked_into_on_demand() -> None:
    hidden = SimpleNamespace(x=torch.ones(1))
    assert list(tree_tensors([hidden])) == []
    assert list(tree_tensors([hidden], inside=lambda x: vars(x).values())) == [hidden.x]


def test_other_forms_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 parts, got 3"):
        tree_map_with(lambda x, y: x, [1, 2], [1, 2, 3])
    assert list(tree_pairs((1, 2), (3,))) == [(1, 3), (2, None)]
