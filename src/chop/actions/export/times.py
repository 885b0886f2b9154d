"""Times of exported files, interleaved with the float model and the graph in chop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from chop.actions.export.model import Loaded
from chop.actions.export.settings import ExportConfig
from chop.bench.record import Comparison, format_ratio, format_seconds
from chop.bench.statistics import Interval
from chop.bench.timing import Variant, compare, surroundings
from chop.errors import first_line, shorten
from chop.export.target import Runner
from chop.report.report import Cell

FLOAT, CHOP = "float", "chop"
"""Names of the float model and of the quantized graph, both in torch."""


@dataclass(frozen=True)
class Timed:
    """Time of an engine at one batch size.

    Attributes:
        engine: a target, or `FLOAT` or `CHOP`.
        batch: batch size.
        latency_seconds: median wall-clock time of a forward.
        times_as_float: speed-up over the float model in torch.
        times_as_chop: speed-up over the graph in chop.
    """

    engine: str
    batch: int
    latency_seconds: float
    times_as_float: Interval
    times_as_chop: Interval

    def formatted(self) -> dict[str, Any]:
        """Returns the row for a table."""
        ratios = {FLOAT: self.times_as_float, CHOP: self.times_as_chop}
        cells = {name: format_ratio(x) for name, x in ratios.items()}
        cells |= {self.engine: "1 (baseline)"} if self.engine in cells else {}
        return {
            "engine": self.engine,
            "batch": self.batch,
            "latency": Cell(self.latency_seconds, str(format_seconds(self.latency_seconds))),
            "times as fast as float": cells[FLOAT],
            "as the graph in chop": cells[CHOP],
        }


@dataclass(frozen=True)
class Times:
    """Measured times of all engines.

    Attributes:
        by_batch: measurement by batch size.
        rows: rows by batch size and engine.
        missing: reasons for missing times, by engine and batch such as `pt2 at batch 32`.
    """

    by_batch: Mapping[int, Comparison]
    rows: tuple[Timed, ...]
    missing: Mapping[str, str]


def measure_times(
    loaded: Loaded,
    runners: Mapping[str, Runner],
    config: ExportConfig,
    stage: Callable[[int], AbstractContextManager[Any]] = nullcontext,
) -> Times:
    """Measures engines against float and chop.

    Args:
        loaded: the model, its float model and its inputs.
        runners: engines by target, for targets that run as in production.
        config: batch sizes, seconds and threads.
        stage: function from batch size to the context of its measurement.
    """
    by_batch, missing = dict[int, Comparison](), dict[str, str]()
    exact, graph = loaded.exact.eval(), loaded.mg.model.eval()
    for batch in config.batch_sizes if runners and config.seconds else ():
        with stage(batch):
            inputs = loaded.inputs(batch)
            calls: dict[str, Callable[[], Any]] = {
                FLOAT: partial(exact, **inputs),
                CHOP: partial(graph, **inputs),
            }
            for name, run in runners.items():
                reason = _why_not(run, inputs, config.threads)
                if reason is None:
                    calls[name] = partial(run, inputs)
                else:
                    missing[f"{name} at batch {batch}"] = reason
            variants = [Variant(name, call) for name, call in calls.items()]
            by_batch[batch] = compare(
                variants,
                FLOAT,
                seconds=config.seconds,
                threads=config.threads,
                outputs=False,
                memory=False,
            )
    rows = [
        Timed(each.name, batch, each.seconds, each.ratio, comparison.ratio(each.name, CHOP))
        for batch, comparison in by_batch.items()
        for each in comparison
    ]
    return Times(by_batch, tuple(rows), missing)


def _why_not(run: Runner, inputs: Mapping[str, Any], threads: int) -> str | None:
    """Returns an engine's error for inputs that it does not accept, or None."""
    try:
        with surroundings(threads, inference=True):
            run(inputs)
    except Exception as error:  # engines share no error class
        return shorten(first_line(error))
    return None
