"""Latency and size of a compressed model beside its float model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.report.report import Block, Table
from chop.studies.model import Contender, Inputs, ModelComparison, compare_models
from chop.train.calibration import example_inputs
from chop.workloads.workload import Workload

COMPRESSED = "compressed"
"""The name of the saved model in tables."""
WHY_SLOWER = (
    "Each call rounds the inputs of the layers and decodes their weights, which PyTorch then "
    "multiplies as floats; small layers do not win that back. Faster: an 8-bit integer format with "
    "--onnx, which onnxruntime multiplies as integers, or larger layers and batches."
)


def compare_with_float(
    workload: Workload,
    exact: MaseGraph,
    compressed: MaseGraph,
    *,
    file_bytes: tuple[int, int],
    threads: int = 1,
    **how: Any,
) -> ModelComparison:
    """The model itself, its graph, and the compressed graph, in turns on rows of the test set.

    Args:
        workload: the model, its data and its device.
        exact: the model's graph: what it gains is not the compression's.
        compressed: the graph that was saved.
        file_bytes: of the float and of the compressed weights' file.
        threads: of torch.
        how: `batch_sizes` and `seconds` of `chop.studies.model.compare_models`.
    Raises:
        ConfigError: the test set is smaller than a batch.
    """
    contenders = [
        Contender("float", workload.model.eval(), file_bytes[0]),
        Contender("float graph", exact.model.eval(), file_bytes[0]),
        Contender(COMPRESSED, compressed.model.to(workload.device).eval(), file_bytes[1]),
    ]
    device = str(workload.device)
    return compare_models(contenders, _rows_of(workload), threads=threads, device=device, **how)


def speed_tables(title: str, found: ModelComparison) -> list[Block]:
    """Two tables for a terminal, and one for the document."""
    printed = [Table(name, rows, is_written=False) for name, rows in found.tables(title).items()]
    return [*printed, Table("", found.formatted(), is_printed=False)]


def describe_speed(rows: Sequence[Mapping[str, Any]]) -> str:
    """How fast the compressed model is beside float, as one line, and why where it is slower.

    Args:
        rows: of `ModelComparison.numbers`; none where nothing was measured.
    """
    found = [row for row in rows if row["model"] == COMPRESSED]
    if not found:
        return "Speed: not measured, because of --bench-seconds 0."
    each = ", ".join(f"{_times(row)} at batch {row['batch']}" for row in found)
    text = f"Speed: {each} times as fast as float"
    slower = [str(row["batch"]) for row in found if _ends(row)[1] < 1]
    if not slower:
        return f"{text}."
    where = "" if len(slower) == len(found) else f" at batch {' and '.join(slower)}"
    return f"{text}: slower{where}. {WHY_SLOWER}"


def _ends(row: Mapping[str, Any]) -> tuple[float, float]:
    given = row["times_as_fast_interval_99"]
    low, high = given or (row["times_as_fast"], row["times_as_fast"])
    return low, high


def _times(row: Mapping[str, Any]) -> str:
    low, high = _ends(row)
    if low <= 1 <= high:
        return f"no difference shown ({low:.2f} to {high:.2f})"
    return f"{row['times_as_fast']:.2f} ({low:.2f} to {high:.2f})"


def _rows_of(workload: Workload) -> Inputs:
    def inputs(rows: int) -> Mapping[str, Tensor]:
        if rows > len(workload.test):
            raise ConfigError(
                f"batch {rows}: the data set has only {len(workload.test)} test rows."
            )
        return example_inputs(workload.model, workload.test, rows)

    return inputs
