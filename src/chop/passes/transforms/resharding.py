"""Sharding of a graph over processes by a given plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.distributed.plan import ShardingPlan
from chop.distributed.source import TensorSource
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs
from chop.passes.base import graph_pass


@dataclass(frozen=True)
class ReshardingConfig:
    """Settings of `resharding_transform_pass`.

    Attributes:
        plan: sharding plan: "replicate", "data", "rows" or "megatron"; or a
            `chop.distributed.ShardingPlan`, the path of its JSON file, or the content of the file.
        mesh: number of processes along each axis, such as 2, (2, 2) or "2x2"; default, that of the
            plan, or all processes along one axis.
        backend: "gloo" (CPU) or "nccl" (CUDA, one device per process). Default: nccl if each
            process has a device, otherwise gloo.
        source: source of the tensors of a model on the meta device, of which each process reads its
            part.
        check: compares every node of a forward with a single process, on inputs like those of the
            capture; needs a model in evaluation mode.
    """

    plan: ShardingPlan | Mapping[str, Any] | str | Path = "megatron"
    mesh: tuple[int, ...] | int | str | None = None
    backend: Literal["gloo", "nccl"] | None = None
    source: TensorSource | None = None
    check: bool = True


@graph_pass(config=ReshardingConfig, takes_packed=True)
def resharding_transform_pass(mg: MaseGraph, config: ReshardingConfig) -> dict[str, Any]:
    """Shards the graph: each process stores its part of the parameters as DTensors.

    Call it with the same graph on every process started by torchrun. `mg.model` then takes complete
    plain inputs on every process and returns complete plain outputs, for inference. A mesh of 1
    needs no torchrun.

    Returns:
        plan: the `ShardingPlan` with placements checked against the graph.
        mesh: the `torch.distributed.device_mesh.DeviceMesh`.
        local_bytes: size of the parameters and buffers on this process.
        whole_bytes: size of those of the complete model.
        check: the `chop.distributed.checking.check.CheckReport`; None without a check.

    Raises:
        PlanError: if the plan does not fit the graph or the processes, or torchrun did not start
            them.
        DistributedError: if processes are missing or have different weights or plans, or results
            differ from a single process.
        ConfigError: if the model is in training mode, which cannot be checked.
    """
    # Imported when used: DTensor loads long.
    from chop.distributed.apply import local_bytes, shard_graph
    from chop.distributed.builtin_plans import find_plan
    from chop.distributed.checking.agreement import check_same_model
    from chop.distributed.checking.check import check_against_one_process
    from chop.distributed.checking.reference import with_same_tensors
    from chop.distributed.process import start, world_size

    plan = find_plan(config.plan, mg, config.mesh, world_size())
    whole = local_bytes(mg.model)
    mesh = start(plan.mesh, config.backend)
    if plan.processes > 1:
        check_same_model(mg.model, plan)
    before = with_same_tensors(mg.model) if config.check else None
    shard_graph(mg, plan, mesh, config.source)
    report = None
    if before is not None:
        inputs = example_inputs(before, mesh.device_type)
        report = check_against_one_process(before, mg.model, inputs, source=config.source)
    return {
        "plan": plan,
        "mesh": mesh,
        "local_bytes": local_bytes(mg.model),
        "whole_bytes": whole,
        "check": report,
    }
