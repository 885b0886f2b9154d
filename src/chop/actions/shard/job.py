"""Shard job: finds a sharding plan for a model, runs it and checks the outputs."""

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
from chop.bench.record import format_seconds
from chop.distributed.builtin_plans import find_plan
from chop.distributed.byte_sizes import parse_bytes
from chop.distributed.costs import parameter_bytes, replicated_bytes
from chop.distributed.plan import ShardingPlan, format_mesh
from chop.distributed.planning import Machine, Sharding, Simulation, find_sharding, simulate
from chop.distributed.planning.autosharding import NAME as AUTO
from chop.distributed.planning.plan_report import layer_rows, plan_rows
from chop.distributed.tp_plan import tp_plan
from chop.errors import ConfigError, PlanError, enumerate_names
from chop.models.positions import check_positions
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
"""Memory bandwidth of a process in bytes per second, for predictions."""
PROVEN = 1e-3
"""Relative optimality gap below which a plan counts as the fastest."""
NAMED = 3
"""Maximum number of replicated parameters in a message."""


def shard(config: ShardConfig) -> dict[str, Any]:
    """Finds a sharding plan for a model, and with `config.run` runs and checks it.

    Writes into `config.out`: `plan.json`, `plans.png`, `table.md`, `result.json`, `manifest.json`,
    and `tp_plan.json` if requested. Under torchrun all processes call this function, and the first
    one writes.

    Returns: the content of `result.json`; on torchrun's other processes, that of `run_here`.
    Raises:
        ConfigError: if settings do not fit together, or torchrun started a job without `run`.
        PlanError: if the plan does not fit the model, the mesh or the processes.
        CheckpointError: if files of the model are missing or broken.
        UnavailableError: if the model is missing.
        DistributedError: if a process ended, or the sharded model differs from one process.
    """
    if is_launched() and not config.run:
        raise ConfigError(
            f"expected run=True under torchrun with {os.environ['WORLD_SIZE']} processes: add "
            "--run, or leave out torchrun for planning."
        )
    if is_launched() and os.environ["RANK"] != "0":
        get_console().quiet = True
        model = ShardedModel.of(config)
        return run_here(model, None if config.plan == AUTO else _given(model, config), config)
    return run_job(SHARD, config)


def _shard(config: ShardConfig, workload: None, output: Output) -> Report[dict[str, Any]]:
    model = ShardedModel.of(config)
    check_positions(config.length, model.graph.model, "length")
    announce(str(config.model), "planning")
    sharding = _planned(model, config)
    plan = sharding.plan
    result = _result(model, sharding, config)
    title = _title(result)
    planned = show(
        Table(title, [_plan_row(row) for row in result["plans"]]),
        Table("", [_process_row(row) for row in result["processes"]]),
    )
    files: dict[str, Writer] = {"plan.json": plan.write}
    if config.export_tp_plan:
        exported = result["tp_plan"] = tp_plan(whole_graph(config), plan)
        files["tp_plan.json"] = lambda path: write_json(path, exported)
    if config.run:
        result["run"] = _run(model, plan, config)
        result["collectives"] = result["run"].pop("collectives")
    layers = Table("", [_layer_row(row) for row in result["layers"]], is_printed=False)
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
    """Returns the plan of the settings, with its predicted costs."""
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
    simulation = simulate(model.graph, plan, model.inputs, machine)
    if machine.memory_bytes is not None and simulation.peak_bytes > machine.memory_bytes:
        raise PlanError(
            f"plan {plan.name or config.plan} needs {simulation.peak_bytes:,} bytes on a process, "
            f"which has {machine.memory_bytes:,}. Use --plan {AUTO} to search for one that fits, "
            "more --memory, or a larger --mesh."
        )
    return Sharding(simulation, {}, without_rule=tuple(operators_without_rule()))


def _given(model: ShardedModel, config: ShardConfig) -> ShardingPlan:
    return find_plan(config.plan, model.graph, config.mesh, processes(), [AUTO])


def _machine(mesh: tuple[int, ...], config: ShardConfig) -> Machine:
    memory = None if config.memory is None else parse_bytes(config.memory)
    speeds = config.flops, MEMORY_BANDWIDTH, config.bandwidth, config.latency
    return Machine.of(mesh, *speeds, memory, config.backend or "gloo")


def _run(model: ShardedModel, plan: ShardingPlan, config: ShardConfig) -> dict[str, Any]:
    if is_launched():
        return run_here(model, plan, config)
    get_console().print(f"starting {plan.processes} processes", highlight=False, markup=False)
    return run_on_processes(plan, config)


def _result(model: ShardedModel, sharding: Sharding, config: ShardConfig) -> dict[str, Any]:
    plan, simulation = sharding.plan, sharding.simulation
    simulations: dict[str, Simulation] = {plan.name or config.plan: simulation}
    sizes, replicated = parameter_bytes(model.graph, plan), replicated_bytes(model.graph, plan)
    (whole,) = parameter_bytes(model.graph, replace(plan, mesh=(1,), parameters={}, reads={}))
    rows = [
        {"process": rank, "size_bytes": size, "share": size / whole}
        for rank, size in enumerate(sizes)
    ]
    return {
        "config": {**asdict(config), "out": str(config.out)},
        "plan": plan.name,
        "mesh": format_mesh(plan.mesh),
        "size_bytes": whole,
        "memory_bytes": None if config.memory is None else parse_bytes(config.memory),
        "largest_share": max(sizes) / whole,
        "replicated_bytes": sum(replicated.values()),
        "replicated": replicated,
        "processes": rows,
        "plans": plan_rows({**simulations, **sharding.alternatives}),
        "failures": dict(sharding.failures),
        "layers": layer_rows(model.graph, simulation),
        "predicted": [asdict(each) for each in simulation.collectives],
        "collectives": [asdict(each) for each in simulation.collectives],
        "fallbacks": dict(sharding.fallbacks),
        "without_rule": list(sharding.without_rule),
        "gap": sharding.gap,
        "planning_seconds": dict(sharding.planning_seconds),
        "run": None,
        "tp_plan": None,
    }


def _verdict(result: Mapping[str, Any]) -> str:
    share = f"a process holds at most {result['largest_share']:.1%} of the model"
    run = f"; {_outcome(result['run'])}" if result["run"] else ""
    return f"Plan {result['plan'] or 'given'} on a mesh of {result['mesh']}: {share}{run}."


def _tiles(result: Mapping[str, Any]) -> list[Tile]:
    """Returns tiles with memory and time of the chosen plan."""
    chosen = result["plans"][0]
    seconds = chosen["seconds"]
    return [
        Tile(
            "largest share of a process",
            Cell.of(result["largest_share"], ".1%"),
            f"of {result['size_bytes'] / 1000:,.1f} kB",
        ),
        Tile("peak memory (kB)", _kilobytes(chosen["peak_bytes"]), "predicted"),
        Tile("forward", Cell(seconds, str(format_seconds(seconds))), "predicted"),
        Tile("sent (kB)", _kilobytes(chosen["sent_bytes"]), f"{chosen['calls']} collectives"),
    ]


def _title(result: Mapping[str, Any]) -> str:
    name = f", plan {result['plan']}" if result["plan"] else ""
    return f"{result['config']['model']} on a mesh of {result['mesh']}{name}"


def _process_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "process": row["process"],
        "weights (kB)": _kilobytes(row["size_bytes"]),
        "share of the model": Cell.of(row["share"], ".1%"),
    }


def _plan_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "plan": row["plan"],
        "weights (kB)": _kilobytes(row["kept_bytes"]),
        "peak memory (kB)": _kilobytes(row["peak_bytes"]),
        **_predicted(row),
    }


def _layer_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layer": row["layer"],
        "activations (kB)": _kilobytes(row["activation_bytes"]),
        **_predicted(row),
    }


def _predicted(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "predicted (ms)": _milliseconds(row["seconds"]),
        "collectives": row["calls"],
        "sent (kB)": _kilobytes(row["sent_bytes"]),
    }


def _milliseconds(seconds: float) -> Cell:
    value = seconds * 1e3
    return Cell.of(value, ",.3f" if value >= 0.1 else ".2g")


def _kilobytes(size: float) -> Cell:
    return Cell.of(size / 1000, ",.1f")


def _sentences(result: Mapping[str, Any]) -> list[str]:
    """Returns the sentences below the table."""
    names = enumerate_names(list(result["replicated"]), NAMED)
    share = result["replicated_bytes"] / result["size_bytes"]
    lines = [
        f"whole model {result['size_bytes'] / 1000:,.1f} kB; a process holds at most "
        f"{result['largest_share']:.1%}; replicated {share:.1%} ({names or 'nothing'})"
    ]
    sent = [
        f"{each['calls']} {each['operation']} ({each['size_bytes'] / 1000:,.1f} kB)"
        for each in result["collectives"]
    ]
    config = result["config"]
    rows = f"a forward of {config['batch']} rows"
    lines.append(f"each process sends, in {rows}: {', '.join(sent) or 'nothing'}")
    lines += _failures(result)
    if result["without_rule"]:
        names = ", ".join(result["without_rule"])
        lines.append(f"computed on whole tensors (DTensor has no sharding rule): {names}")
    if result["fallbacks"]:
        lines.append(f"multiplied on whole tensors: {', '.join(result['fallbacks'])}")
    if result["gap"] > PROVEN:
        lines.append("the plan fits, but may not be the fastest (see gap in result.json)")
    if result["run"]:
        lines.append(_outcome(result["run"]))
        is_as_predicted = result["collectives"] == result["predicted"]
        lines.append(f"collectives {'equal' if is_as_predicted else 'differ from'} the prediction")
    return lines


def _failures(result: Mapping[str, Any]) -> list[str]:
    return [f"plan {name} cannot run: {why}" for name, why in result["failures"].items()]


def _outcome(run: Mapping[str, Any]) -> str:
    check = run["check"]
    if check is None:
        return f"ran on {run['backend']}; not checked"
    return (
        f"ran on {run['backend']}; {check['nodes']} nodes agree with one process: relative "
        f"difference at most {check['max_difference']:.1e}, at the output "
        f"{check['final_difference']:.1e}"
    )
