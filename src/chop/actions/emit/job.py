"""Emit job: lowers a model to integers, writes its circuit and verifies every output."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from chop import runs
from chop.actions.emit.check import check_again
from chop.actions.emit.decoding import decoder_memory
from chop.actions.emit.load import (
    QUANTIZED,
    check_loadable,
    circuit_with_weights,
    config_of_circuit,
    copy_folds,
    lower_again,
)
from chop.actions.emit.lower import Lowering, lower_workload
from chop.actions.emit.report import circuit_report
from chop.actions.emit.settings import EmitConfig
from chop.actions.emit.timing import circuit_timing
from chop.actions.job import Job, Output, load_checked, run_job
from chop.actions.next_steps import quoted
from chop.actions.starting_run import check_saved_model, config_of_run
from chop.base.files import atomic_folder, recover_folder, write_text
from chop.base.files.locks import LOCK_FILE
from chop.errors import CheckpointError, ConfigError, UnavailableError
from chop.formats import parse_format_string
from chop.hardware.check.emitted import KIND, display_step, verify, write_circuit, write_folds
from chop.hardware.check.project import BOARD, BUILD, Project, describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Codes, checks, trace
from chop.hardware.costs.board import check_pins, write_board
from chop.hardware.costs.devices import RESOURCES as COUNTED
from chop.hardware.costs.devices import XC7, parse_device
from chop.hardware.costs.estimate import design_usage
from chop.hardware.costs.place import check_device, check_fits, place
from chop.hardware.costs.synth import synthesize
from chop.hardware.design.axis import with_axi_ports
from chop.hardware.design.dataflow import dataflow_svg
from chop.hardware.design.design import Design
from chop.hardware.design.emit import emit as emit_design
from chop.hardware.folds.fold import fold_for
from chop.hardware.folds.foldable import Folding
from chop.hardware.folds.limits import check_products, unmet_fold
from chop.hardware.folds.shrink import Verified, check_samples, verify_shrunk
from chop.hardware.tools import VERSIONS, tool_path
from chop.integer.compare import compare_outputs
from chop.integer.golden import GOLDEN
from chop.report.report import Report, say
from chop.workloads.workload import Workload

ALL_ROWS = 10**9


Lower = Callable[[Workload, EmitConfig, int], Lowering]
"""Function that lowers a workload, and compares a number of test rows."""


def emit(
    config: EmitConfig,
    workload: Workload | None = None,
    lower: Lower = lower_workload,
    has_multipliers: bool | None = None,
) -> dict[str, Any]:
    """Quantizes and lowers a model, emits its circuit, and verifies it by simulation.

    Writes the folder `config.out` after all checks passed: `rtl/`, `memory/`, `vectors/`,
    `testbench/`, `design.json`, `golden.safetensors`, `model.pt` and `model.mz`, `report.md`,
    `dataflow.svg`, `result.json` and `manifest.json`.

    Args:
        config: settings of the job.
        workload: your own trained model and rows, see `Workload.of`. Default: the model and
            data that `config` names.
        lower: function that returns the integer graph, instead of `config.formats`.
        has_multipliers: False if products must use lookup tables. Default: by `config.device`.
    Returns: the content of `result.json`; with `check_only` only the verification.
    Raises:
        CheckpointError: if `check_only` is set and the folder has no emitted circuit.
        ConfigError: if settings do not fit together, or the model has no circuit.
        VerificationError: if the circuit differs from the graph, or files from the manifest.
        UnavailableError: if the model, the data set or a tool is missing.
    """
    for tool in VERSIONS:
        tool_path(tool)
    if config.check_only:
        return check_again(config)
    if config.weights_from is not None:
        config, lower = config_of_circuit(config), lower_again
    else:
        check_saved_model(config.start_from)
    if lower is lower_workload:
        parse_format_string(config.formats)  # reject a wrong one before reading data
    if config.place:
        check_device(config.placed_on)
        if not (config.fold or config.device or config.weights_from):
            config = replace(config, device=config.placed_on)
    # Without resolving it, the folder would replace a link.
    config = replace(config, out=config.out.resolve() if config.out.is_symlink() else config.out)
    recover_folder(config.out)
    earlier = _earlier_files(config.out)
    with atomic_folder(config.out, lambda name: _is_foreign(config.out / name, earlier)) as folder:
        config = config_of_run(config, workload, folder)
        has = config.has_multipliers if has_multipliers is None else has_multipliers
        return run_job(replace(EMIT, run=partial(_emit, lower, has)), config, workload, folder)


def _earlier_files(out: Path) -> set[Path]:
    """Returns the files of an emitted circuit in a folder.

    Raises:
        ConfigError: if the folder has other files.
    """
    if not out.is_dir():
        return set()
    paths = (path for path in out.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    files = {path.relative_to(out).as_posix() for path in paths}
    try:
        manifest = runs.read_manifest(out)
        own = {artifact.path for artifact in manifest.artifacts} if manifest.kind == KIND else set()
    except CheckpointError:
        own = set()
    foreign = sorted(files - own - {runs.MANIFEST})
    if foreign or (files and not own):
        first = (foreign or sorted(files))[0]
        is_built = bool(own) and all(name.startswith(f"{BUILD}/") for name in foreign)
        way_out = f"run make -C {quoted(out / BOARD)} clean, or choose" if is_built else "choose"
        raise ConfigError(
            f"out: '{out}' has other files ('{first}'), and chop emit replaces its folder: "
            f"{way_out} another folder."
        )
    return {out / name for name in files}


def _is_foreign(path: Path, earlier: Container[Path]) -> bool:
    """Returns True, and prints a line, if a file was added while a circuit was emitted."""
    if path in earlier or path.name == LOCK_FILE:
        return False
    say(f"'{path}' was added while chop emit ran and stays in the folder.")
    return True


def _emit(
    lower: Lower, has_multipliers: bool, config: EmitConfig, workload: Workload, output: Output
) -> Report[dict[str, Any]]:
    folder, lowering = output.folder, lower(workload, config, config.samples or ALL_ROWS)
    if config.samples is not None and config.samples > lowering.test_rows:
        say(f"samples: there are only {lowering.test_rows:,} test rows; all are simulated.")
    if config.weights_from is not None:  # FIFOs keep the depths of the circuit
        config = replace(config, shrink_fifos=False)
    if config.shrink_fifos:
        check_samples(lowering.rows)
    folding = _folding(config, lowering, folder)
    with display_step("emitting SystemVerilog"):
        planned = _plan(config, lowering, folding, has_multipliers)
        size = check_products(planned, lowering.integer, config.fold, config.force)
        unmet = unmet_fold(planned, lowering.integer, config.fold)
        codes = _write(planned, lowering, folder)
    if size:
        say(size)
    verified = _verified(config, planned, codes, lowering.rows, folder)
    design, simulations = verified.design, verified.verification
    project = describe_project(design)
    write_text(folder / "dataflow.svg", dataflow_svg(design))
    write_board(folder, project, config.clock_mhz, config.placed_on, has_multipliers, config.pins)
    resources, uncounted = _counted(config, folder, project, has_multipliers)
    interval = simulations[0].interval or design.interval
    placement = _placement(config, folder, project, interval, has_multipliers)
    if config.wave:
        with display_step("tracing the first sample"):
            trace(folder, project, codes)
    verification = [asdict(row) for row in simulations]
    result: dict[str, Any] = {
        "config": {**runs.as_json(config), "model": workload.name},
        "format": lowering.label,
        "interval": design.interval,
        "unmet_fold": unmet,
        "samples": lowering.rows,
        "accuracy": dict(lowering.info["accuracy"]),
        "accuracy_interval_95": lowering.accuracy_intervals,
        "pytorch": {
            **compare_outputs(lowering.integer, lowering.quantized, lowering.batch, lowering.whole),
            "operators": [row for row in lowering.info["operators"] if row["different"]],
        },
        "verification": verification,
        "timing": circuit_timing(design, verification, placement, config.clock_mhz),
        "decoder": decoder_memory(design),
        "components": [part.row for part in design.netlist.instances],
        "resources": resources,
        "uncounted": uncounted,
        "fifos": _depths(config, planned, verified),
        "device": _taken(config, design),
        "undecided": list(folding.undecided) if folding else [],
        "placement": placement,
    }
    return circuit_report(config, workload, design, lowering, result, folder)


EMIT = Job(
    KIND,
    partial(_emit, lower_workload, True),
    load_checked,
    lambda config: f"no results were saved in {config.out}/. Run the same command to start again.",
)


def _placement(
    config: EmitConfig, folder: Path, project: Project, interval: float, has_multipliers: bool
) -> dict[str, Any]:
    """Places the circuit, if the settings ask for it; returns the outcome."""
    if not config.place:
        return {}
    seeds = config.place_seeds or 3
    return place(folder, project, config.placed_on, seeds, interval, has_multipliers, config.pins)


def _plan(
    config: EmitConfig, lowering: Lowering, folding: Folding | None, has_multipliers: bool
) -> Design:
    """Returns the circuit, and checks that it fits its device and pin constraints."""
    if config.weights_from is not None:
        assert config.start_from is not None
        design = circuit_with_weights(config.start_from, lowering.integer)
    elif folding is None:
        design = emit_design(lowering.integer, config.fold)
    else:
        design = emit_design(lowering.integer, folding.fold, folds=folding.folds, soft=folding.soft)
    if config.weight_memory == "loadable":
        check_loadable(design)
    if config.wrap != "none" and config.weights_from is None:  # weights come with their wrapper
        design = with_axi_ports(design, config.wrap)
    if config.place:
        check_fits(design, config.placed_on, has_multipliers)
    if config.pins is not None:
        check_pins(config.pins, describe_project(design))
    return design


def _folding(config: EmitConfig, lowering: Lowering, folder: Path) -> Folding | None:
    """Returns the folds for a device, and writes them into the folder."""
    if config.device is None:
        return None
    if config.weights_from is not None:
        copy_folds(config, folder)
        return None
    with display_step(f"folding for {config.device}"):
        folding = fold_for(lowering.integer, parse_device(config.device))
    write_folds(folding, folder)
    return folding


def _verified(
    config: EmitConfig, design: Design, codes: Codes, rows: int, folder: Path
) -> Verified:
    """Returns a design in the folder that passed every simulation."""
    planned = checks(rows, config.icarus_samples, config.seed)
    if config.shrink_fifos:
        return verify_shrunk(folder, design, codes, planned)
    return Verified(design, verify(folder, describe_project(design), codes, planned))


def _depths(config: EmitConfig, planned: Design, verified: Verified) -> dict[str, Any]:
    """Returns the outcome of FIFO shrinking, with estimated resources before and after."""
    if not config.shrink_fifos:
        return {}
    # Without a device, count resources of 7-series, as Yosys does.
    named = config.device or (config.placed_on if config.place else "7-series")
    family = parse_device(named).family if named != "7-series" else XC7
    before, after = (
        design_usage(each.netlist, each.connections, family) for each in (planned, verified.design)
    )
    rows = zip(COUNTED, before, after, strict=True)
    return {
        "depths": [{**asdict(fifo), "saved_bits": fifo.saved_bits} for fifo in verified.fifos],
        "kept_because": verified.reason,
        "estimated_for": named,
        "family": family.title,
        "estimated": [{"resource": name, "planned": a, "kept": b} for name, a, b in rows],
    }


def _taken(config: EmitConfig, design: Design) -> list[dict[str, Any]]:
    """Returns the estimated use of each resource of the device."""
    if config.device is None:
        return []
    device = parse_device(config.device)
    usage = design_usage(design.netlist, design.connections, device.family)
    rows = [(name, getattr(usage, name), getattr(device, name)) for name in COUNTED]
    return [{"resource": name, "estimated": taken, "there": there} for name, taken, there in rows]


def _write(design: Design, lowering: Lowering, folder: Path) -> Codes:
    """Writes a design with its vectors and testbench; returns the codes of its ports."""
    codes = get_codes(describe_project(design), lowering.write_golden(folder / GOLDEN))
    write_circuit(design, codes, folder)
    lowering.integer.export(folder / "model")
    if design.load is not None:
        lowering.quantized.export(folder / QUANTIZED)
    return codes


def _counted(
    config: EmitConfig, folder: Path, project: Project, has_multipliers: bool
) -> tuple[list[dict[str, Any]], str]:
    """Returns Yosys' resource counts, or the reason why they are missing; the circuit stays."""
    if not config.synthesis:
        return [], ""
    try:
        with display_step("synthesizing with Yosys"):
            return synthesize(folder, project, has_multipliers=has_multipliers), ""
    except UnavailableError as error:
        return [], str(error)
