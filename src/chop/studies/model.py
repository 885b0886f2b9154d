"""Comparison of whole models: speed and size."""

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
from chop.nn.weight_cache import cached_bytes

BATCH_SIZES = (1, 16)
FAST = "times as fast"
TIMES, TIMES_IN_ENGINE = f"{FAST} as float in PyTorch", "as float in the same engine"
"""Ratio columns: relative to one baseline, and to the float model in the same engine."""
BASELINE = "1 (baseline)"
Inputs = Callable[[int], Mapping[str, Tensor]]
"""Batch size -> inputs by name."""


@dataclass(frozen=True)
class Contender:
    """Model to measure.

    Attributes:
        name: name in the table.
        model: model in evaluation mode, on the device of the inputs.
        file_bytes: size of its saved weights. None if not saved.
        peer: name of the float model in the same engine, possibly itself. None if there is no such
            model.
    """

    name: str
    model: nn.Module
    file_bytes: int | None = None
    peer: str | None = None


@dataclass(frozen=True)
class _ModelRow:
    """Result of one model at one batch size.

    Attributes:
        model: name of the model.
        batch: number of rows of an input.
        latency_seconds: median time of a forward, by wall clock or GPU clock.
        throughput: rows per second.
        weight_bytes: size of parameters and buffers. None if unknown.
        kept_bytes: size of rounded or decoded weights cached by layers after a run.
        file_bytes: size of the weights' file. None if not saved.
        measured: measurement.
        peer: name of the float model in the same engine, or None.
        peer_ratio: speed relative to the peer.
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
        """Returns numbers for programs, with units in the keys."""
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
        """Formats the row for a table.

        Args:
            is_baseline: True for the row that others are compared with.
            has_peers: True if the table also compares models within their engines.
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
            "decoded copy": format_bytes(self.kept_bytes),
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


SIZES = ("weights", "decoded copy", "file", "peak of a call")
"""Memory columns."""


@dataclass(frozen=True, repr=False)
class ModelComparison(Displayed):
    """Models measured together.

    Attributes:
        rows: results by batch size and model. The first model is the baseline.
        by_batch: batch size -> comparison.
    """

    rows: tuple[_ModelRow, ...]
    by_batch: Mapping[int, Comparison]

    def formatted(self) -> list[dict[str, Any]]:
        """Formats the rows for a table of `chop.base.tables`."""
        first, has_peers = self.rows[0].model, any(row.peer for row in self.rows)
        return [row.formatted(row.model == first, has_peers) for row in self.rows]

    def numbers(self) -> list[dict[str, Any]]:
        """Returns the rows as numbers, see `_ModelRow.numbers`."""
        first = self.rows[0].model
        return [row.numbers(row.model == first) for row in self.rows]

    def tables(self, title: str) -> dict[str, list[dict[str, Any]]]:
        """Returns two tables by title that fit a terminal; one states how times were measured."""
        how, rows = next(iter(self.by_batch.values())).how, self.formatted()
        times = [{k: v for k, v in row.items() if k not in SIZES} for row in rows]
        memory = [{name: row[name] for name in ("model", "batch", *SIZES)} for row in rows]
        return {f"{title} ({how})": times, "Memory": memory}

    def table(self, title: str) -> None:
        """Prints the rows."""
        for name, rows in self.tables(title).items():
            print_table(name, rows)

    def save(self, folder: str | Path) -> None:
        """Writes `times-batch-N.json` for each batch size N."""
        for batch, comparison in self.by_batch.items():
            comparison.save(Path(folder) / f"times-batch-{batch}.json")


def compare_models(
    contenders: Sequence[Contender],
    inputs: Inputs,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seconds: float = 1.0,
    threads: int | None = None,
    device: str = "cpu",
) -> ModelComparison:
    """Measures models in interleaved runs at each batch size.

    Args:
        contenders: models. The first is the baseline.
        inputs: batch size -> inputs by keyword.
        batch_sizes: rows of an input.
        seconds: measuring time per model and batch size.
        threads: threads of torch. None keeps the current number.
        device: device of models and inputs.
    Raises:
        ConfigError: if a model is in training mode, or a batch size is not positive.
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
        _row(contender, batch, comparison)
        for batch, comparison in by_batch.items()
        for contender in contenders
    ]
    return ModelComparison(tuple(rows), by_batch)


def weight_bytes(model: nn.Module) -> int:
    """Returns the size of parameters and buffers; shared memory counts once.

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
        cached_bytes(contender.model),
        contender.file_bytes,
        measured,
        peer,
        None if peer is None else comparison.ratio(contender.name, peer),
    )
