"""Shard job: plans which process keeps what of a model, runs it and checks the outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from rich import get_console

from chop.actions.job import Job, Output, load_nothing, run_job
from chop.actions.next_steps import steps_with_files
from chop.actions.shard.model import ShardedModel, whole_graph
from chop.actions.shard.run import is_launched, mesh_shape, processes, run_here, run_on_processes
from chop.actions.shard.settings import ShardConfig
from chop.base.files import write_json
from chop.distributed.builtin_plans import find_plan
from chop.distributed.byte_sizes import parse_bytes
from chop.distributed.costs import kept_bytes, replicated_bytes
from chop.distributed.plan import ShardingPlan, format_mesh
from chop.distributed.planning import Machine, Sharding, Simulation, find_sharding, simulate
from chop.distributed.planning.autosharding import NAME as AUTO
from chop.distributed.planning.plan_report import layer_rows, plan_rows
from chop.distributed.tp_plan import tp_plan
from chop.errors import ConfigError, PlanError, enumerate_names
from chop.private.dtensor import operators_without_rule
from chop.report.charts.plans import plan_charts
from chop.report.report import (
    Cell,
    Note,
    Report,
    Table,
    Tile,
    Writer,
    announce,
    figure,
    show,
)
from chop.runs import Outcome

MEMORY_BANDWIDTH = 1.5e12
"""Bytes per second between a process and its memory, for predictions."""
PROVEN = 1e-3
"""Distance from the bound below which a plan is proven to be the fastest."""
NAMED = 3
"""Replicated parameters that are named."""


def shard(config: ShardConfig) -> dict[str, Any]:
    """Plans which process keeps what of a model, and with `config.run` runs and checks it.

    Writes into `config.out`: `plan.json`, `plans.png`, `table.md`, `result.json`, `manifest.json`,
    and `tp_plan.json` where it is asked for. Under torchrun all processes call it, and the first
    writes.

    Returns: what is in `result.json`; on torchrun's other processes, what `run_here` gives.
    Raises:
        ConfigError: settings that do not fit together, or torchrun started a job without `run`.
        PlanError: the plan does not fit the model, the mesh or the processes.
        CheckpointError: files of the model are missing or broken.
        UnavailableError: the model is not there.
        DistributedError: a process ended, or the sharded model differs from one process.
    """
    if is_launched() and not config.run:
        raise ConfigError(
            f"expected run=True under torchrun, which started {os.environ['WORLD_SIZE']} "
            "processes: add --run, or leave torchrun out, since one process plans."
        )
    if is_launched() and os.environ["RANK"] != "0":
        get_console().quiet = True
        model = ShardedModel.of(config)
        return run_here(model, None if config.plan == AUTO else _given(model, config), config)
    return run_job(SHARD, config)


def _shard(config: ShardConfig, workload: None, output: Output) -> Report[dict[str, Any]]:
    model = ShardedModel.of(config)
    announce(str(config.model), "planning")
    found = _planned(model, config)
    plan = found.plan
    result = _result(model, found, config)
    title = _title(result)
    planned = show(
        Table(title, [_shown_plan(row) for row in result["plans"]]),
        Table("", [_shown_process(row) for row in result["processes"]]),
    )
    files: dict[str, Writer] = {"plan.json": plan.write}
    if config.export_tp_plan:
        exported = result["tp_plan"] = tp_plan(whole_graph(config), plan)
        files["tp_plan.json"] = lambda path: write_json(path, exported)
    if config.run:
        result["run"] = _run(model, plan, config)
        result["collectives"] = result["run"].pop("collectives")
    layers = Table("", [_shown_layer(row) for row in result["layers"]], is_printed=False)
    return Report(
        title,
        {"table.md": [*planned, Note("\n".join(_sentences(result))), layers]},
        result,
        result["processes"],
        figures={"plans.png": figure(plan_charts, result["plans"], title, result["memory_bytes"])},
        files=files,
        verdict=_verdict(result),
        warnings=_failures(result),
        tiles=_tiles(result),
        outcome=Outcome("", size_bytes=result["size_bytes"]),
        steps=steps_with_files({"The plan is in this file": config.out / "plan.json"}),
    )


SHARD = Job("shard", _shard, load_nothing)


def _planned(model: ShardedModel, config: ShardConfig) -> Sharding:
    """The plan of the settings, with what it is predicted to cost."""
    if config.plan == AUTO:
        machine = _machine(mesh_shape(config), config)
        with get_console().status("planning") as status:
            return find_sharding(
                model.graph,
                model.inputs,
                machine,
                time_limit_s=config.time_limit_s,
                report=lambda phase: status.update(f"planning: {phase}"),
            )
    plan = _given(model, config)
    machine = _machine(plan.mesh, config)
    found = simulate(model.graph, plan, model.inputs, machine)
    if machine.memory_bytes is not None and found.peak_bytes > machine.memory_bytes:
        raise PlanError(
            f"plan {plan.name or config.plan} needs {found.peak_bytes:,} bytes on a process, and "
            f"there are {machine.memory_bytes:,}; expected --plan {AUTO}, which searches for one "
            "that fits, more --memory, or a larger --mesh."
        )
    return Sharding(found, {}, without_rule=tuple(operators_without_rule()))


def _given(model: ShardedModel, config: ShardConfig) -> ShardingPlan:
    return find_plan(config.plan, model.graph, config.mesh, processes())


def _machine(mesh: tuple[int, ...], config: ShardConfig) -> Machine:
    memory = None if config.memory is None else parse_bytes(config.memory)
    speeds = config.flops, MEMORY_BANDWIDTH, config.bandwidth, config.latency
    return Machine.of(mesh, *speeds, memory, config.backend or "gloo")


def _run(model: ShardedModel, plan: ShardingPlan, config: ShardConfig) -> dict[str, Any]:
    if is_launched():
        return run_here(model, plan, config)
    get_console().print(f"starting {plan.processes} processes", highlight=False, markup=False)
    return run_on_processes(plan, config)


def _result(model: ShardedModel, found: Sharding, config: ShardConfig) -> dict[str, Any]:
    plan, simulation = found.plan, found.simulation
    simulations: dict[str, Simulation] = {plan.name or config.plan: simulation}
    kept, replicated = kept_bytes(model.graph, plan), replicated_bytes(model.graph, plan)
    (whole,) = kept_bytes(model.graph, replace(plan, mesh=(1,), parameters={}, reads={}))
    rows = [
        {"process": rank, "size_bytes": size, "share": size / whole}
        for rank, size in enumerate(kept)
    ]
    return {
        "config": {**asdict(config), "out": str(config.out)},
        "plan": plan.name,
        "mesh": format_mesh(plan.mesh),
        "size_bytes": whole,
        "memory_bytes": None if config.memory is None else parse_bytes(config.memory),
        "largest_share": max(kept) / whole,
        "replicated_bytes": sum(replicated.values()),
        "replicated": replicated,
        "processes": rows,
        "plans": plan_rows({**simulations, **found.alternatives}),
        "failures": dict(found.failures),
        "layers": layer_rows(model.graph, simulation),
        "predicted": [asdict(each) for each in simulation.collectives],
        "collectives": [asdict(each) for each in simulation.collectives],
        "fallbacks": dict(found.fallbacks),
        "without_rule": list(found.without_rule),
        "gap": found.gap,
        "planning_seconds": dict(found.planning_seconds),
        "run": None,
        "tp_plan": None,
    }


def _verdict(result: Mapping[str, Any]) -> str:
    share = f"a process keeps at most {result['largest_share']:.1%} of the model"
    run = f"; {_outcome(result['run'])}" if result["run"] else ""
    return f"Plan {result['plan'] or 'given'} on a mesh of {result['mesh']}: {share}{run}."


def _tiles(result: Mapping[str, Any]) -> list[Tile]:
    """Memory and time of the chosen plan."""
    chosen = result["plans"][0]
    return [
        Tile(
            "largest share of a process",
            Cell.of(result["largest_share"], ".1%"),
            f"of {result['size_bytes'] / 1000:,.1f} kB",
        ),
        Tile("peak memory (kB)", _kilobytes(chosen["peak_bytes"]), "predicted"),
        Tile("forward (ms)", Cell.of(chosen["seconds"] * 1e3, ",.3f"), "predicted"),
        Tile("sent (kB)", _kilobytes(chosen["sent_bytes"]), f"{chosen['calls']} collectives"),
    ]


def _title(result: Mapping[str, Any]) -> str:
    name = f", plan {result['plan']}" if result["plan"] else ""
    return f"{result['config']['model']} on a mesh of {result['mesh']}{name}"


def _shown_process(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "process": row["process"],
        "weights (kB)": _kilobytes(row["size_bytes"]),
        "share of the model": Cell.of(row["share"], ".1%"),
    }


def _shown_plan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "plan": row["plan"],
        "weights (kB)": _kilobytes(row["kept_bytes"]),
        "peak memory (kB)": _kilobytes(row["peak_bytes"]),
        **_predicted(row),
    }


def _shown_layer(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layer": row["layer"],
        "activations (kB)": _kilobytes(row["activation_bytes"]),
        **_predicted(row),
    }


def _predicted(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "predicted (ms)": Cell.of(row["seconds"] * 1e3, ",.3f"),
        "collectives": row["calls"],
        "sent (kB)": _kilobytes(row["sent_bytes"]),
    }


def _kilobytes(size: float) -> Cell:
    return Cell.of(size / 1000, ",.1f")


def _sentences(result: Mapping[str, Any]) -> list[str]:
    """What is below the table."""
    names = enumerate_names(list(result["replicated"]), NAMED)
    share = result["replicated_bytes"] / result["size_bytes"]
    lines = [
        f"whole model {result['size_bytes'] / 1000:,.1f} kB; a process keeps at most "
        f"{result['largest_share']:.1%}; replicated {share:.1%} ({names or 'nothing'})"
    ]
    sent = [
        f"{each['calls']} {each['operation']} ({each['size_bytes'] / 1000:,.1f} kB)"
        for each in result["collectives"]
    ]
    config = result["config"]
    rows = f"a forward of {config['batch']} rows"
    lines.append(f"each process sends in {rows}: {', '.join(sent) or 'nothing'}")
    lines += _failures(result)
    if result["without_rule"]:
        names = ", ".join(result["without_rule"])
        lines.append(f"computed on whole tensors, since DTensor has no rule for them: {names}")
    if result["fallbacks"]:
        lines.append(f"multiplied on whole tensors: {', '.join(result['fallbacks'])}")
    if result["gap"] > PROVEN:
        lines.append("the plan fits, but is not proven to be the fastest (gap in result.json)")
    if result["run"]:
        lines.append(_outcome(result["run"]))
        is_as_predicted = result["collectives"] == result["predicted"]
        lines.append(f"collectives are {'' if is_as_predicted else 'not '}those predicted")
    return lines


def _failures(result: Mapping[str, Any]) -> list[str]:
    return [f"plan {name} cannot run: {why}" for name, why in result["failures"].items()]


def _outcome(run: Mapping[str, Any]) -> str:
    check = run["check"]
    if check is None:
        return f"ran on {run['backend']}; not checked"
    return (
        f"ran on {run['backend']}; {check['nodes']} nodes equal those of one process, the largest "
        f"difference is {check['max_difference']:.1e} of a node's values, "
        f"{check['final_difference']:.1e} of the output's"
    )
