"""Latency and size of a compressed model beside its float model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chop.actions.ways import COMMANDS, COMPILED, SAVED, WAYS, Engine, make_ways
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.report.report import Block, Cell, Table, Tile
from chop.studies.model import Contender, Inputs, ModelComparison, compare_models
from chop.train.calibration import example_inputs
from chop.train.rows import check_batch
from chop.workloads.workload import Workload

WHY_SLOWER = (
    " Each call rounds the inputs of the layers, which small layers do not win back; larger layers "
    "and batches do."
)
"""Where inputs are rounded."""
TOLERATED, TINY = 3, 1e-3
"""Of the saved model's largest difference from float: rounding next to a tie may go either way."""


def compare_with_float(
    workload: Workload,
    exact: MaseGraph,
    compressed: MaseGraph,
    *,
    file_bytes: tuple[int, int],
    batch_sizes: Sequence[int],
    threads: int = 1,
    compile: bool = False,
    **how: Any,
) -> tuple[ModelComparison, dict[str, str]]:
    """The model itself, its graph, and the compressed graph in every way in which it can be run.

    They take turns on rows of the test set.

    Args:
        workload: the model, its data and its device.
        exact: the model's graph: what it gains is not the compression's.
        compressed: the graph that was saved.
        file_bytes: of the float and of the compressed weights' file.
        batch_sizes: rows of an input.
        threads: of torch and of engines.
        compile: also compiled, which takes a minute.
        how: `seconds` of `chop.studies.model.compare_models`.
    Returns: what was measured; and for each way that was not, why.

    Raises:
        ConfigError: the test set is smaller than a batch.
    """
    device, packed = str(workload.device), compressed.model.to(workload.device).eval()
    names = [name for name in WAYS if compile or name != COMPILED]
    rows = _rows_of(workload)
    made, missing = make_ways(compressed, names, device, [*map(rows, batch_sizes)], threads)
    if not compile:
        missing = {COMPILED: "chop bench model measures it, without --no-compile", **missing}
    contenders = [
        Contender("float", workload.model.eval(), file_bytes[0]),
        Contender("float graph", exact.model.eval(), file_bytes[0]),
        Contender(SAVED, packed, file_bytes[1]),
        *(Contender(name, each, _file_bytes(each)) for name, each in made.items()),
    ]
    found = compare_models(
        contenders, rows, batch_sizes=batch_sizes, threads=threads, device=device, **how
    )
    return found, missing


def _file_bytes(model: nn.Module) -> int | None:
    return model.file_bytes if isinstance(model, Engine) else None


def speed_tables(title: str, found: ModelComparison) -> list[Block]:
    """Two tables for a terminal, and one for the document."""
    printed = [Table(name, rows, is_written=False) for name, rows in found.tables(title).items()]
    return [*printed, Table("", found.formatted(), is_printed=False)]


def speed_tiles(rows: Sequence[Mapping[str, Any]]) -> list[Tile]:
    """How many times as fast as float the compressed model is, a tile for each batch size.

    Args:
        rows: of `ModelComparison.numbers`.
    """
    tiles = []
    for row in rows:
        if row["model"] == SAVED:
            ends = row["times_as_fast_interval_99"]
            interval = f" (99 % interval {ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
            times = Cell(row["times_as_fast"], f"{row['times_as_fast']:.2f}x")
            tiles.append(Tile(f"speed at batch {row['batch']}", times, f"of float{interval}"))
    return tiles


def describe_speed(rows: Sequence[Mapping[str, Any]], rounds_inputs: bool) -> str:
    """How fast the compressed model is beside float, as one line, and why where it is slower.

    Args:
        rows: of `ModelComparison.numbers`; none where nothing was measured.
        rounds_inputs: whether inputs have a format, too.
    """
    found = [row for row in rows if row["model"] == SAVED]
    if not found:
        return "Speed: not measured, because of --bench-seconds 0."
    each = ", ".join(f"{_times(row)} at batch {row['batch']}" for row in found)
    text = f"Speed: {each} times as fast as float"
    slower = [str(row["batch"]) for row in found if _ends(row)[1] < 1]
    if not slower:
        return f"{text}."
    where = "" if len(slower) == len(found) else f" at batch {' and '.join(slower)}"
    return f"{text}: slower{where}.{WHY_SLOWER if rounds_inputs else ''}"


def describe_fastest(
    rows: Sequence[Mapping[str, Any]], folder: Path, missing: Mapping[str, str]
) -> str:
    """The fastest way to run the compressed model and the command for it, as one line.

    Fastest is the largest geometric mean over batches of how many times as fast as float it is, of
    those whose outputs differ from float's little more than the saved model's do.

    Args:
        rows: of `ModelComparison.numbers`; none where nothing was measured.
        folder: the output folder.
        missing: why other ways were not measured, by name.
    """
    times: dict[str, list[float]] = {}
    saved = {row["batch"]: row["largest_difference"] for row in rows if row["model"] == SAVED}
    wrong = {row["model"] for row in rows if _differs(row, saved)}
    for row in rows:
        if row["model"] in COMMANDS and row["model"] not in wrong:
            times.setdefault(row["model"], []).append(row["times_as_fast"])
    if not times:
        return ""
    best = max(times, key=lambda name: math.prod(times[name]) ** (1 / len(times[name])))
    batches = [row["batch"] for row in rows if row["model"] == best]
    each = ", ".join(
        f"{found:.2f} at batch {batch}" for found, batch in zip(times[best], batches, strict=True)
    )
    command = COMMANDS[best].replace("{folder}", str(folder))
    text = f"Fastest: {best}, {each} times as fast as float: {command}."
    if max(times[best]) < 1:
        text += " Float is faster."
    others = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in missing.items())
    return f"{text} Not measured: {others}." if others else text


def _differs(row: Mapping[str, Any], saved: Mapping[int, float | None]) -> bool:
    """Whether outputs are far from those of the saved model, as of an engine that saturates."""
    found, right = row["largest_difference"], saved.get(row["batch"])
    return found is not None and right is not None and found > TOLERATED * right + TINY


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
        check_batch(workload.test, rows)
        return example_inputs(workload.model, workload.test, rows)

    return inputs
