"""Latency and size of a compressed model compared with its float model."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chop.actions.bench.ways import (
    BACKENDS,
    COMMANDS,
    COMPILED,
    NO_FORM,
    ONNX,
    ONNXRUNTIME,
    SAVED,
    Engine,
    bench_command,
    build_backends,
    in_folder,
    make_peers,
)
from chop.base.trust import confirmation
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.report.report import Block, Cell, Table, Tile
from chop.statistics.intervals import LEVEL_TEXT
from chop.studies.model import SIZES, Contender, Inputs, ModelComparison, compare_models
from chop.train.calibration import example_inputs
from chop.train.rows import check_batch
from chop.workloads.workload import Workload

ROUNDS_INPUTS = "rounding the inputs costs more time than small layers save"
DECODES = "decoding the weights at each call costs more time than small layers save"
"""Reasons for a slower compressed model in PyTorch: with rounded inputs, and with float inputs."""
FASTER_FORMATS = (
    "an integer format of up to 8 bits, such as 8.auto, lets onnxruntime compute in integers"
)
FASTER_LAYERS = "larger layers and batches gain more"
"""Suggestions if no backend is faster than float."""
ON_PAGE = ("rows/s", "largest difference")
"""Columns without room in a terminal."""
NOT_MEASURED = "Speed: not measured, because of --bench-seconds 0."
FLOAT, FLOAT_GRAPH = "float", "float graph"
"""Names of the float model and of its graph in tables."""
TIMES, AS_PEER = "times_as_fast", "_as_peer"
"""Keys of the speed-up over float in PyTorch, and with the suffix in the same engine."""
TOLERATED, TINY = 3, 1e-3
"""Tolerated difference of outputs, as a multiple of the saved model's from float, plus a constant:
values next to a tie may round either way.
"""


def compare_with_float(
    workload: Workload,
    exact: MaseGraph,
    compressed: MaseGraph,
    *,
    file_bytes: tuple[int, int],
    batch_sizes: Sequence[int],
    threads: int = 1,
    compile: bool = False,
    onnx: Path | None = None,
    why_no_onnx: str = "",
    why_not_compiled: str = "",
    **how: Any,
) -> tuple[ModelComparison, dict[str, str]]:
    """Measures the model, its graph, and the compressed graph in every backend.

    Runs are interleaved, on rows of the test set, with the float model in each engine.

    Args:
        workload: the model, its data and its device.
        exact: graph of the model, which shows the speed-up of the capture.
        compressed: the saved graph.
        file_bytes: sizes of the float and of the compressed weights file.
        batch_sizes: batch sizes to measure.
        threads: threads of torch and of engines.
        compile: also measure the compiled model, which takes a minute.
        onnx: ONNX file of the compressed graph, if it was written.
        why_no_onnx: reason for a missing ONNX file, if engines were requested. Else "".
        why_not_compiled: how to measure it, if `compile` is False.
        how: `seconds` of `chop.studies.model.compare_models`.
    Returns: the measurements; and the reason for each missing backend.

    Raises:
        ConfigError: if the test set is smaller than a batch.
    """
    device, packed = str(workload.device), compressed.model.to(workload.device).eval()
    excluded = {} if compile else {COMPILED: why_not_compiled}
    excluded |= {
        name: why_no_onnx for name, backend in BACKENDS.items() if backend.is_onnx and why_no_onnx
    }
    names = [name for name in BACKENDS if name not in excluded]
    rows = _get_rows(workload)
    batches = [*map(rows, batch_sizes)]
    made, missing = build_backends(compressed, names, device, batches, threads, onnx)
    peers, missing_peers = make_peers(exact, made, batches, threads)
    missing = {**excluded, **missing, **missing_peers}
    contenders = [
        Contender(FLOAT, workload.model.eval(), file_bytes[0], FLOAT),
        Contender(FLOAT_GRAPH, exact.model.eval(), file_bytes[0], FLOAT),
        Contender(SAVED, packed, file_bytes[1], FLOAT),
        *(
            Contender(name, each, _file_bytes(each), _find_peer(name, peers))
            for name, each in made.items()
        ),
        *(Contender(name, each, _file_bytes(each), name) for name, each in peers.items()),
    ]
    comparison = compare_models(
        contenders, rows, batch_sizes=batch_sizes, threads=threads, device=device, **how
    )
    return comparison, missing


def _find_peer(name: str, peers: Mapping[str, nn.Module]) -> str | None:
    """Returns the name of the float model in a backend's engine; None if it could not be built."""
    backend = BACKENDS[name]
    if backend.make_float is None:
        return FLOAT
    return backend.peer if backend.peer in peers else None


def _file_bytes(model: nn.Module) -> int | None:
    return model.file_bytes if isinstance(model, Engine) else None


def speed_tables(
    title: str, comparison: ModelComparison, *, is_detail: bool = False
) -> list[Block]:
    """Returns two tables for a terminal and one for the report page.

    Args:
        title: title of the first table.
        comparison: measured speeds.
        is_detail: a terminal shows the first only on request, as it does the second.
    """
    (times, rows), (memory, sizes) = comparison.tables(title).items()
    if _graph_is_float(comparison):
        rows, sizes = ([x for x in each if x["model"] != FLOAT_GRAPH] for each in (rows, sizes))
    columns = [name for name in rows[0] if name not in ON_PAGE]
    printed = [
        Table(times, rows, columns, is_written=False, is_detail=is_detail),
        Table(memory, _once(sizes), is_written=False, is_detail=True),
    ]
    return [*printed, Table("", _without_alike(comparison.formatted()), is_printed=False)]


def _without_alike(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Removes memory columns with the same value for every model."""
    alike = {name for name in SIZES if len({row[name] for row in rows}) == 1}
    return [{name: x for name, x in row.items() if name not in alike} for row in rows]


def _once(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Merges rows of several batch sizes into one per model, if the batch makes no difference."""
    without = [{name: x for name, x in row.items() if name != "batch"} for row in rows]
    distinct = [row for i, row in enumerate(without) if row not in without[:i]]
    return distinct if len(distinct) == len({row["model"] for row in rows}) else rows


def _graph_is_float(comparison: ModelComparison) -> bool:
    """Returns True if the graph of the float model is as fast as that model at each batch size."""
    rows = [row.measured for row in comparison.rows if row.model == FLOAT_GRAPH]
    return all(row.ratio.spans_one and not row.largest_difference for row in rows)


def speed_tiles(rows: Sequence[Mapping[str, Any]]) -> list[Tile]:
    """Returns a tile per batch size with the speed-up of the compressed model over float.

    Args:
        rows: rows of `ModelComparison.numbers`.
    """
    best = find_fastest(rows)
    if best is None:
        return []
    how = "in PyTorch" if best.name == SAVED else f"as {best.name}"
    tiles = []
    for row in best.rows:
        low, high = _ends(row)
        interval = f" ({LEVEL_TEXT} interval {low:.2f} to {high:.2f})" if low < high else ""
        times = Cell(row["times_as_fast"], f"{row['times_as_fast']:.2f}x")
        note = f"{how}, of float in PyTorch{interval}"
        if best.peer is not None:
            note += f"; {row[TIMES + AS_PEER]:.2f}x of {best.peer}"
        tiles.append(Tile(f"speed at batch {row['batch']}", times, note))
    return tiles


def describe_speed(rows: Sequence[Mapping[str, Any]], rounds_inputs: bool) -> str:
    """Describes the speed of the compressed model in PyTorch, with the reason if it is slower.

    Args:
        rows: rows of `ModelComparison.numbers`; empty if nothing was measured.
        rounds_inputs: True if inputs have a format too.
    """
    saved = [row for row in rows if row["model"] == SAVED]
    if not saved:
        return NOT_MEASURED
    each = ", ".join(f"{_times(row)} at batch {row['batch']}" for row in saved)
    text = f"Speed: PyTorch, {each} times as fast as float"
    slower = [str(row["batch"]) for row in saved if _ends(row)[1] < 1]
    if not slower:
        return f"{text}."
    where = "" if len(slower) == len(saved) else f" at batch {' and '.join(slower)}"
    return f"{text}. It is slower{where}, because {ROUNDS_INPUTS if rounds_inputs else DECODES}."


@dataclass(frozen=True)
class Fastest:
    """Fastest backend of a compressed model.

    Attributes:
        name: name of the backend.
        rows: its rows of `ModelComparison.numbers`, one per batch size.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]

    @property
    def is_faster(self) -> bool:
        """True if it is faster than float in PyTorch at some batch size, beyond the interval."""
        return any(_ends(row)[0] > 1 for row in self.rows)

    @property
    def product(self) -> float:
        """Product of the speed-ups, which sorts as their geometric mean."""
        return math.prod(float(row[TIMES]) for row in self.rows)

    @property
    def peer(self) -> str | None:
        """Name of the float model in the same engine, if that is not PyTorch."""
        peer: str | None = self.rows[0]["peer"]
        return None if peer == FLOAT else peer

    def times(self) -> str:
        """Formats the speed-up over float in PyTorch and over float in the same engine."""
        text = f"{self._each('')} times as fast as float in PyTorch"
        if self.peer is None:
            return text
        text = f"{text}; {self._each(AS_PEER)} as {self.peer}"
        ends = [_ends(row, AS_PEER) for row in self.rows]
        if any(low > 1 for low, _ in ends):
            return text
        if all(high < 1 for _, high in ends):
            return f"{text}. F{self.peer[1:]} is faster, so compression reduces only the size"
        return f"{text}. The speed comes from the engine, and compression reduces the size"

    def in_short(self) -> str:
        """Formats the speed-up without intervals."""
        first = self.rows[0]
        each = [f"{row[TIMES]:.2f}x at batch {row['batch']}" for row in self.rows[1:]]
        text = f"{first[TIMES]:.2f}x as fast at batch {first['batch']}"
        text = f"{' and '.join([text, *each])} as float in PyTorch"
        if self.peer is None:
            return text
        beside = " and ".join(f"{row[TIMES + AS_PEER]:.2f}x" for row in self.rows)
        return f"{text} ({beside} as {self.peer})"

    def _each(self, of: str) -> str:
        return ", ".join(f"{_times(row, of)} at batch {row['batch']}" for row in self.rows)


def find_fastest(rows: Sequence[Mapping[str, Any]]) -> Fastest | None:
    """Finds the fastest backend whose outputs agree with those of the saved model.

    It has the largest geometric mean over batch sizes of the speed-up over float in PyTorch.
    Backends that are faster at some batch size are preferred.

    Args:
        rows: rows of `ModelComparison.numbers`. Without rows the result is None.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    wrong = _wrong(rows)
    for row in rows:
        if row["model"] in COMMANDS and row["model"] not in wrong:
            by_name.setdefault(row["model"], []).append(row)
    ranked = [Fastest(name, each) for name, each in by_name.items()]
    return max(ranked, key=lambda x: (x.is_faster, x.product), default=None)


def describe_fastest(
    rows: Sequence[Mapping[str, Any]],
    folder: Path | None,
    rounds_inputs: bool,
    missing: Mapping[str, str],
    model: str = "",
) -> str:
    """Describes the fastest backend with its command, in one line.

    If none is faster than float, the line gives the reason and a suggestion.

    Args:
        rows: rows of `ModelComparison.numbers`; empty if nothing was measured.
        folder: the output folder; None if the model was not saved.
        rounds_inputs: True if inputs have a format too.
        missing: reasons for backends that were not measured, by name.
        model: original model, for commands.
    """
    best = find_fastest(rows)
    if best is None:
        return ""
    texts = [f"Fastest: {best.name}, {best.times()}."]
    texts += [] if folder is None else [f"To run it: {_run_command(best.name, folder, model)}."]
    texts += [] if best.is_faster else [no_gain(rounds_inputs, missing, folder, model)]
    if wrong := _wrong(rows):
        texts.append(
            f"Excluded because their outputs differ from the saved model's: {', '.join(wrong)}."
        )
    return " ".join(texts)


def _run_command(name: str, folder: Path, model: str) -> str:
    """Returns code that runs a backend, or the command that writes its file if there is none."""
    if name in BACKENDS and BACKENDS[name].is_onnx and not Path(in_folder(ONNX, folder)).exists():
        return f"chop export {shlex.quote(str(folder))} --to onnx{confirmation(model)}"
    return in_folder(COMMANDS[name], folder)


def no_gain(
    rounds_inputs: bool, missing: Mapping[str, str], folder: Path | None, model: str = ""
) -> str:
    """Explains why the compressed model is nowhere faster than float, with a suggestion.

    Args:
        rounds_inputs: True if inputs have a format too.
        missing: reason for each backend that was not measured, by name.
        folder: folder of the saved model, for a command with larger batches, or None.
        model: original model, for the command.
    """
    why, absent = ROUNDS_INPUTS if rounds_inputs else DECODES, missing.get(ONNXRUNTIME)
    way_out = FASTER_LAYERS
    if folder is not None:
        way_out += f"; try {bench_command(folder, model)} --batch 64"
    if absent:
        why += f", and onnxruntime was not measured ({absent.rstrip('.')})"
        way_out = FASTER_FORMATS if absent.startswith(NO_FORM) else way_out
    return f"On this machine it is not faster than float, because {why}; {way_out}."


def describe_missing(missing: Mapping[str, str]) -> str:
    """Lists backends that were not measured, with reasons, in one line; "" if all were."""
    others = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in missing.items())
    return f"Not measured: {others}." if others else ""


def _wrong(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns backends whose outputs differ from the saved model's."""
    saved = {row["batch"]: row["largest_difference"] for row in rows if row["model"] == SAVED}
    return list(dict.fromkeys(row["model"] for row in rows if _differs(row, saved)))


def _differs(row: Mapping[str, Any], saved: Mapping[int, float | None]) -> bool:
    """Returns True if outputs are far from the saved model's, as in an engine that saturates."""
    difference, right = row["largest_difference"], saved.get(row["batch"])
    return difference is not None and right is not None and difference > TOLERATED * right + TINY


def _ends(row: Mapping[str, Any], of: str = "") -> tuple[float, float]:
    given = row[f"{TIMES}{of}_interval_95"]
    low, high = given or (row[TIMES + of], row[TIMES + of])
    return low, high


def _times(row: Mapping[str, Any], of: str = "") -> str:
    low, high = _ends(row, of)
    if low <= 1 <= high:
        return f"no difference shown ({low:.2f} to {high:.2f})"
    return f"{row[TIMES + of]:.2f} ({low:.2f} to {high:.2f})"


def _get_rows(workload: Workload) -> Inputs:
    def inputs(rows: int) -> Mapping[str, Tensor]:
        if rows > len(workload.test):
            raise ConfigError(f"batch {rows}: the data set has only {workload.count_test()}.")
        check_batch(workload.test, rows)
        return example_inputs(workload.model, workload.test, rows)

    return inputs
