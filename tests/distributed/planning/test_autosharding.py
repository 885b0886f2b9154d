"""The plan that is found: on which machine, within which memory, beside which others."""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chop import MaseGraph
from chop.distributed import ShardingPlan, process
from chop.distributed.builtin_plans import PLANS
from chop.distributed.planning import Machine, Sharding, find_sharding
from chop.distributed.planning.simulation import Simulation, simulate
from chop.errors import ChopError, ConfigError, PlanError
from chop.passes.analysis.autosharding import (
    AutoshardingConfig,
    autosharding_analysis_pass,
)
from tests.distributed.graphs import MODELS, graph_of, list_inputs

FLOPS, MEMORY = 100e12, 1.5e12
ATTENTION = {
    "bert": "attention",
    "vit": "attention",
    "roberta": "attention",
    "gpt2": ".attn.",
    "llama": "self_attn",
    "opt": "self_attn",
}
"""What the names of attention's parameters have."""


@functools.cache
def whole_bytes(name: str) -> int:
    """What a replicated forward needs."""
    machine = Machine.of((2,), FLOPS, MEMORY, 1e9, 0.0)
    return simulate(graph_of(name), ShardingPlan((2,)), list_inputs(name, 4, 8), machine).peak_bytes


def found_for(name: str, machine: Machine, share: float | None = None, **options: Any) -> Sharding:
    """The plan within a share of what a replicated forward needs."""
    budget = None if share is None else int(share * whole_bytes(name))
    machine = dataclasses.replace(machine, memory_bytes=budget)
    return find_sharding(graph_of(name), list_inputs(name, 4, 8), machine, **options)


# --- what the machine decides ---


@pytest.mark.long  # test_runs has plans of a fast and of a slow machine
def test_two_bandwidths_and_two_latencies_give_two_plans():
    machines = {
        "slow": Machine.of((2,), 1e9, 1e9, 1e3, 0.0),
        "fast": Machine.of((2,), 1e9, 1e9, 1e12, 0.0),
        "late": Machine.of((2,), 1e9, 1e9, 1e12, 10.0),
    }
    found = {name: found_for("bert", x, compare=False) for name, x in machines.items()}
    slow, fast, late = (each.simulation for each in found.values())
    assert (fast.plan.parameters, fast.plan.reads) != (slow.plan.parameters, slow.plan.reads)
    assert fast.sent_bytes > slow.sent_bytes
    assert len(fast.sent) > len(late.sent)


def llama() -> tuple[MaseGraph, dict[str, Any]]:
    """One sample, so that there is nothing to cut but weights and tokens."""
    import transformers

    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=8, num_key_value_heads=8, vocab_size=1024, use_cache=False
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
    mg = MaseGraph(model, hf_input_names=["input_ids", "attention_mask"])
    ids = torch.ones(1, 512, dtype=torch.long)
    return mg, {"input_ids": ids, "attention_mask": ids}


@pytest.mark.long
def test_megatrons_layout_is_found_on_a_llama():
    mg, inputs = llama()
    whole = sum(x.nbytes for x in mg.model.parameters())
    machine = Machine.of((8,), FLOPS, MEMORY, 100e9, 10e-6, whole // 3)
    found = find_sharding(mg, inputs, machine)
    cuts = {"S0": "q_proj k_proj v_proj gate_proj up_proj", "S1": "o_proj down_proj"}
    for cut, names in cuts.items():
        for layer in range(2):
            for name in names.split():
                block = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
                path = f"model.layers.{layer}.{block}.{name}.weight"
                assert found.plan.placement(path) == (cut,), path
    assert {x.device.type for x in mg.model.parameters()} == {"meta"}
    assert found.simulation.peak_bytes <= whole // 3
    assert found.gap <= 1e-3 and not found.fallbacks


# --- beside plans that are made by hand ---


def some(plan: ShardingPlan, keep: Callable[[str], bool]) -> ShardingPlan:
    """The plan for a part of the parameters; what reads a whole value still does."""
    kept = {path: cut for path, cut in plan.parameters.items() if keep(path)}
    return ShardingPlan(plan.mesh, kept, plan.reads)


def eight(name: str, mesh: tuple[int, ...]) -> dict[str, ShardingPlan]:
    """The plans that need no search, and each of two for attention or the other layers alone."""
    mg = graph_of(name)
    found = {each: make(mg, mesh) for each, make in PLANS.items()}
    for whole in ("megatron", "rows"):
        found[f"{whole}, attention"] = some(found[whole], lambda path: ATTENTION[name] in path)
        found[f"{whole}, others"] = some(found[whole], lambda path: ATTENTION[name] not in path)
    return found


def data_and_megatron(name: str) -> ShardingPlan:
    """Samples along the first axis, Megatron along the second."""
    mg = graph_of(name)
    data, other = PLANS["data"](mg, (2,)), PLANS["megatron"](mg, (2, 2))
    reads = {n: dict.fromkeys(sources, ("S0", "R")) for n, sources in data.reads.items()}
    for node, sources in other.reads.items():
        reads[node] = {**reads.get(node, {}), **dict.fromkeys(sources, ("S0", "R"))}
    return ShardingPlan((2, 2), other.parameters, reads)


def ring_bytes(simulation: Simulation, machine: Machine) -> float:
    """What is sent in rounds of rings; arithmetic costs nothing."""
    return simulation.seconds * machine.bandwidth[0]


def check_bytes(
    name: str, mesh: tuple[int, ...], shares: list[float], plans: dict[str, ShardingPlan]
):
    """No plan that fits sends less; the search does not know of them."""
    machine = Machine.of(mesh, 1e30, 1e30, 1e9, 0.0)
    inputs = list_inputs(name, 4, 8)
    others = {each: simulate(graph_of(name), p, inputs, machine) for each, p in plans.items()}
    assert len(others) >= 8
    for share in shares:
        found = found_for(name, machine, share, compare=False).simulation
        budget = int(share * whole_bytes(name))
        fitting = [x for x in others.values() if x.peak_bytes <= budget]
        assert fitting and found.peak_bytes <= budget < whole_bytes(name)
        best = min(ring_bytes(x, machine) for x in fitting)
        assert ring_bytes(found, machine) <= best * (1 + 1e-6), (name, share)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mesh", "shares"),
    [
        *((name, (2,), [0.9, 0.68]) for name in ("bert", "gpt2", "vit")),
        *((name, (4,), [0.9, 0.7, 0.6]) for name in MODELS),
        *((name, (2, 2), [0.9]) for name in ("bert", "llama")),
    ],
    ids=str,
)
def test_no_plan_made_by_hand_that_fits_sends_less(
    name: str, mesh: tuple[int, ...], shares: list[float]
):
    plans = eight(name, mesh)
    if len(mesh) == 2:
        plans["data and megatron"] = both = data_and_megatron(name)
        machine = Machine.of(mesh, 1e30, 1e30, 1e9, 0.0)
        assert simulate(graph_of(name), both, list_inputs(name, 4, 8), machine).sent
    check_bytes(name, mesh, shares, plans)


# --- what memory decides ---


@pytest.mark.long
def test_a_budget_that_is_too_small_names_the_smallest_mesh_that_fits():
    machine = Machine.of((2,), FLOPS, MEMORY, 100e9, 10e-6)
    with pytest.raises(PlanError, match=r"no plan on a mesh of 2 fits into [\d,]+ bytes") as caught:
        found_for("bert", machine, 0.45, compare=False)
    named = re.search(r"the smallest mesh that fits is (\d+) \(its", str(caught.value))
    assert named is not None, str(caught.value)
    mesh = (int(named[1]),)
    assert mesh == (4,)  # twice as many are the next
    fitting = found_for("bert", machine.on(mesh), 0.45, compare=False)
    assert fitting.plan.mesh == mesh
    assert fitting.simulation.peak_bytes <= int(0.45 * whole_bytes("bert"))


@pytest.mark.long
def test_a_budget_that_no_mesh_keeps_says_so():
    machine = Machine.of((512,), FLOPS, MEMORY, 100e9, 10e-6, 1000)
    with pytest.raises(PlanError, match="no mesh of up to 1024 processes fits"):
        find_sharding(graph_of("bert"), list_inputs("bert", 4, 8), machine, compare=False)


@pytest.mark.long
def test_layers_of_their_own_are_never_slower_than_tied_ones():
    machine = Machine.of((2,), 1e12, 1e11, 1e10, 1e-6)
    for share in (0.9, 0.68):
        tied = found_for("bert", machine, share, compare=False)
        own = found_for("bert", machine, share, compare=False, exact=True)
        assert own.simulation.seconds <= tied.simulation.seconds * (1 + 1e-4)
        assert own.simulation.peak_bytes <= int(share * whole_bytes("bert"))


@pytest.mark.long
def test_the_result_is_the_same_again_and_the_best_of_all():
    machine = Machine.of((2,), 1e12, 1e11, 1e10, 1e-6)
    first = found_for("gpt2", machine, 0.8)
    second = found_for("gpt2", machine, 0.8, compare=False)
    assert first.plan == second.plan and first.simulation == second.simulation
    assert not first.failures and not second.alternatives
    assert set(first.alternatives) == set(PLANS)
    budget = int(0.8 * whole_bytes("gpt2"))
    fitting = [x for x in first.alternatives.values() if x.peak_bytes <= budget]
    assert all(first.simulation.seconds <= x.seconds for x in fitting)
    assert first.plan.name == "auto"
    assert first.planning_seconds.keys() == {"layouts", "solving", "simulation"}


@pytest.mark.long
def test_joined_processes_plan_and_stay_joined():
    machine, phases = Machine.of((2,), FLOPS, MEMORY, 1e9, 0.0), []
    process.start((1,), "gloo")
    try:
        found = found_for("bert", machine, compare=False, report=phases.append)
        assert found.plan.mesh == (2,) and phases[0] == "layouts" and phases[-1] == "simulation"
        assert torch.distributed.get_world_size() == 1
        with pytest.raises(PlanError, match="cannot be simulated after a process group"):
            simulate(graph_of("bert"), found.plan, list_inputs("bert", 4, 8), machine)
    finally:
        torch.distributed.destroy_process_group()


# --- the pass ---


def test_the_pass_takes_our_keys_and_mases():
    ours = {
        "mesh": "2x4",
        "memory_bytes": "4GB",
        "flops": 1e12,
        "memory_bandwidth": 1e11,
        "bandwidth": (1e9, 2e9),
        "latency": 1e-6,
        "exact": True,
        "time_limit_s": 30,
    }
    machine = AutoshardingConfig.from_settings(ours).machine()
    assert machine == Machine.of((2, 4), 1e12, 1e11, (1e9, 2e9), 1e-6, 4 * 10**9)
    theirs = {
        "mesh_shape": [2, 4],
        "time_limit": 30,
        "flops": 1e12,
        "memory_bandwidth": 1e11,
        "inter_node_bandwidth": 1e9,
        "intra_node_bandwidth": 2e9,
        "latency": 1e-6,
    }
    found = AutoshardingConfig.from_settings(theirs)
    assert found.time_limit_s == 30
    assert found.machine() == dataclasses.replace(machine, memory_bytes=None)
    with_nccl = AutoshardingConfig.from_settings({**theirs, "communications_backend": "nccl"})
    assert (found.backend, with_nccl.machine().backend) == ("gloo", "nccl")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        ignored = {**theirs, "algo": "alpa", "run_checks": False}
        assert AutoshardingConfig.from_settings(ignored).machine() == found.machine()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mehs": 2}, "mehs"),
        ({"mesh": 2, "mesh_shape": 4}, "'mesh' is given twice"),
        ({"mesh": 2, "inter_node_bandwidth": 1e9}, "expected both inter_node_bandwidth and"),
        ({"mesh": 0}, "expected the processes per axis"),
        ({"mesh": "two"}, "expected the processes per axis"),
        ({"mesh": 2, "memory_bytes": "much"}, "memory_bytes: expected bytes"),
        ({"mesh": 2, "memory_bytes": 0}, "memory_bytes: expected bytes"),
        ({"mesh": 2, "flops": -1.0}, "flops: expected a number above 0"),
        ({"mesh": 2, "exact": "yes"}, "exact"),
    ],
)
def test_the_pass_refuses_unknown_keys_and_wrong_values(settings: dict, message: str):
    with pytest.raises(ChopError, match=message) as caught:
        autosharding_analysis_pass(graph_of("bert"), settings)
    assert isinstance(caught.value, ConfigError | PlanError)


@pytest.mark.long
def test_the_pass_gives_a_plan_and_what_stands_beside_it():
    settings = {"mesh": 2, "memory_bytes": int(0.8 * whole_bytes("bert")), "flops": 1e12}
    mg = graph_of("bert")
    same, found = autosharding_analysis_pass(mg, {**settings, "inputs": list_inputs("bert", 4, 8)})
    assert same is mg and found["plan"].mesh == (2,)
    assert found["simulation"].plan == found["plan"]
    assert found["simulation"].peak_bytes <= settings["memory_bytes"]
    assert set(found["alternatives"]) | set(found["failures"]) == set(PLANS)
    assert (found["fallbacks"], found["gap"] <= 1e-3) == ({}, True)
    _, by_example = autosharding_analysis_pass(mg, {"mesh": 2, "compare": False})
    assert by_example["alternatives"] == {}
