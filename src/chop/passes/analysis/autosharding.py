"""Automatic sharding: search for the fastest plan within a memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from chop.config import ignoring, parse, renamed
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs
from chop.passes.base import graph_pass

if TYPE_CHECKING:
    from chop.distributed.planning import Machine, Sharding

NAME = "autosharding_analysis_pass"
ALIASES = {
    "mesh_shape": "mesh",
    "time_limit": "time_limit_s",
    "communications_backend": "backend",
}
LINKS = ("inter_node_bandwidth", "intra_node_bandwidth")
"""MASE's names for the bandwidths along the first and second axis of a mesh."""
IGNORED = (
    *("sharding_config", "algo", "skip_fully_replicated"),
    *("run_checks", "preload_solution", "ilp_solution_file", "mip_rel_gap", "module_map"),
    *("benchmarking_device", "force_bandwidth", "force_latency"),
)


@dataclass(frozen=True)
class AutoshardingConfig:
    """Settings of `autosharding_analysis_pass`, also under MASE's names.

    The default speeds are those of an NVIDIA A100 and its links.

    Attributes:
        mesh: number of processes along each axis, such as 4, (2, 2) or "2x2" (`mesh_shape`).
        memory_bytes: memory per process for parameters, buffers and activations, such as 4000000000
            or "4GB"; default, unlimited.
        flops: floating-point operations per second of a process.
        memory_bandwidth: bytes per second between a process and its memory.
        bandwidth: bytes per second that a process sends: one number, or one per axis of the mesh
            (`inter_node_bandwidth`, `intra_node_bandwidth`).
        latency: fixed seconds per message: one number, or one per axis.
        backend: backend of the collectives; "gloo" (CPU) needs memory for buffers, "nccl" (CUDA)
            does not (`communications_backend`).
        inputs: inputs of the planned forward by name, of which only shapes and dtypes matter;
            default, those of the capture.
        exact: allows different plans for repeated layers, which multiplies the planning time.
        time_limit_s: time limit per integer program (`time_limit`).
        compare: also predicts the fixed plans, and returns the best of all.
        broadcast: under torchrun, where every process calls the pass, lets only the first process
            search and sends its plan to all. False searches in the calling process.
    """

    mesh: tuple[int, ...] | int | str = 2
    memory_bytes: int | str | None = None
    flops: float = 100e12
    memory_bandwidth: float = 1.5e12
    bandwidth: float | tuple[float, ...] = 100e9
    latency: float | tuple[float, ...] = 10e-6
    backend: Literal["gloo", "nccl"] = "gloo"
    inputs: Mapping[str, Any] | None = None
    exact: bool = False
    time_limit_s: float = 120.0
    compare: bool = True
    broadcast: bool = False

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> AutoshardingConfig:
        """Parses a mapping with our or MASE's names.

        Raises:
            ConfigError: if a key is unknown, given under two names, or a value has the wrong type.
        """
        named = renamed(ignoring(settings, IGNORED, NAME), ALIASES, NAME)
        links = [named.pop(link) for link in LINKS if link in named]
        if links and (len(links) < len(LINKS) or "bandwidth" in named):
            raise ConfigError(
                f"{NAME}: expected both {LINKS[0]} and {LINKS[1]}, or bandwidth for each axis."
            )
        return parse(cls, named | ({"bandwidth": tuple(links)} if links else {}), NAME)

    def machine(self) -> Machine:
        """Returns the mesh with its speeds and memory.

        Raises:
            PlanError: if a number is out of range.
        """
        from chop.distributed.byte_sizes import parse_bytes
        from chop.distributed.plan import parse_mesh
        from chop.distributed.planning import Machine

        memory = None
        if self.memory_bytes is not None:
            memory = parse_bytes(self.memory_bytes, "memory_bytes")
        mesh = parse_mesh(self.mesh)
        speeds = self.flops, self.memory_bandwidth, self.bandwidth, self.latency
        return Machine.of(mesh, *speeds, memory, self.backend)


@graph_pass(config=AutoshardingConfig.from_settings)
def autosharding_analysis_pass(mg: MaseGraph, config: AutoshardingConfig) -> dict[str, Any]:
    """Finds the sharding plan with the fastest predicted forward that fits into memory.

    The search runs on a single machine. The processes of the mesh are simulated without data in a
    separate process, so the graph may be on the meta device. An integer program chooses a layout
    for each node among those that need no communication inside the node. A simulated forward counts
    communication and memory of the plan. `resharding_transform_pass` runs the plan and compares it
    with a single process.

    Returns:
        plan: the `ShardingPlan`.
        simulation: its simulated forward for one process: `seconds`, `collectives`,
            `parameter_bytes`, `peak_bytes`, and `steps` by node.
        alternatives: simulations of the fixed plans by name.
        failures: reasons by name for fixed plans that cannot run.
        fallbacks: nodes with matrix products that have to be replicated, with their share of all
            operations.
        without_rule: operators without a DTensor rule, which compute on complete tensors.
        gap: relative distance of the solution from the proven bound of the integer program.
        planning_seconds: planning time by phase.

    Raises:
        ConfigError: see `AutoshardingConfig`.
        PlanError: if no plan fits, and the message names the smallest sufficient mesh; the model
            cannot run on DTensors; or the mesh does not match the processes of the broadcast.
        DistributedError: if the search or a waiting process was terminated.

    Source: Zheng et al. 2022, arXiv:2201.12023 (integer program of layouts); here edges are flows.

    Example config::

        {"mesh": "2x2", "memory_bytes": "4GB", "bandwidth": [12e9, 100e9]}
    """
    sharding = _sharding(mg, config)
    return {
        "plan": sharding.plan,
        "simulation": sharding.simulation,
        "alternatives": dict(sharding.alternatives),
        "failures": dict(sharding.failures),
        "fallbacks": dict(sharding.fallbacks),
        "without_rule": list(sharding.without_rule),
        "gap": sharding.gap,
        "planning_seconds": dict(sharding.planning_seconds),
    }


def _sharding(mg: MaseGraph, config: AutoshardingConfig) -> Sharding:
    # Imported when used: DTensor loads long.
    from chop.distributed.checking.agreement import run_on_first_process
    from chop.distributed.planning import find_sharding
    from chop.distributed.process import guarded, start

    inputs = example_inputs(mg.model, "cpu") if config.inputs is None else config.inputs
    machine = config.machine()
    settings = {name: getattr(config, name) for name in ("exact", "time_limit_s", "compare")}

    def find() -> Sharding:
        return find_sharding(mg, inputs, machine, **settings)

    if not config.broadcast:
        return find()
    start(machine.mesh)
    with guarded("the search for a plan"):
        return run_on_first_process(find)
