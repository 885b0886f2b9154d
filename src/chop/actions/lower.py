"""The job of `chop lower`: a model goes in, a graph of integers and its golden values come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import get_console
from torch import Tensor

from chop import passes, runs
from chop.actions.chance import check_float_model
from chop.actions.interrupt import with_interruption_note
from chop.actions.ptq import quantize_after_training
from chop.actions.settings.lower import LowerConfig, LoweringConfig
from chop.actions.workload import Workload, raise_to_graph, settings_with, workload_for
from chop.files import write_json, write_text
from chop.formats import NumberFormat, parse_format_string
from chop.integer.golden import golden_values
from chop.ir.graph import MaseGraph
from chop.ir.ops import quantizable_operators
from chop.kernels.matmul_precision import matmul_precision
from chop.tables import markdown_table, print_table
from chop.train.calibration import calibration_batches
from chop.train.intervals import Interval, format_interval, wilson_of_share
from chop.train.tasks import CLASSIFICATION


def lower(config: LowerConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Quantizes all operators of a model after training, lowers it to integers, and compares.

    Writes into `config.out`: `model.pt` and `model.mz`, `golden.safetensors`, `graph.svg`,
    `table.md`, `result.json` and `manifest.json`.

    Args:
        config: the settings.
        workload: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: what is in `result.json`.
    Raises:
        ConfigError: settings that do not fit together, or the model has no integer form.
        UnavailableError: the model, the data set or a library is not there.
    """
    kept = f"no results were written to {config.out}/; the same command starts again."
    with matmul_precision(config.matmul_precision), with_interruption_note(lambda: kept):
        workload = workload_for(config, workload)
        check_float_model(workload, config)
        with runs.start("lower", settings_with(config, workload), config.out) as run:
            return _lower(config, workload, run)


def _lower(config: LowerConfig, workload: Workload, run: runs.Run) -> dict[str, Any]:
    lowering = lower_workload(workload, config, config.rows)
    info, label = lowering.info, lowering.number_format.label
    table = [_printed(row) for row in info["operators"]]
    print_table(f"{workload.title} in {label}", table)
    rows = lowering.rows
    result = {
        "config": {**asdict(config), "out": str(config.out), "model": workload.name},
        "format": label,
        "rows": rows,
        **info,
        "accuracy_interval_95": lowering.accuracy_intervals,
    }
    accuracies = format_accuracies(result)
    about = f"accuracy on {rows} test rows: {accuracies}" if accuracies else f"{rows} test rows"
    get_console().print(about, highlight=False)
    with run.results() as folder:
        _write(folder, lowering, result, f"{markdown_table(table)}\n\n{about}\n")
        run.rows = info["operators"]
    return result


@dataclass(frozen=True)
class Lowering:
    """A model in integers, and what it came from.

    Attributes:
        number_format: of all operators.
        quantized: the quantized graph.
        integer: the graph of integers.
        info: what `lower_to_integer_transform_pass` found.
        batch: the compared test rows, by column.
        rows: how many there are.
    """

    number_format: NumberFormat
    quantized: MaseGraph
    integer: MaseGraph
    info: Mapping[str, Any]
    batch: Mapping[str, Tensor]
    rows: int

    @property
    def accuracy_intervals(self) -> dict[str, Interval]:
        """The 95 % interval of each graph's accuracy."""
        shares = self.info["accuracy"].items()
        return {name: wilson_of_share(share, self.rows) for name, share in shares}


def format_accuracies(result: Mapping[str, Any]) -> str:
    """Each graph's accuracy with its interval, for a sentence; "" where there is none."""
    metric, ends = CLASSIFICATION.metric, result["accuracy_interval_95"]
    return ", ".join(
        f"{name} {share:.2%}{format_interval(ends[name], metric)}"
        for name, share in result["accuracy"].items()
    )


def lower_workload(workload: Workload, config: LoweringConfig, rows: int) -> Lowering:
    """Quantizes all operators of a model after training, and lowers it to integers.

    Args:
        workload: the model and its rows.
        config: formats, calibration and widths.
        rows: test rows that both graphs are compared on; all of them if there are fewer.
    Raises:
        ConfigError: the model has no integer form.
    """
    get_console().print(f"[bold]{workload.title}[/]: quantizing and lowering")
    mg, _ = passes.conv_bn_fusion_transform_pass(raise_to_graph(workload))
    number_format = parse_format_string(config.formats)
    quantized = quantize_after_training(
        mg, number_format, quantizable_operators(), workload, config.calibration_rows
    )
    batches = list(
        calibration_batches(workload.model, workload.train, rows=config.calibration_rows)
    )
    # Scales that follow each batch have no integer form.
    static = {"batches": batches, "static_scales": True}
    quantized, _ = passes.calibrate_transform_pass(quantized, static)
    rows = min(rows, len(workload.test))
    (batch,) = calibration_batches(
        workload.model, workload.test, rows=rows, batch_size=rows, with_labels=True
    )
    settings = {"batches": [batch], "internal_bits": config.internal_bits}
    integer, info = passes.lower_to_integer_transform_pass(quantized, settings)
    return Lowering(number_format, quantized, integer, info, batch, rows)


def _printed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "operator": row["name"],
        "kind": row["kind"],
        "codes": f"{row['codes']:,}",
        "different": f"{row['different']:,}",
        "largest (steps)": f"{row['largest']:g}",
        "saturated": f"{row['saturated']:,}",
        "largest seen": f"{row['seen']:,}",
        "bits": row["bits"],
    }


def _write(folder: Path, lowering: Lowering, result: Mapping[str, Any], table: str) -> None:
    from safetensors.torch import save_file

    lowering.integer.export(folder / "model")
    lowering.integer.draw(folder / "graph.svg")
    golden = golden_values(lowering.integer, lowering.batch)
    save_file(golden, folder / "golden.safetensors")
    write_text(folder / "table.md", table)
    write_json(folder / "result.json", result)
