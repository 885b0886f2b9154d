"""Report of a circuit: verdict, warnings, tables of verification, resources and placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.actions.emit.decoding import decoding_blocks
from chop.actions.emit.lower import Lowering, accuracy_sentence, integer_outcome
from chop.actions.emit.page import (
    HANDSHAKE,
    LANES,
    SOFT,
    TOLERANCE,
    VALUES,
    build_tiles,
    charts_of_circuit,
    equal_outputs,
    fifo_blocks,
    interface_table,
    load_blocks,
    wrapper_blocks,
)
from chop.actions.emit.settings import EmitConfig
from chop.actions.emit.timing import timing_blocks
from chop.actions.next_steps import steps_after_emit
from chop.hardware.check.project import BOARD
from chop.hardware.costs.devices import XC7, parse_device
from chop.hardware.costs.estimate import describe_estimate
from chop.hardware.costs.synth import RESOURCES
from chop.hardware.design.design import Design
from chop.hardware.folds.limits import describe_unmet
from chop.report.report import Block, Cell, Heading, Note, Report, Table
from chop.workloads.workload import Workload


def circuit_report(
    config: EmitConfig,
    workload: Workload,
    design: Design,
    lowering: Lowering,
    result: dict[str, Any],
    folder: Path,
) -> Report[dict[str, Any]]:
    """Returns the report of an emitted circuit.

    Args:
        config: settings of the job.
        workload: the model and its rows.
        design: the circuit.
        lowering: the integer graph of the circuit.
        result: content of `result.json`.
        folder: folder with the files of the circuit.
    """
    title = f"{workload.title} in {result['format']}"
    return Report(
        title,
        {"report.md": _blocks(title, result, design)},
        result,
        _rows(result),
        written=[path for path in folder.rglob("*") if path.is_file()],
        verdict=_proven(result),
        warnings=_warnings(result),
        tiles=build_tiles(result),
        charts=charts_of_circuit(design, lowering.integer, result),
        outcome=integer_outcome(result, workload, result["samples"]),
        steps=steps_after_emit(config.out),
    )


def _rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the simulations for the manifest, with FIFO depths if they were to be shrunk."""
    fifos = result["fifos"].get("depths", [])
    depths = {
        f"{kind}_depths": {fifo["name"]: fifo[kind] for fifo in fifos}
        for kind in ("planned", "kept")
    }
    return [{**row, **(depths if fifos and row["fills"] else {})} for row in result["verification"]]


def _blocks(title: str, result: Mapping[str, Any], design: Design) -> list[Block]:
    sentence = _sentence(result)
    verified = [_simulation_row(row) for row in result["verification"]]
    blocks = [
        Heading(title, level=1),
        Note(sentence, is_printed=False),
        Heading("Interface"),
        *(Note(text, is_printed=False) for text in (HANDSHAKE, LANES, VALUES)),
        interface_table(design),
        *wrapper_blocks(design),
        *load_blocks(design),
        *timing_blocks(result["timing"]),
        *decoding_blocks(result),
        Heading("Verification"),
        Table(f"{title}: RTL against the integer graph", verified),
        equal_outputs(design, result["verification"]),
        Note(sentence, is_written=False),
    ]
    blocks += fifo_blocks(result)
    if result["resources"]:
        blocks += [Heading("Resources"), Note(RESOURCES, is_printed=False)]
        blocks += _other_family(result["config"]["device"])
        blocks += [Table("Counted by Yosys for 7 series", result["resources"], is_printed=False)]
    if result["device"]:
        blocks += [Heading(f"Estimated for {result['config']['device']}")]
        estimated = describe_estimate(parse_device(result["config"]["device"]).family.title)
        blocks += [Note(estimated), Table("Used by estimate", result["device"])]
    if result["placement"]:
        used = _utilization(result["placement"])
        blocks += [Heading("Placement"), Note(_placed_sentence(result["placement"]))]
        blocks += [Note(_pins_sentence(result["placement"]))]
        blocks += [Table("Used after routing", used, is_printed=False)]
    components = Table("Lanes and cycles by component", _component_rows(result), is_printed=False)
    return [*blocks, Heading("Components"), components]


def _other_family(device: str | None) -> list[Block]:
    """Returns a note if Yosys' counts are for another family than that of the device."""
    if device is None or parse_device(device).family is XC7:
        return []
    return [
        Note(
            f"These numbers are not for {device}. Its estimate follows below. In the output "
            f"folder, 'make -C {BOARD} synth' writes Yosys' counts for it to {BOARD}/build.",
            is_printed=False,
        )
    ]


def _placed_sentence(placement: Mapping[str, Any]) -> str:
    """Describes the clock of a placed design, and its critical path."""
    grade, path = placement["speed_grade"], placement["critical_path"]
    device = f"{placement['device']}, speed grade {grade}" if grade else placement["device"]
    clocks = ", ".join(f"{row['mhz']:.1f}" for row in placement["seeds"])
    count = len(placement["seeds"])
    name = "lower of two" if count == 2 else "median over"
    median = f", the {name} seeds ({clocks} MHz)" if count > 1 else ""
    tools = " and ".join(f"{tool} {number}" for tool, number in placement["tools"].items())
    sentence = (
        f"{placement['frequency_mhz']:.1f} MHz after routing on {device}{median}, "
        f"with {tools}: {placement['samples_per_second']:,} samples per second."
    )
    if path:
        sentence += (
            f" The critical path goes from {path['from']} to {path['to']}: {path['logic_ns']} ns "
            f"in {path['levels']} levels of cells and {path['wire_ns']} ns in wires."
        )
    return sentence


def _pins_sentence(placement: Mapping[str, Any]) -> str:
    """States whether a board can use the bitstream."""
    if placement["pins"]:
        return f"The pins are those of {placement['pins']}, see the folder {BOARD}."
    return (
        "No pin constraints: the bitstream is for timing only. For a board, give a file with its "
        f"sites (pins); the examples in the folder {BOARD} list all pins."
    )


def _utilization(placement: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"resource": name, **numbers} for name, numbers in sorted(placement["utilization"].items())
    ]


def _component_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of components, with products in lookup tables only if there are some."""
    rows = result["components"]
    hidden = set() if any(row[SOFT] for row in rows) else {SOFT}
    return [{name: row[name] for name in row if name not in hidden} for row in rows]


def _simulation_row(row: Mapping[str, Any]) -> dict[str, Any]:
    interval = row["interval"]
    if row["profile"] != "none" and interval is not None and interval < row["planned"]:
        # Samples released after a stall leave faster than they can be computed.
        interval = None
    return {
        "simulator": f"{row['simulator']} {row['version']}",
        "stalls": row["profile"].replace("_", " "),
        "samples": row["samples"],
        "equal outputs": Cell.of(row["equal"], ","),
        "cycles": Cell.of(row["cycles"], ","),
        "interval": None if interval is None else Cell.of(interval, ",.1f"),
        "planned": Cell.of(row["planned"], ",") if row["profile"] == "none" else None,
    }


def _sentence(result: Mapping[str, Any]) -> str:
    """Describes the verification, the accuracy, and deviations from the plan."""
    sentences = [_proven(result), accuracy_sentence(result, result["samples"]), *_warnings(result)]
    return " ".join(filter(None, sentences))


def _proven(result: Mapping[str, Any]) -> str:
    """Describes the verification, and the difference between circuit and PyTorch."""
    difference = result["pytorch"]
    compared = f"{difference['outputs']:,} outputs of {result['samples']} samples"
    if difference["outputs"] and not difference["different"]:
        return f"RTL = PyTorch, bit for bit: {compared} equal those of the quantized model."
    text = (
        f"RTL = integer graph, bit for bit; {difference['different']:,} of {compared} differ from "
        f"the quantized model in PyTorch, by at most {difference['largest']:.4g}."
    )
    if not difference["operators"]:
        return text
    worst = max(difference["operators"], key=lambda row: row["different"] / row["codes"])
    return (
        f"{text} Given equal inputs, operator '{worst['name']}' differs most: "
        f"{worst['different']:,} of {worst['codes']:,} codes, by at most {worst['largest']:g} "
        f"step{'s' * (worst['largest'] != 1)}."
    )


def _warnings(result: Mapping[str, Any]) -> list[str]:
    """Returns warnings: missing counts, a slower circuit than planned, idle stalls, open folds."""
    texts = []
    if result.get("uncounted"):
        texts.append(
            f"{result['uncounted']}: the circuit is verified, but its resources are not counted."
        )
    if result.get("undecided"):
        shortest, longest = min(result["undecided"]), max(result["undecided"])
        texts.append(
            f"The search for folds ran out of time for intervals of {shortest:,} to {longest:,} "
            "cycles: faster folds may exist."
        )
    if result.get("unmet_fold"):
        texts.append(describe_unmet(result["unmet_fold"]))
    measured, planned = result["verification"][0]["interval"], result["interval"]
    if measured is not None and measured > (1 + TOLERANCE) * planned:
        texts.append(
            f"The circuit takes {measured:,.1f} cycles between samples instead of the planned "
            f"{planned:,}: a FIFO is too short for full speed."
        )
    return [*texts, *_idle_stalls(result["verification"])]


def _idle_stalls(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a warning for each simulation with the cycles of the one without stalls."""
    cycles = {row["simulator"]: row["cycles"] for row in rows if row["profile"] == "none"}
    return [
        f"Stalls '{row['profile'].replace('_', ' ')}' had no effect in {row['simulator']}: the "
        f"simulation took {row['cycles']:,} cycles, as it did without stalls. More samples make it "
        "longer."
        for row in rows
        if row["profile"] != "none" and row["cycles"] == cycles.get(row["simulator"])
    ]
