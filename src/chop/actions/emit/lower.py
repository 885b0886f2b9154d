"""Lower job: quantizes a model, lowers it to a graph of integers, writes golden values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from chop import passes, runs
from chop.actions.compress.ptq import quantize_after_training
from chop.actions.emit.lower_settings import LowerConfig, LoweringConfig
from chop.actions.job import Job, Output, load_checked, run_job
from chop.actions.next_steps import load_step, steps_with_files
from chop.actions.starting_run import (
    check_saved_model,
    checkpoint_in,
    config_of_run,
    read_graph,
)
from chop.errors import ConfigError
from chop.export.qonnx.reader import is_read
from chop.formats import NumberFormat, QuantSpec, parse_format_string
from chop.formats.base import INPUT_OPERANDS
from chop.integer.decoding import START, read_inputs, without_padding
from chop.integer.golden import GOLDEN, Golden, golden_values
from chop.ir.batches import select_inputs
from chop.ir.graph import MaseGraph
from chop.ir.ops import quantizable_operators
from chop.nn.quantized import QuantizedOperator
from chop.report.report import Cell, Note, Report, Table, announce
from chop.runs import Outcome
from chop.statistics.intervals import Interval, wilson_of_share
from chop.train.calibration import calibrated, calibration_batches
from chop.train.intervals import FEW_ROWS, format_interval
from chop.train.tasks import CAUSAL_LM, CLASSIFICATION
from chop.workloads.workload import Workload, raise_for_integers, raise_to_graph

COLUMNS = (
    "Codes: compared integers of an operator. Different: those that differ from the quantized "
    "operator's on the same inputs, by at most the largest difference in steps. Saturated: "
    "results outside the range of the format that reads them. Largest seen: the largest value of "
    "the accumulator. Bits: its proven width."
)
"""Description of the columns of the table."""


def lower(config: LowerConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Quantizes all operators of a model after training, lowers it to integers, and compares.

    Writes into `config.out`: `model.pt` and `model.mz`, `golden.safetensors`, `graph.svg`,
    `table.md`, `result.json` and `manifest.json`.

    Args:
        config: settings of the job.
        workload: your own trained model and rows, see `Workload.of`. Default: the model and
            data that `config` names.
    Returns: the content of `result.json`.
    Raises:
        ConfigError: if settings do not fit together, or the model has no integer form.
        CheckpointError: if `config.start_from` has no model, or is from a run that saves none.
        UnavailableError: if the model, the data set or a library is missing.
    """
    parse_format_string(config.formats)  # reject a wrong one before reading data
    check_saved_model(config.start_from)
    return run_job(LOWER, config_of_run(config, workload), workload)


def _lower(config: LowerConfig, workload: Workload, output: Output) -> Report[dict[str, Any]]:
    lowering = lower_workload(workload, config, config.rows)
    info, label, rows = lowering.info, lowering.label, lowering.test_rows
    title = f"{workload.title} in {label}"
    result = {
        "config": {**runs.as_json(config), "model": workload.name},
        "format": label,
        "rows": rows,
        **info,
        "accuracy_interval_95": lowering.accuracy_intervals,
    }
    counted = workload.count_test(rows)
    about = accuracy_sentence(result, rows, counted) or counted
    table = Table(title, [_operator_row(row) for row in info["operators"]])
    return Report(
        title,
        {"table.md": [table, Note(COLUMNS), Note(about)]},
        result,
        info["operators"],
        figures={"graph.svg": lowering.integer.draw},
        files={"model": lowering.integer.export, GOLDEN: lowering.write_golden},
        verdict=_verdict(info["operators"]),
        outcome=integer_outcome(result, workload, rows),
        steps=[
            load_step(config.out / "model", "Load the graph of integers"),
            *steps_with_files({"Inputs, outputs and all integers between": config.out / GOLDEN}),
        ],
    )


def _verdict(operators: Sequence[Mapping[str, Any]]) -> str:
    """Compares the integers of all operators with the codes of the quantized model."""
    codes, different = (sum(row[name] for row in operators) for name in ("codes", "different"))
    count = f"{codes:,} integers of {len(operators)} operators"
    if not different:
        return f"All {count} equal the codes of the quantized model."
    return f"{different:,} of {count} differ from the codes of the quantized model."


def integer_outcome(result: Mapping[str, Any], workload: Workload, rows: int) -> Outcome:
    """Returns the numbers for a list of runs: accuracy of the integers and of float, if known.

    Few rows have no accuracy, see `accuracy_sentence`.
    """
    shares = result["accuracy"] if rows >= FEW_ROWS else {}
    name = CLASSIFICATION.metric.name if shares else ""
    return Outcome(workload.dataset, name, shares.get("integer"), shares.get("float"), bool(shares))


LOWER = Job("lower", _lower, load_checked)


@dataclass(frozen=True)
class Lowering:
    """Model in integers, and its quantized origin.

    Attributes:
        label: label of the formats.
        quantized: the quantized graph.
        integer: the graph of integers.
        info: information from `lower_to_integer_transform_pass`.
        batch: the compared test rows, by column; tokens, if the integer graph reads one at a time.
        rows: number of these rows.
        whole: whole sequences of these tokens, as the quantized graph reads them; else None.
    """

    label: str
    quantized: MaseGraph
    integer: MaseGraph
    info: Mapping[str, Any]
    batch: Mapping[str, Tensor]
    rows: int
    whole: Mapping[str, Tensor] | None = None

    @property
    def test_rows(self) -> int:
        """Number of test rows, each of which may be a sequence of tokens."""
        return self.rows if self.whole is None else len(next(iter(self.whole.values())))

    @property
    def accuracy_intervals(self) -> dict[str, Interval]:
        """95 % intervals of each graph's accuracy."""
        shares = self.info["accuracy"].items()
        return {name: wilson_of_share(share, self.rows) for name, share in shares}

    def write_golden(self, path: Path) -> Golden:
        """Writes inputs, outputs and the integers between them; returns them."""
        from safetensors.torch import save_file

        golden = golden_values(self.integer, self.batch)
        save_file(golden, path)
        return golden


def accuracy_sentence(result: Mapping[str, Any], rows: int, counted: str = "") -> str:
    """Describes each graph's accuracy with its interval; for few rows, the right answers.

    Args:
        result: result of the job, with `accuracy` and `accuracy_interval_95`.
        rows: number of compared test rows.
        counted: number and kind of the rows. Default: "... test rows".
    Returns: a sentence; "" if there is no accuracy.
    """
    shares, metric = result["accuracy"], CLASSIFICATION.metric
    if not shares:
        return ""
    counted = counted or f"{rows} test row{'s' * (rows != 1)}"
    if rows < FEW_ROWS:
        right = ", ".join(f"{name} {round(share * rows)}" for name, share in shares.items())
        return (
            f"Right answers on {counted}: {right}. These are too few rows for an accuracy (at "
            f"least {FEW_ROWS})."
        )
    ends = result["accuracy_interval_95"]
    texts = (
        f"{name} {share:.2%}{format_interval(ends[name], metric)}" for name, share in shares.items()
    )
    return f"Accuracy on {counted}: {', '.join(texts)}."


def lower_workload(workload: Workload, config: LoweringConfig, rows: int) -> Lowering:
    """Quantizes all operators of a model after training, and lowers it to integers.

    Args:
        workload: the model and its rows.
        config: formats, calibration and widths.
        rows: number of test rows to compare both graphs on; all of them if there are fewer.
    Raises:
        ConfigError: if the model has no integer form.
    """
    if is_read(workload.model):
        return _lower_as_read(workload, config, rows)
    if config.decode and workload.task.name not in (CAUSAL_LM, "token-classification"):
        raise ConfigError(
            f"decode: '{workload.name}' has the task '{workload.task.name}', expected a decoder "
            "that predicts the next token."
        )
    announce(workload.title, "quantizing and lowering")
    number_format = parse_format_string(config.formats)
    label = number_format.label
    if config.start_from is None:
        quantized = quantize_after_training(
            raise_for_integers(workload),
            number_format,
            quantizable_operators(),
            workload,
            config.calibration_rows,
        )
    else:
        quantized = _started(config.start_from, number_format, workload, config.calibration_rows)
        label = f"the formats of {config.start_from}, others in {label}"
    batches = list(
        calibration_batches(workload.model, workload.train, rows=config.calibration_rows)
    )
    # Scales that follow each batch have no integer form.
    static = {"batches": batches, "static_scales": True}
    quantized, _ = passes.calibrate_transform_pass(quantized, static)
    return lower_and_compare(quantized, label, workload, rows, config.lowering)


def _lower_as_read(workload: Workload, config: LoweringConfig, rows: int) -> Lowering:
    """Lowers the model of a QONNX file in the formats of its nodes."""
    default = LoweringConfig.formats
    if config.formats != default or config.start_from is not None:
        given = "start_from" if config.start_from is not None else "formats"
        raise ConfigError(f"{given}: '{workload.name}' has its own number formats; remove it.")
    announce(workload.title, "lowering")
    quantized = raise_to_graph(workload, with_cache=False)
    label = "the formats of its file"
    lowering = lower_and_compare(quantized, label, workload, rows, config.lowering)
    # Without its formats, it is not the float model that was trained.
    shares = {name: x for name, x in lowering.info["accuracy"].items() if name != "float"}
    return replace(lowering, info={**lowering.info, "accuracy": shares})


def _started(
    start: Path, number_format: NumberFormat, workload: Workload, calibration_rows: int
) -> MaseGraph:
    """Returns the graph of a run, with `number_format` for operands without a format."""
    mg = read_graph(checkpoint_in(start), workload)
    # Folding a batch norm changes the weights of a convolution, so calibrate their fraction again.
    mg, _ = passes.conv_bn_fusion_transform_pass(mg, {"frac_width": "mse"})
    mg, _ = passes.fuse_rms_norm_transform_pass(mg)
    rules = {}
    for node in mg.nodes:
        if mg.operator(node).name in quantizable_operators():
            module = mg.get_module(node)
            spec = module.spec if isinstance(module, QuantizedOperator) else QuantSpec()
            floats = [name for name in INPUT_OPERANDS if getattr(spec, name).is_identity]
            if floats:
                rules[node.name] = {
                    "config": spec.with_quantizers(**dict.fromkeys(floats, number_format))
                }
    if rules:
        mg, _ = passes.quantize_transform_pass(mg, {"by": "name", **rules})
    return calibrated(mg, workload.train, calibration_rows)


def lower_and_compare(
    quantized: MaseGraph,
    label: str,
    workload: Workload,
    rows: int,
    settings: Mapping[str, Any],
) -> Lowering:
    """Lowers a quantized graph to integers, and compares both on test rows.

    Args:
        quantized: graph with formats for all operators.
        label: label of the formats.
        workload: the original model and its rows.
        rows: number of test rows; all of them if there are fewer.
        settings: further settings of `lower_to_integer_transform_pass`.
    Raises:
        ConfigError: if it has no integer form.
    """
    rows = min(rows, len(workload.test))
    (batch,) = calibration_batches(
        workload.model, workload.test, rows=rows, batch_size=rows, with_labels=True
    )
    integer, info = passes.lower_to_integer_transform_pass(
        quantized, {"batches": [batch], **settings}
    )
    if not settings.get("decode"):
        return Lowering(label, quantized, integer, info, batch, rows)
    whole = without_padding(integer, next(select_inputs(quantized, [batch], "test")))
    tokens = read_inputs(integer, whole)
    return Lowering(label, quantized, integer, info, tokens, len(tokens[START]), whole)


def _operator_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "operator": row["name"],
        "kind": row["kind"],
        "codes": Cell.of(row["codes"], ","),
        "different": Cell.of(row["different"], ","),
        "largest (steps)": Cell.of(row["largest"], "g"),
        "saturated": Cell.of(row["saturated"], ","),
        "largest seen": Cell.of(row["seen"], ","),
        "bits": row["bits"],
    }
