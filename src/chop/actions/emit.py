"""The job of `chop emit`: a model goes in, a circuit that equals it on every output comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich import get_console
from torch import Tensor

from chop import runs
from chop.actions.chance import check_float_model
from chop.actions.check_emitted import (
    GOLDEN,
    KIND,
    check_emitted,
    shown_step,
    verify,
    write_circuit,
)
from chop.actions.interrupt import with_interruption_note
from chop.actions.lower import Lowering, format_accuracies, lower_workload
from chop.actions.settings.emit import EmitConfig
from chop.actions.workload import Workload, settings_with, workload_for
from chop.errors import CheckpointError, ConfigError
from chop.files import atomic_folder, write_json, write_text
from chop.hardware.dataflow import dataflow_svg
from chop.hardware.design import Design
from chop.hardware.emit import emit as emit_design
from chop.hardware.netlist import Instance
from chop.hardware.project import project_of
from chop.hardware.synth import RESOURCES, synthesize
from chop.hardware.tools import VERSIONS, tool_path
from chop.hardware.vectors import codes_of
from chop.hardware.verify import Codes, checks, trace
from chop.integer.golden import golden_values
from chop.ir.annotate import tensors_in
from chop.ir.graph import MaseGraph
from chop.kernels.matmul_precision import matmul_precision
from chop.tables import markdown_table, print_table

ALL_ROWS = 10**9
TOLERANCE = 0.03
"""Of the measured interval, as a share of the planned one, before the report speaks of it."""


def emit(config: EmitConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Quantizes and lowers a model, emits its circuit, and verifies it by simulation.

    Writes a folder `config.out`, which gets its name when every check has passed: `rtl/`,
    `memory/`, `vectors/`, `testbench/`, `design.json`, `golden.safetensors`, `model.pt` and
    `model.mz`, `report.md`, `dataflow.svg`, `result.json` and `manifest.json`.

    Args:
        config: the settings.
        workload: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: what is in `result.json`; with `check_only` the verification alone.
    Raises:
        CheckpointError: with `check_only`: the folder has no emitted circuit.
        ConfigError: settings that do not fit together, or the model has no circuit.
        VerificationError: the circuit is not what the graph is, or files are not those of the
            manifest.
        UnavailableError: the model, the data set or a tool is not there.
    """
    for tool in VERSIONS:
        tool_path(tool)
    if config.check_only:
        return {"verification": [asdict(row) for row in check_emitted(config.out)]}
    # A link would be replaced by the folder.
    config = replace(config, out=config.out.resolve() if config.out.is_symlink() else config.out)
    _check_folder(config.out)
    kept = f"nothing was written to {config.out}/; the same command starts again."
    with (
        matmul_precision(config.matmul_precision),
        with_interruption_note(lambda: kept),
        atomic_folder(config.out) as folder,
    ):
        workload = workload_for(replace(config, out=folder), workload)
        check_float_model(workload, config)
        with runs.start(KIND, settings_with(config, workload), folder) as run:
            return _emit(config, workload, folder, run)


def _check_folder(out: Path) -> None:
    """Raises ConfigError where the folder has something else than an emitted circuit."""
    if not out.is_dir():
        return
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    try:
        manifest = runs.read_manifest(out)
        own = {artifact.path for artifact in manifest.artifacts} if manifest.kind == KIND else set()
    except CheckpointError:
        own = set()
    foreign = sorted(files - own - {runs.MANIFEST})
    if foreign or (files and not own):
        raise ConfigError(
            f"out: '{out}' has other files ('{(foreign or sorted(files))[0]}'), and chop emit "
            "replaces its folder; choose another."
        )


def _emit(config: EmitConfig, workload: Workload, folder: Path, run: runs.Run) -> dict[str, Any]:
    lowering = lower_workload(workload, config, config.samples or ALL_ROWS)
    with shown_step("emitting SystemVerilog"):
        design = emit_design(lowering.integer, config.fold)
        codes = _write(design, lowering, folder)
    samples, project = lowering.rows, project_of(design)
    planned = checks(samples, config.icarus_samples, config.seed)
    found = verify(folder, project, codes, planned)
    resources: list[dict[str, Any]] = []
    if config.synthesis:
        with shown_step("synthesizing with Yosys"):
            resources = synthesize(folder, project)
    if config.wave:
        with shown_step("tracing the first sample"):
            trace(folder, project, codes)
    run.rows = [asdict(row) for row in found]
    result = {
        "config": {**asdict(config), "out": str(config.out), "model": workload.name},
        "format": lowering.number_format.label,
        "interval": design.interval,
        "samples": samples,
        "accuracy": dict(lowering.info["accuracy"]),
        "accuracy_interval_95": lowering.accuracy_intervals,
        "pytorch": _beside_pytorch(lowering),
        "verification": run.rows,
        "components": [_component_row(part) for part in design.netlist.instances],
        "resources": resources,
    }
    _report(config, workload, result, folder)
    run.written += [path for path in folder.rglob("*") if path.is_file()]
    return result


def _write(design: Design, lowering: Lowering, folder: Path) -> Codes:
    """Writes a design with its vectors and testbench; returns the codes of its ports."""
    from safetensors.torch import save_file

    golden = golden_values(lowering.integer, lowering.batch)
    save_file(golden, folder / GOLDEN)
    codes = codes_of(project_of(design), golden)
    write_circuit(design, codes, folder)
    write_text(folder / "dataflow.svg", dataflow_svg(design))
    lowering.integer.export(folder / "model")
    return codes


def _beside_pytorch(lowering: Lowering) -> dict[str, Any]:
    """Outputs of the integer graph, which the circuit has, beside those of the quantized model."""
    compared = different = 0
    largest = 0.0
    found = zip(
        _outputs(lowering.integer, lowering.batch),
        _outputs(lowering.quantized, lowering.batch),
        strict=True,
    )
    for integer, quantized in found:
        distance = (integer - quantized).abs()
        compared += distance.numel()
        different += int((distance != 0).sum())
        largest = max(largest, float(distance.max()))
    return {"outputs": compared, "different": different, "largest": largest}


def _outputs(mg: MaseGraph, batch: Mapping[str, Tensor]) -> list[Tensor]:
    """Real numbers that a graph returns."""
    names = {str(node.target) for node in mg.nodes if node.op == "placeholder"}
    given = {name: x for name, x in batch.items() if name in names}
    with torch.no_grad():
        return [x for x in tensors_in(mg.model(**given)) if x.is_floating_point()]


def _component_row(part: Instance) -> dict[str, Any]:
    plan, memories = part.plan, part.plan.memories.values()
    return {
        "component": part.name,
        "kind": part.kind,
        "module": part.module,
        "lanes": f"{', '.join(map(str, plan.lanes)) or '-'} to {plan.out.lanes}",
        "bits": plan.out.width,
        "cycles": plan.cycles,
        "multipliers": sum(plan.resources.multipliers.values()),
        "rom_bits": sum(memory.bits for memory in memories),
    }


def _report(
    config: EmitConfig, workload: Workload, result: Mapping[str, Any], folder: Path
) -> None:
    """Prints what was found, and writes it."""
    verified = [_printed(row) for row in result["verification"]]
    print_table(f"{workload.title} in {result['format']}: RTL beside the integer graph", verified)
    sentence = _sentence(result)
    get_console().print(sentence, highlight=False)
    text = [f"# {workload.title} in {result['format']}", sentence, "## Verification"]
    text += [markdown_table(verified)]
    if result["resources"]:
        text += ["## Resources", RESOURCES, markdown_table(result["resources"])]
    text += ["## Components", markdown_table(result["components"])]
    write_text(folder / "report.md", "\n\n".join(text) + "\n")
    write_json(folder / "result.json", result)


def _printed(row: Mapping[str, Any]) -> dict[str, Any]:
    interval = row["interval"]
    return {
        "simulator": f"{row['simulator']} {row['version']}",
        "stalls": row["profile"].replace("_", " "),
        "samples": row["samples"],
        "equal outputs": f"{row['equal']:,}",
        "cycles": f"{row['cycles']:,}",
        "interval": "-" if interval is None else f"{interval:,.1f}",
        "planned": f"{row['planned']:,}" if row["profile"] == "none" else "-",
    }


def _sentence(result: Mapping[str, Any]) -> str:
    """What is proven, by how much the circuit differs from PyTorch, and from its plan."""
    found, samples = result["pytorch"], result["samples"]
    compared = f"{found['outputs']:,} outputs of {samples} samples"
    if found["outputs"] and not found["different"]:
        sentences = [f"RTL = PyTorch, bit for bit: {compared} are those of the quantized model."]
    else:
        sentences = [
            f"RTL = integer graph, bit for bit; {found['different']:,} of {compared} differ from "
            f"the quantized model in PyTorch, by at most {found['largest']:.4g}."
        ]
    if result["accuracy"]:
        sentences.append(f"Accuracy on {samples} test rows: {format_accuracies(result)}.")
    measured, planned = result["verification"][0]["interval"], result["interval"]
    if measured is not None and measured > (1 + TOLERANCE) * planned:
        sentences.append(
            f"The circuit takes {measured:,.1f} cycles between samples, planned are {planned:,}: "
            "a FIFO is too short for full speed."
        )
    return " ".join(sentences)
