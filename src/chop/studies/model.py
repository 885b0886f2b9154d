"""Whole models beside one another: how fast, and how large."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chop.base.displayed import Displayed
from chop.base.tables import print_table
from chop.bench.record import Comparison, Measured, format_bytes, format_ratio, format_seconds
from chop.bench.statistics import Interval
from chop.bench.timing import Variant, compare
from chop.errors import ConfigError
from chop.nn.weight_cache import kept_bytes

BATCH_SIZES = (1, 16)
FAST = "times as fast"
TIMES, TIMES_IN_ENGINE = f"{FAST} as float in PyTorch", "as float in the same engine"
"""Columns of ratios: of one baseline, and where models run in several engines."""
BASELINE = "1 (baseline)"
Inputs = Callable[[int], Mapping[str, Tensor]]
"""Batch size -> inputs by name."""


@dataclass(frozen=True)
class Contender:
    """A model to be measured.

    Attributes:
        name: in the table.
        model: in evaluation mode, on the device of the inputs.
        file_bytes: that its saved weights take; None where it was not saved.
        peer: name of the float model in the same engine, which may be itself; None where nothing
            is compared within engines, or that model was not made.
    """

    name: str
    model: nn.Module
    file_bytes: int | None = None
    peer: str | None = None


@dataclass(frozen=True)
class _ModelRow:
    """One model at one batch size.

    Attributes:
        model: its name.
        batch: rows of an input.
        latency_seconds: of a forward, by the wall or the GPU; the median.
        throughput: rows per second, from the latency.
        weight_bytes: that parameters and buffers hold; None where a model has none.
        kept_bytes: of weights that layers keep rounded or decoded beside them, once they ran.
        file_bytes: of its weights' file; None where it was not saved.
        measured: all that was measured.
        peer: name of the float model in the same engine; None where there is none.
        peer_ratio: speed as a multiple of that peer.
    """

    model: str
    batch: int
    latency_seconds: float
    throughput: float
    weight_bytes: int | None
    kept_bytes: int
    file_bytes: int | None
    measured: Measured
    peer: str | None = None
    peer_ratio: Interval | None = None

    def numbers(self, is_baseline: bool) -> dict[str, Any]:
        """For a program: numbers, with their units in the keys."""
        ratio = self.measured.ratio
        return {
            "model": self.model,
            "batch": self.batch,
            "latency_ms": 1000 * self.latency_seconds,
            "rows_per_second": self.throughput,
            "times_as_fast": 1.0 if is_baseline else ratio.median,
            "times_as_fast_interval_95": None if is_baseline else _bounds(ratio),
            "peer": self.peer,
            **self._peer_numbers(),
            "weight_bytes": self.weight_bytes,
            "kept_decoded_bytes": self.kept_bytes,
            "file_bytes": self.file_bytes,
            "peak_call_bytes": self.measured.peak_bytes,
            "largest_difference": None if is_baseline else self.measured.largest_difference,
        }

    def _peer_numbers(self) -> dict[str, Any]:
        ratio, is_own = self.peer_ratio, self.peer == self.model
        return {
            "times_as_fast_as_peer": ratio and (1.0 if is_own else ratio.median),
            "times_as_fast_as_peer_interval_95": None if is_own or not ratio else _bounds(ratio),
        }

    def formatted(self, is_baseline: bool, has_peers: bool = False) -> dict[str, Any]:
        """For a table.

        Args:
            is_baseline: others are compared with this row.
            has_peers: rows of the table are compared within their engines, too.
        """
        ratio = self.measured.ratio
        times = BASELINE if is_baseline else format_ratio(ratio)
        return {
            "model": self.model,
            "batch": self.batch,
            "latency": format_seconds(self.latency_seconds),
            **({TIMES: times, TIMES_IN_ENGINE: self._peer_cell()} if has_peers else {FAST: times}),
            "rows/s": f"{self.throughput:,.0f}",
            "weights": format_bytes(self.weight_bytes),
            "kept decoded": format_bytes(self.kept_bytes),
            "file": format_bytes(self.file_bytes),
            "peak of a call": format_bytes(self.measured.peak_bytes),
            "largest difference": None if is_baseline else self.measured.largest_difference,
        }

    def _peer_cell(self) -> str | None:
        if self.peer_ratio is None:
            return None
        return BASELINE if self.peer == self.model else format_ratio(self.peer_ratio)


def _bounds(ratio: Interval) -> tuple[float, float] | None:
    return (ratio.low, ratio.high) if ratio.is_known else None


SIZES = ("weights", "kept decoded", "file", "peak of a call")
"""Columns about memory."""


@dataclass(frozen=True, repr=False)
class ModelComparison(Displayed):
    """Models that were measured together.

    Attributes:
        rows: per batch size, per model; the first model is the baseline.
        by_batch: batch size -> the measurement.
    """

    rows: tuple[_ModelRow, ...]
    by_batch: Mapping[int, Comparison]

    def formatted(self) -> list[dict[str, Any]]:
        """The rows for a table; `chop.base.tables` prints or writes it."""
        first, has_peers = self.rows[0].model, any(row.peer for row in self.rows)
        return [row.formatted(row.model == first, has_peers) for row in self.rows]

    def numbers(self) -> list[dict[str, Any]]:
        """The rows for a program, see `_ModelRow.numbers`."""
        first = self.rows[0].model
        return [row.numbers(row.model == first) for row in self.rows]

    def tables(self, title: str) -> dict[str, list[dict[str, Any]]]:
        """The rows as two tables by title, which fit a terminal; one says how times came."""
        how, rows = next(iter(self.by_batch.values())).how, self.formatted()
        times = [{k: v for k, v in row.items() if k not in SIZES} for row in rows]
        memory = [{name: row[name] for name in ("model", "batch", *SIZES)} for row in rows]
        return {f"{title} ({how})": times, "Memory": memory}

    def table(self, title: str) -> None:
        """Prints the rows."""
        for name, rows in self.tables(title).items():
            print_table(name, rows)

    def save(self, folder: str | Path) -> None:
        """Writes `times-batch-N.json` for every batch size N."""
        for batch, found in self.by_batch.items():
            found.save(Path(folder) / f"times-batch-{batch}.json")


def compare_models(
    contenders: Sequence[Contender],
    inputs: Inputs,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seconds: float = 1.0,
    threads: int | None = None,
    device: str = "cpu",
) -> ModelComparison:
    """Measures models in turns, at every batch size.

    Args:
        contenders: the first is what the others are compared with.
        inputs: gives a batch of so many rows; the models take it by keywords.
        batch_sizes: rows of an input.
        seconds: of measuring, per model and batch size.
        threads: of torch; None leaves them.
        device: where models and inputs are.
    Raises:
        ConfigError: a model is in training mode, or a batch size is not positive.
    """
    for contender in contenders:
        if contender.model.training:
            raise ConfigError(f"'{contender.name}' is in training mode: call its eval() first.")
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigError(f"batch sizes: expected 1 or more, got {list(batch_sizes)}.")
    by_batch = {}
    for batch in batch_sizes:
        fed = dict(inputs(batch))
        variants = [Variant(c.name, partial(c.model, **fed)) for c in contenders]
        by_batch[batch] = compare(variants, seconds=seconds, threads=threads, device=device)
    rows = [
        _row(contender, batch, found)
        for batch, found in by_batch.items()
        for contender in contenders
    ]
    return ModelComparison(tuple(rows), by_batch)


def weight_bytes(model: nn.Module) -> int:
    """What parameters and buffers hold; memory that several share counts once.

    >>> weight_bytes(nn.Linear(3, 2))
    32
    """
    tensors = [*model.parameters(), *model.buffers()]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def _row(contender: Contender, batch: int, comparison: Comparison) -> _ModelRow:
    measured, peer = comparison[contender.name], contender.peer
    return _ModelRow(
        contender.name,
        batch,
        measured.seconds,
        batch / measured.seconds,
        weight_bytes(contender.model) or None,
        kept_bytes(contender.model),
        contender.file_bytes,
        measured,
        peer,
        None if peer is None else comparison.ratio(contender.name, peer),
    )
