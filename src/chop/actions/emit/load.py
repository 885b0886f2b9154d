"""Weights of a retrained model for a circuit that loads its weights: `--weights-from`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from chop import runs
from chop.actions.emit.lower import Lowering, lower_and_compare
from chop.actions.emit.lower_settings import LoweringConfig
from chop.actions.emit.settings import EmitConfig
from chop.base.files.reading import read_text
from chop.errors import CheckpointError, ConfigError, enumerate_names
from chop.export.qonnx.reader import is_qonnx, read_module
from chop.formats import NumberFormat
from chop.formats.elements import Fixed
from chop.hardware.check.emitted import FOLDS, KIND, emitted_again
from chop.hardware.check.project import describe_project
from chop.hardware.design.design import Design
from chop.hardware.design.instances import Instance
from chop.hardware.design.verilog import code_lines
from chop.ir.graph import MaseGraph
from chop.models.weights import load_weights
from chop.nn.quantized import leaf_operators
from chop.private.modules import own_parameters
from chop.report.report import announce, say
from chop.workloads.workload import Workload, raise_for_integers, raise_to_graph

QUANTIZED = "quantized"
"""Checkpoint of the quantized graph in the folder of a circuit with loadable weights."""
CIRCUIT_SETTINGS = (
    *("formats", "calibration_rows", "fold", "device", "shrink_fifos", "wrap"),
    *("internal_bits", "weight_memory", "decode"),
)
"""Settings that determine a circuit, which gets other weights."""


def config_of_circuit(config: EmitConfig) -> EmitConfig:
    """Returns the settings with those of the circuit in `config.start_from`.

    Raises:
        ConfigError: if there is no circuit, its weights are fixed, or a setting differs.
        CheckpointError: if the folder has no finished circuit.
    """
    folder = config.start_from
    if folder is None:
        raise ConfigError("weights_from: expected the folder of a circuit as well: chop emit RUN.")
    manifest = runs.read_manifest(folder)
    if manifest.kind != KIND or manifest.state != "finished":
        raise CheckpointError(
            f"'{folder}' contains a run of '{manifest.kind}', {manifest.state}: weights_from needs "
            f"a finished run of chop {KIND}."
        )
    if manifest.settings.get("weight_memory") != "loadable":
        raise ConfigError(
            f"weights_from: the weights of '{folder}' are fixed. Emit it with --weight-memory "
            "loadable."
        )
    usual = {name: getattr(EmitConfig(), name) for name in CIRCUIT_SETTINGS}
    own = {name: manifest.settings.get(name, value) for name, value in usual.items()}
    for name, value in own.items():
        given = getattr(config, name)
        if given not in (value, usual[name]):
            raise ConfigError(f"{name}: '{folder}' has {value}, got {given}; leave it out.")
    return replace(config, **own)


def check_loadable(design: Design) -> None:
    """Raises ConfigError if a circuit that was to load its weights has only fixed ones."""
    if design.load is None:
        raise ConfigError(
            "weight_memory: this circuit has no loadable weights, which are parameters in formats "
            "without shared exponents, such as 8.auto; use fixed."
        )


def copy_folds(config: EmitConfig, folder: Path) -> None:
    """Copies the folds of the circuit in `config.start_from` into a folder."""
    assert config.start_from is not None
    shutil.copyfile(config.start_from / FOLDS, folder / FOLDS)


def lower_again(workload: Workload, config: LoweringConfig, rows: int) -> Lowering:
    """Lowers the quantized graph of a circuit with the weights in a file.

    Args:
        workload: the model of the circuit and its rows.
        config: settings with `start_from` and `weights_from`.
        rows: number of test rows to compare both graphs on.
    Raises:
        CheckpointError: if the file does not fit the model.
    """
    assert isinstance(config, EmitConfig) and config.start_from and config.weights_from
    announce(workload.title, f"quantizing the weights of {config.weights_from}")
    if is_qonnx(config.weights_from):
        read = replace(workload, model=read_module(config.weights_from))
        quantized = raise_to_graph(read, with_cache=False)
    else:
        quantized = MaseGraph.from_checkpoint(config.start_from / QUANTIZED)
        _take_weights(quantized, workload, config.weights_from)
    clipped = list(_clipped(quantized))
    if clipped:
        say(
            f"Clipped to the range of the circuit's formats: {enumerate_names(clipped, 4)}. Keep "
            "weights within this range in training."
        )
    label = f"the formats of {config.start_from}"
    circuit = MaseGraph.from_checkpoint(config.start_from / "model")
    settings = {**config.lowering, "circuit": circuit}
    return lower_and_compare(quantized, label, workload, rows, settings)


def _take_weights(quantized: MaseGraph, workload: Workload, path: Path) -> None:
    """Loads the weights in a file into a quantized graph, with the batch norms in the file folded.

    Raises:
        CheckpointError: if the file does not fit the model, or has NaN or an infinite number.
    """
    model = deepcopy(workload.model)
    if model.state_dict().keys() == quantized.model.state_dict().keys():
        load_weights(quantized.model, path)
    else:
        load_weights(model, path)
        folded = raise_for_integers(replace(workload, model=model))
        quantized.model.load_state_dict(folded.model.state_dict())
    parameters = quantized.model.named_parameters()
    wrong = [name for name, x in parameters if not bool(x.isfinite().all())]
    if wrong:
        raise CheckpointError(
            f"'{path}' has NaN or an infinite number in {enumerate_names(wrong, 4)}: expected "
            "finite weights."
        )


def _clipped(mg: MaseGraph) -> Iterator[str]:
    """Yields the name of each parameter with numbers beyond its format, and their number."""
    for path, module in leaf_operators(mg.model).items():
        for operand, x in own_parameters(module).items():
            number_format = module.operand_format(operand)
            if x is None or not isinstance(number_format, NumberFormat):
                continue  # an operand without a format
            layout = number_format.layout()
            if layout is not None and isinstance(element := layout.element, Fixed):
                codes = x.detach().double() * 2.0**element.frac_width
                low, high = element.lowest_code - 0.5, element.largest_code + 0.5
                count = int(((codes < low) | (codes > high)).sum())
                if count:
                    yield f"{count:,} of {x.numel():,} numbers of {path}.{operand}"


def circuit_with_weights(folder: Path, integer: MaseGraph) -> Design:
    """Returns the loadable circuit of a folder with the weights of another integer graph.

    Raises:
        ConfigError: if the circuits differ in more than loadable weights; the message says where.
        CheckpointError: if this version emits another circuit for the model in the folder.
    """
    manifest = runs.read_manifest(folder)
    own = emitted_again(folder, MaseGraph.from_checkpoint(folder / "model"), manifest)
    for path, text in own.files.items():
        written = read_text(folder / path, "design")
        if code_lines(written) != code_lines(text):
            raise CheckpointError(
                f"'{folder / path}' differs from the file that this version of chop emits, so the "
                "order of the weights may differ, too. Emit the circuit again."
            )
    other = emitted_again(folder, integer, manifest)
    difference = next(_differences(own, other), "")
    if difference:
        raise ConfigError(
            f"weights_from: the circuit '{folder}' cannot take these weights: {difference}. Emit a "
            "circuit for this model, or train without changing these numbers. Formats with fixed "
            "fractions, such as 8.auto, keep all scales."
        )
    return other


def _differences(own: Design, other: Design) -> Iterator[str]:
    """Describes what is fixed in one circuit and differs in another one."""
    pairs = zip(own.netlist.instances, other.netlist.instances, strict=False)
    for first, second in pairs:
        yield from _component_differences(first, second)
    codes = describe_project(own).codes, describe_project(other).codes
    ports = [*own.netlist.inputs, *own.netlist.outputs]
    scaled = {port.name for port in ports if port.wire.stream.edge.is_trained}
    for name in codes[0].keys() | codes[1].keys():
        before, after = codes[0].get(name), codes[1].get(name)
        if before and after and name in scaled:  # the host reads the new step in design.json
            after = replace(after, step=before.step)
        if before != after:
            yield f"the codes of port '{name}' have another meaning"
    if own.files != other.files:
        yield "its components are connected in another way"


def _component_differences(own: Instance, other: Instance) -> Iterator[str]:
    where = f"component '{own.name}' ({own.path or own.kind})"
    kinds = (own.name, own.module), (other.name, other.module)
    if kinds[0] != kinds[1]:
        yield f"{where} is a {own.module}, and the model needs a {other.module}"
        return
    for name, memory in own.plan.memories.items():
        given = other.plan.memories.get(name)
        if not memory.is_loadable and given != memory:
            yield f"{where} has a fixed memory, {name}, whose contents differ ({own.fixed_because})"
    for name, value in own.plan.parameters.items():
        if (wanted := other.plan.parameters.get(name)) != value:
            yield f"{where} has {name} = {value}, and the model needs {wanted}"
