"""Plans as data: JSON, checks against a graph, slices as torch cuts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.distributed import ShardingPlan, parse_mesh
from chop.distributed.builtin_plans import find_plan, megatron_plan
from chop.distributed.placements import local_slices, normalized
from chop.errors import ConfigError, PlanError
from tests.distributed.graphs import graph_of

PLAN = ShardingPlan(
    (2, 2), {"classifier.weight": ("R", "S0")}, {"softmax": {"linear": ("S1", "R")}}, "x"
)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    mesh=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    data=st.data(),
)
def test_slices_are_those_of_torch_chunk(shape: list[int], mesh: list[int], data: Any):
    dims = st.sampled_from(["R", *(f"S{dim}" for dim in range(len(shape)))])
    placements = data.draw(st.lists(dims, min_size=len(mesh), max_size=len(mesh)))
    coordinate = [data.draw(st.integers(0, size - 1)) for size in mesh]
    whole = torch.arange(max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()]
    whole = whole.view(shape)
    expected = whole
    for size, index, text in zip(mesh, coordinate, placements, strict=True):
        if text != "R":
            chunks = expected.chunk(size, int(text[1:]))
            empty = expected.narrow(int(text[1:]), 0, 0)
            expected = chunks[index] if index < len(chunks) else empty
    found = whole[local_slices(shape, mesh, coordinate, placements)]
    assert found.shape == expected.shape and torch.equal(found, expected)


def test_a_plan_is_the_same_after_json(tmp_path: Path):
    PLAN.write(tmp_path / "plan.json")
    assert ShardingPlan.read(tmp_path / "plan.json") == PLAN
    assert ShardingPlan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_a_plan_of_another_model_is_named():
    names = ["bert.a.weight", "bert.b.weight", "classifier.weight"]
    with pytest.raises(PlanError, match="for another model: 2 of its 3 .* such as 'bert.a.weight'"):
        ShardingPlan((2,), dict.fromkeys(names, ("R",))).checked(graph_of("bert"))
    with pytest.raises(PlanError, match="'clasifier.weight' does not exist: did you mean"):
        ShardingPlan((2,), {"clasifier.weight": ("R",)}).checked(graph_of("bert"))


def test_negative_dimensions_are_counted_from_the_front():
    assert normalized(("S-1", "R"), 2, "x") == ("S1", "R")
    mg = graph_of("bert")
    assert ShardingPlan((2,), {"classifier.weight": ("S-2",)}).checked(mg).parameters == {
        "classifier.weight": ("S0",)
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected an object with format 'chop sharding plan'"),
        ({"format": "other"}, "expected an object with format"),
        ({"mesh": [2], "version": 9}, "expected version 1, got 9"),
        (
            {"mesh": [2], "paramters": {}},
            "'paramters' does not exist: did you mean 'parameters'",
        ),
        ({}, "mesh: expected the processes per axis"),
        ({"mesh": []}, "mesh: expected the processes per axis"),
        ({"mesh": [0]}, "mesh: expected the processes per axis"),
        ({"mesh": [2.5]}, "mesh: expected the processes per axis"),
        ({"mesh": [2], "parameters": {"a": "S0"}}, r"parameters.a: expected texts such as"),
        ({"mesh": [2], "reads": {"a": ["S0"]}}, r"reads.a: expected an object"),
    ],
)
def test_documents_that_are_no_plan(document: Any, message: str):
    with pytest.raises(PlanError, match=message):
        ShardingPlan.from_json(document)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            ShardingPlan((2,), {"clasifier.weight": ("S0",)}),
            "'clasifier.weight' .*'classifier.weight'",
        ),
        (
            ShardingPlan((2,), {"classifier.weight": ("S2",)}),
            "S2 shards dimension 2 of a tensor with 2",
        ),
        (ShardingPlan((2,), {"classifier.weight": ("S0", "R")}), "expected 1 placements, .* got 2"),
        (ShardingPlan((2,), {"classifier.weight": "S0"}), r"such as \('S0',\), got 'S0'"),
        (ShardingPlan((2, 2), {"classifier.weight": "S0"}), r"such as \('S0', 'R'\), got 'S0'"),
        (ShardingPlan((2,), {"classifier.weight": ("P",)}), "placement 'P': expected R"),
        (ShardingPlan((2,), reads={"nothing": {"a": ("R",)}}), "node 'nothing' does not exist"),
        (
            ShardingPlan((2,), reads={"classifier": {"input_ids": ("R",)}}),
            "node 'classifier': input 'input_ids'",
        ),
    ],
)
def test_plans_that_do_not_fit_the_graph(plan: ShardingPlan, message: str):
    with pytest.raises(PlanError, match=message):
        plan.checked(graph_of("bert"))


@pytest.mark.long
def test_tied_parameters_have_one_placement():
    plan = ShardingPlan((2,), {"lm_head.weight": ("S0",)})
    with pytest.raises(PlanError, match="are one parameter, but the plan has"):
        plan.checked(graph_of("gpt2"))


def test_plans_are_found_by_name_file_and_content(tmp_path: Path):
    mg = graph_of("bert")
    named = find_plan("megatron", mg, processes=2)
    assert named == megatron_plan(mg, (2,))
    named.write(tmp_path / "plan.json")
    assert find_plan(tmp_path / "plan.json", mg) == named
    assert find_plan(str(tmp_path / "plan.json"), mg, "2") == named
    assert find_plan(named.to_json(), mg) == named == find_plan(named, mg, 2)


@pytest.mark.parametrize(
    ("given_plan", "mesh", "message"),
    [
        ("megatrn", None, "neither a file nor the name of a plan: did you mean 'megatron'"),
        ("megatron", "2x", "expected the processes per axis"),
        (ShardingPlan((2,)), (4,), "for a mesh of 2, expected 4"),
    ],
)
def test_plans_that_are_not_found(given_plan: Any, mesh: Any, message: str):
    with pytest.raises(PlanError, match=message):
        find_plan(given_plan, graph_of("bert"), mesh)


def test_an_unknown_plan_lists_names_of_the_caller_as_well():
    with pytest.raises(PlanError, match="choose from: auto, data, megatron"):
        find_plan("none.json", graph_of("bert"), other_names=["auto"])


def test_a_file_that_json_cannot_read_is_no_plan(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text("[" * 200_000)
    with pytest.raises(PlanError, match="is not valid JSON"):
        ShardingPlan.read(path)


def test_a_plan_error_is_a_config_error():
    assert issubclass(PlanError, ConfigError)
    with pytest.raises(ConfigError):
        parse_mesh("a")
