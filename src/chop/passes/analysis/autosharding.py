"""Finds a sharding plan: the fastest within a budget of memory."""

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
"""MASE's names for the bandwidths along the first and the second axis of a mesh."""
IGNORED = (
    *("sharding_config", "algo", "skip_fully_replicated"),
    *("run_checks", "preload_solution", "ilp_solution_file", "mip_rel_gap", "module_map"),
    *("benchmarking_device", "force_bandwidth", "force_latency"),
)


@dataclass(frozen=True)
class AutoshardingConfig:
    """Settings of `autosharding_analysis_pass`; MASE's names are taken too.

    The default speeds are those of a GPU such as NVIDIA's A100 and of its links.

    Attributes:
        mesh: processes along each axis, as 4, (2, 2) or "2x2" (`mesh_shape`).
        memory_bytes: what a process has for parameters, buffers and activations, as 4000000000 or
            "4GB". None: there is enough.
        flops: floating-point operations per second of one process.
        memory_bandwidth: bytes per second between a process and its memory.
        bandwidth: bytes per second that a process sends: one number, or one for each axis of the
            mesh (`inter_node_bandwidth`, `intra_node_bandwidth`).
        latency: seconds of one message without its bytes, the same way.
        backend: of the collectives; "gloo" (CPU) needs memory for buffers, "nccl" (CUDA) does not
            (`communications_backend`).
        inputs: of the forward that is planned for, by name; only shapes and dtypes matter. None:
            like those of the capture.
        exact: repeated layers may have plans of their own; takes longer, by their number.
        time_limit_s: for each integer program (`time_limit`).
        compare: predicts the plans that need no search too, and takes the best of all.
        broadcast: under torchrun, where every process calls the pass: joins them, only the first
            searches, and all get its plan. False: the process that calls searches by itself.
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
        """From our mapping or MASE's.

        Raises:
            ConfigError: a key is unknown, given under two names, or a value has the wrong type.
        """
        named = renamed(ignoring(settings, IGNORED, NAME), ALIASES, NAME)
        links = [named.pop(link) for link in LINKS if link in named]
        if links and (len(links) < len(LINKS) or "bandwidth" in named):
            raise ConfigError(
                f"{NAME}: expected both {LINKS[0]} and {LINKS[1]}, or bandwidth for each axis."
            )
        return parse(cls, named | ({"bandwidth": tuple(links)} if links else {}), NAME)

    def machine(self) -> Machine:
        """The mesh, its speeds and memory.

        Raises:
            PlanError: a number is out of range.
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
    """Finds the sharding plan by which a forward is predicted to be fastest, if its memory fits.

    One process does it, on a laptop too: the others are simulated, in a process of its own, and
    tensors have no numbers, so that the graph may be on the meta device. Each node may compute in
    any layout in which it sends nothing; an integer program chooses the layouts, and a simulated
    forward by the plan counts what is sent and what is in memory. `resharding_transform_pass` runs
    the plan, and compares it with one process.

    Returns:
        plan: the `ShardingPlan`.
        simulation: of a forward by it: `seconds`, `collectives`, `parameter_bytes`, `peak_bytes`
            and `steps` by node, of one process.
        alternatives: the same of the plans that need no search, by name.
        failures: why one of these cannot run, by name.
        fallbacks: nodes that multiply matrices and have to be replicated, with their share of all
            operations.
        without_rule: operators that DTensor has no rule for, which compute on whole tensors.
        gap: relative distance of the solution from the proven bound of the integer program.
        planning_seconds: by phase.

    Raises:
        ConfigError: see `AutoshardingConfig`.
        PlanError: no plan fits; the message names the smallest mesh that does. Or the model cannot
            run on DTensors, or the mesh has not the processes among which it is broadcast.
        DistributedError: the search was ended, or a process that waited for it.

    Source: Zheng et al. 2022, arXiv:2201.12023 (integer program of layouts); here edges are flows.

    Example config::

        {"mesh": "2x2", "memory_bytes": "4GB", "bandwidth": [12e9, 100e9]}
    """
    found = _sharding(mg, config)
    return {
        "plan": found.plan,
        "simulation": found.simulation,
        "alternatives": dict(found.alternatives),
        "failures": dict(found.failures),
        "fallbacks": dict(found.fallbacks),
        "without_rule": list(found.without_rule),
        "gap": found.gap,
        "planning_seconds": dict(found.planning_seconds),
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
