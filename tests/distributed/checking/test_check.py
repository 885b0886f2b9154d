"""The check passes what is sharded rightly, and names the first node that is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from chop import MaseGraph
from chop.captured.module import CapturedModule
from chop.distributed import process, runtime
from chop.distributed.apply import shard_graph
from chop.distributed.builtin_plans import PLANS
from chop.distributed.checking.check import CheckReport, check_against_one_process
from chop.distributed.placements import as_torch
from chop.distributed.plan import ShardingPlan, named_tensors
from chop.distributed.source import TensorSource
from chop.errors import ConfigError, DistributedError
from chop.passes import quantize_transform_pass
from tests.distributed import cluster
from tests.distributed.graphs import MODELS, graph_of, list_inputs

BERT, OPT, GPT2, VIT = "bert", "opt", "gpt2", "vit"

INTEGER = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 8,
    "weight_frac_width": 4,
    "bias_width": 8,
    "bias_frac_width": 4,
}
SCALED = {"name": "scale_integer", "data_in_width": 16, "weight_width": 4, "bias_width": 16}
Outcome = CheckReport | str


def inputs(name: str, length: int = 7, shift: int = 0) -> dict[str, Tensor]:
    """Of odd batch and length."""
    given = list_inputs(name, 3, length)
    return given | ({"input_ids": given["input_ids"] - shift} if shift else {})


def quantized(mg: MaseGraph, config: Mapping[str, Any]) -> MaseGraph:
    return quantize_transform_pass(mg, {"by": "type", "linear": {"config": dict(config)}})[0]


def checked(
    before: CapturedModule,
    sharded: CapturedModule,
    given: Mapping[str, Tensor],
    source: TensorSource | None = None,
) -> Outcome:
    try:
        return check_against_one_process(before, sharded, given, source=source)
    except (DistributedError, ConfigError) as error:
        return f"{type(error).__name__}: {error}"


# --- what is right -----------------------------------------------------------------------------


def by_plans(
    graphs: Mapping[str, MaseGraph], mesh: DeviceMesh, integers: Sequence[str] = (BERT, VIT)
) -> Iterator[tuple[str, Outcome]]:
    for name, mg in graphs.items():
        for plan in ["replicate", "rows", "megatron"] if name == GPT2 else ["megatron"]:
            sharded = sharded_by(plan, mg, mesh)
            yield f"{name} {plan}", checked(mg.model, sharded.model, inputs(name))
    for name in integers:
        integer = quantized(graphs[name], INTEGER)
        sharded = sharded_by("megatron", integer, mesh)
        yield f"{name} integer", checked(integer.model, sharded.model, inputs(name))


def sharded_by(plan: str, mg: MaseGraph, mesh: DeviceMesh) -> MaseGraph:
    sharded = mg.copy()
    shard_graph(sharded, PLANS[plan](sharded, tuple(mesh.shape)), mesh)
    return sharded


def by_vocabulary(mg: MaseGraph, mesh: DeviceMesh) -> Outcome:
    """Each process has a part of the words, and zeros for the others."""
    sharded = mg.copy()
    plan = ShardingPlan((2,), {"bert.embeddings.word_embeddings.weight": ("S0",)})
    shard_graph(sharded, plan, mesh)
    return checked(mg.model, sharded.model, inputs(BERT))


def by_torch(mg: MaseGraph, name: str, mesh: DeviceMesh) -> Outcome:
    """Of a graph whose layers torch's `parallelize_module` cut."""
    sharded, plan = mg.copy(), {}
    columns = ("q_proj", "k_proj", "v_proj", "fc1", "query", "key", "value", "intermediate.dense")
    for path, module in sharded.model.named_modules():
        if isinstance(module, nn.Linear) and path.endswith(columns):
            plan[path] = ColwiseParallel()
        elif path.endswith(("out_proj", "fc2", "output.dense")):
            plan[path] = RowwiseParallel()
    parallelize_module(sharded.model, mesh, plan)
    return checked(mg.model, sharded.model, inputs(name, length=6))


# --- what is wrong -----------------------------------------------------------------------------

ATTENTION = "bert.encoder.layer.0.attention.self"
QUERY, VALUE = f"{ATTENTION}.query", f"{ATTENTION}.value"


@dataclass(frozen=True)
class Whole:
    """A source that has a model whole, and notes what is read."""

    tensors: Mapping[str, Tensor]
    read_names: set[str] = field(default_factory=set)

    def read(self, name: str, slices: tuple[slice, ...]) -> Tensor:
        self.read_names.add(name)
        return self.tensors[name].detach()[slices].clone()


def faults(mg: MaseGraph, mesh: DeviceMesh) -> Iterator[tuple[str, Outcome]]:
    """What the check says of a right BERT with one fault each."""
    rank = mesh.get_local_rank()
    sharded = sharded_by("megatron", mg, mesh)
    model, empty = sharded.model, without_tensors(mg.model)
    source = Whole(dict(named_tensors(mg.model)))
    yield "gathered", checked(empty, model, inputs(BERT))
    yield "read", checked(empty, model, inputs(BERT), source=source)
    assert source.read_names >= {path for path, _ in mg.model.named_parameters()}
    yield "inputs", checked(mg.model, model, inputs(BERT, shift=rank))
    yield "training", checked(mg.model, mg.copy().model.train(), inputs(BERT))
    yield "not sharded", checked(mg.model, mg.model, inputs(BERT))

    weight = model.get_parameter(f"{QUERY}.weight").to_local()
    with changed(weight, weight.flip(0) if rank else weight):
        yield "chunk", checked(mg.model, model, inputs(BERT))
        yield "chunk of the source", checked(empty, model, inputs(BERT), source=source)
        yield "chunk, gathered", checked(empty, model, inputs(BERT))
    scale = model.get_parameter("bert.embeddings.LayerNorm.weight").to_local()
    with changed(scale, scale + 1e-3 * rank):
        yield "replicated", checked(empty, model, inputs(BERT))
    for node in model.graph.nodes:
        if node.target is runtime.redistribute:
            node.target = relabeled
            break
    model.recompile()
    yield "sum", checked(mg.model, model, inputs(BERT))


def misread(mg: MaseGraph, mesh: DeviceMesh) -> Outcome:
    """A plan that reads what has no such dimension."""
    sharded = mg.copy()
    plan = PLANS["megatron"](sharded, (2,))
    view = next(node for node in mg.nodes if node.op == "call_method" and node.target == "view")
    reads = {**plan.reads, view.name: {view.args[0].name: ("S5",)}}
    shard_graph(sharded, replace(plan, reads=reads), mesh)
    return checked(mg.model, sharded.model, inputs(BERT))


def rounded_apart(mg: MaseGraph, mesh: DeviceMesh) -> Outcome:
    """A scale of the whole weight that each process takes of its chunk."""
    tensorwise = quantized(mg, SCALED)
    sharded = sharded_by("replicate", tensorwise, mesh)
    layer = sharded.model.get_submodule(VALUE)
    apart = copy.deepcopy(tensorwise.model.get_submodule(VALUE))
    rank = mesh.get_local_rank()
    apart.weight, apart.bias = (
        nn.Parameter(x.detach().chunk(2)[rank]) for x in (apart.weight, apart.bias)
    )
    layer.forward = lambda x: DTensor.from_local(apart(x.to_local()), mesh, [Shard(2)])
    return checked(tensorwise.model, sharded.model, inputs(BERT))


def relabeled(value: Any, placements: tuple[str, ...]) -> Any:
    """A redistribution that forgets to send."""
    return DTensor.from_local(value.to_local(), value.device_mesh, as_torch(placements))


def without_tensors(model: CapturedModule) -> CapturedModule:
    """A copy of a model with all its tensors on the meta device."""
    tensors = dict.fromkeys(x for _, x in named_tensors(model))
    return copy.deepcopy(model, {id(x): on_meta(x) for x in tensors})


def on_meta(x: Tensor) -> Tensor:
    empty = torch.empty_like(x, device="meta")
    return nn.Parameter(empty, x.requires_grad) if isinstance(x, nn.Parameter) else empty


@contextmanager
def changed(tensor: Tensor, to: Tensor) -> Iterator[None]:
    before = tensor.detach().clone()
    tensor.data.copy_(to.clone())
    yield
    tensor.data.copy_(before)


# --- the tests ---------------------------------------------------------------------------------


def all_outcomes(graphs: Mapping[str, MaseGraph]) -> dict[str, Outcome]:
    """Of what is right: plans, words in parts, torch's own layouts."""
    mesh = process.start((2,), "gloo")
    found = dict(by_plans(graphs, mesh))
    found[f"{BERT} words"] = by_vocabulary(graphs[BERT], mesh)
    found[f"{BERT} torch"] = by_torch(graphs[BERT], BERT, mesh)
    return found


def all_alarms(graphs: Mapping[str, MaseGraph]) -> dict[str, Outcome]:
    """Of what is wrong, beside the same that is right."""
    mesh = process.start((2,), "gloo")
    found = dict(by_plans({BERT: graphs[BERT]}, mesh, integers=()))
    found[f"{OPT} torch"] = by_torch(graphs[OPT], OPT, mesh)
    found |= faults(graphs[BERT], mesh)
    found["misread"] = misread(graphs[BERT], mesh)
    return found | {"rounded apart": rounded_apart(graphs[BERT], mesh)}


def outcomes_of(
    work: Callable[..., dict[str, Outcome]], names: Sequence[str]
) -> dict[str, Outcome]:
    first, second = cluster.run(work, 2, {name: graph_of(name) for name in names})
    assert first == second
    return first


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return outcomes_of(all_alarms, (BERT, OPT))


@pytest.mark.long
def test_what_plans_make_of_transformers_is_no_alarm():
    right = outcomes_of(all_outcomes, list(MODELS))
    assert len(right) == len(MODELS) + 2 + 2 + 1 + 1
    for case, report in right.items():
        assert isinstance(report, CheckReport), (case, report)
        assert report.nodes > 40 and report.flips == 0, case
        assert report.max_difference < 1e-6 and report.final_difference < 1e-5, case
    for name in (BERT, VIT):
        assert right[f"{name} integer"].final_difference == 0
        assert right[f"{name} megatron"].max_difference > 0  # sums are added in another order


@pytest.mark.long
def test_tensors_are_gathered_or_read_where_the_model_before_has_none(outcomes):
    assert outcomes["gathered"] == outcomes["read"] == outcomes[f"{BERT} megatron"]


@pytest.mark.long
def test_torchs_layout_of_opt_is_wrong_at_the_first_view(outcomes):
    """It takes heads that are missing for more tokens."""
    start = "DistributedError: node 'view_1' (call_method view) is the first that differs from one "
    assert outcomes[f"{OPT} torch"].startswith(start)
    assert (
        "layout (chunk 0 of 2 along dimension 1, local), (3, 3, 4, 8) of (3, 6, 4, 8) here"
        in (outcomes[f"{OPT} torch"])
    )


def test_the_first_wrong_node_is_named(outcomes):
    wrong = {
        "chunk": f"call_module {QUERY}: Linear",
        "chunk of the source": f"call_module {QUERY}: Linear",
        "replicated": "call_module bert.embeddings.LayerNorm: LayerNorm",
        "sum": "call_function relabeled, inserted by the plan",
        "misread": "call_function redistribute, inserted by the plan",
        "rounded apart": f"call_module {VALUE}: QuantLinear",
    }
    for case, node in wrong.items():
        kind, _, text = outcomes[case].partition(": node '")
        assert kind == "DistributedError", (case, outcomes[case])
        assert f"({node}) is the first that differs from one process: " in text, case
    assert "layout (S2), (3, 7, 16) of (3, 7, 32) here, on process 1." in outcomes["chunk"]
    assert "input of a node: S5 shards dimension 5 of a tensor with 3" in outcomes["misread"]


def test_a_chunk_of_other_weights_is_not_seen_where_the_reference_is_gathered(outcomes):
    assert isinstance(outcomes["chunk, gathered"], CheckReport)


def test_what_cannot_be_checked_is_refused(outcomes):
    assert outcomes["inputs"] == (
        "DistributedError: expected the same inputs on all processes, but 'input_ids' differs "
        "between processes 0 and 1: use the same seed."
    )
    assert outcomes["training"].startswith("ConfigError: expected models in evaluation")
    assert outcomes["not sharded"].startswith("PlanError: expected a sharded model")
