"""Run of a sharded model, in this process group or in new processes.

A temporary folder holds settings, imports, plan, result and errors of the processes that
`run_on_processes` starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from chop import errors, passes, runs
from chop.actions.shard.model import ShardedModel
from chop.actions.shard.settings import ShardConfig
from chop.base import children
from chop.base.files import write_json
from chop.base.files.temporary import scratch_folder
from chop.base.nested import tree_map
from chop.base.plugins import import_modules, imported_modules
from chop.distributed.checking.agreement import run_on_first_process
from chop.distributed.checking.check import check_against_one_process
from chop.distributed.collectives import counted_collectives, totals
from chop.distributed.peers import is_peer_failure
from chop.distributed.plan import ShardingPlan, parse_mesh
from chop.distributed.planning.autosharding import NAME as AUTO
from chop.distributed.process import guarded, launch, start
from chop.errors import ChopError, DistributedError
from chop.kernels.matmul_precision import matmul_precision

PROCESSES = 2
"""Number of processes if neither the settings nor torchrun set it."""
FAILED = 2
"""Exit code of a process that wrote its error to the folder."""
INTERRUPTED = 130
"""Exit code of a process stopped by Ctrl-C, as in shells."""
PROGRAM = (
    "import os, runpy, signal, sys;"
    f"runpy.run_path({children.__file__!r})['end_with'](int(sys.argv[2]));"
    f"signal.signal(signal.SIGINT, lambda *_: os._exit({INTERRUPTED}));"
    "from chop.actions.shard import run;"
    "sys.exit(run.run_from(sys.argv[1]))"
)
"""Program of the processes; arguments are the folder and the process id of the launcher. It handles
the end of the launcher and Ctrl-C even during imports.
"""


def is_launched() -> bool:
    """Returns True if torchrun or a similar launcher started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def mesh_shape(config: ShardConfig) -> tuple[int, ...]:
    """Returns the mesh for a plan search: that of the settings, or all of torchrun's processes."""
    return parse_mesh(config.mesh or processes())


def processes() -> int:
    """Returns the default number of processes: torchrun's, or two."""
    return int(os.environ["WORLD_SIZE"]) if is_launched() else PROCESSES


def run_here(model: ShardedModel, plan: ShardingPlan | None, config: ShardConfig) -> dict[str, Any]:
    """Shards a model, checks its first forward and runs it. Called by all processes.

    Args:
        model: the same on all processes.
        plan: plan for as many processes as there are. None: that of the first process, which
            searches.
        config: settings of the check and the backend.
    Returns: `backend`; `local_bytes` of each process; `check`, a report or None; `collectives` of
        a forward.
    Raises:
        PlanError: if the plan does not fit the model or the processes.
        DistributedError: if a process ended, or the sharded model differs from one process.
    """
    import torch
    import torch.distributed as dist

    mesh = start(mesh_shape(config) if plan is None else plan.mesh, config.backend)
    with (
        guarded("the sharded run"),
        torch.no_grad(),
        matmul_precision(config.matmul_precision),
    ):
        if config.plan == AUTO:
            plan = run_on_first_process(lambda: plan)
        assert plan is not None
        # The check follows below, on inputs with the requested batch and length.
        given = {"plan": plan, "backend": config.backend, "source": model.source, "check": False}
        mg, info = passes.resharding_transform_pass(model.graph, given)
        inputs = _on_device(model.inputs, mesh.device_type)
        check = None
        if config.check:
            check = check_against_one_process(
                model.graph.model, mg.model, inputs, source=model.source
            )
        with counted_collectives() as collectives:
            mg.model(**inputs)
        local: list[Any] = [None] * plan.processes
        dist.all_gather_object(local, info["local_bytes"])
    return {
        "backend": dist.get_backend(),
        "local_bytes": local,
        "check": check and asdict(check),
        "collectives": [asdict(each) for each in totals(collectives)],
    }


def run_on_processes(plan: ShardingPlan, config: ShardConfig) -> dict[str, Any]:
    """Runs `run_here` on new processes of this machine.

    Args:
        plan: the layouts, and the number of processes.
        config: the model, and the other settings of `run_here`.
    Returns: see `run_here`.
    Raises:
        ChopError: if a process fails, which passes on its error, or ends early.
        KeyboardInterrupt: if all were stopped.
    """
    with scratch_folder("shard") as folder:
        plan.write(folder / "plan.json")
        given = replace(config, plan=str(folder / "plan.json"), mesh=None)
        write_json(folder / "settings.json", runs.as_json(given))
        write_json(folder / "modules.json", imported_modules())
        command = [sys.executable, "-c", PROGRAM, str(folder), str(os.getpid())]
        code = launch(command, plan.processes)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise _read_error(folder, code, plan.processes)
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return result


def _read_error(folder: Path, code: int, processes: int) -> ChopError:
    """Returns the first error of the processes; missing another process comes last."""
    messages = [json.loads(path.read_text()) for path in sorted(folder.glob("error-*.json"))]
    if not messages:
        return DistributedError(
            f"one of {processes} processes ended with exit code {code}; see its output above."
        )
    first = min(messages, key=lambda error: error["misses_another"])
    kind: type[ChopError] = getattr(errors, first["class"], ChopError)
    return kind(first["message"])


def _on_device(inputs: Mapping[str, Any], device: str) -> dict[str, Any]:
    from torch import Tensor

    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, Tensor) else x

    return {name: tree_map(move, value) for name, value in inputs.items()}


def run_from(folder: str | Path) -> int:
    """Runs the part of one process in `run_on_processes`.

    Args:
        folder: folder with the settings and the plan, and for results and errors.
    Returns: the exit code.
    """
    folder, rank = Path(folder), os.environ["RANK"]
    try:
        import_modules(json.loads((folder / "modules.json").read_text()))
        config = ShardConfig(**json.loads((folder / "settings.json").read_text()))
        result = run_here(ShardedModel.of(config), ShardingPlan.read(config.plan), config)
    except ChopError as error:
        cause = error.__cause__
        content = {
            "class": type(error).__name__,
            "message": str(error),
            "misses_another": cause is not None and is_peer_failure(cause),
        }
        write_json(folder / f"error-{rank}.json", content)
        return FAILED
    if rank == "0":
        write_json(folder / "result.json", result)
    return 0
