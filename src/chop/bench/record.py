"""Measurements as rows, as a table and as a JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.base.files import write_json
from chop.base.tables import print_table
from chop.bench.clock import CLOCKS, Reading
from chop.bench.statistics import Interval, paired_ratio
from chop.errors import ConfigError, did_you_mean

NO_DIFFERENCE = "no difference shown"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class Measured:
    """Measurement of one variant.

    Attributes:
        name: name of the variant.
        seconds: of one call in the steady state: the median over the blocks, by the device clock
            on a GPU, else by the wall clock.
        processor_seconds: of one call, by all threads of the process; None if not measured.
        ratio: time of the baseline divided by the time of this variant.
        first_call_seconds: wall time of the first call after `prepare`, in which compilers work.
        prepare_seconds: wall time of `prepare`; None without it.
        largest_difference: of the outputs from those of the baseline; None if not compared.
        peak_bytes: memory of a call, see `chop.bench.peak_memory`; None if unknown.
        readings: of every block, in the order of measurement.
    """

    name: str
    seconds: float
    processor_seconds: float | None
    ratio: Interval
    first_call_seconds: float
    prepare_seconds: float | None
    largest_difference: float | None
    peak_bytes: int | None
    readings: tuple[Reading, ...]

    @property
    def speed_up(self) -> float | None:
        """Speed relative to the baseline; None if no difference is shown."""
        return None if self.ratio.spans_one else self.ratio.median


@dataclass(frozen=True)
class Comparison:
    """Variants that were measured together.

    Attributes:
        baseline: name of the variant that the others are compared with.
        method: "paired" for interleaved runs; "torch" and "time" for one variant after another.
        clock: clock of the comparison, "wall", "processor" or "device".
        variants: measurements in the order of the call.
        environment: see `chop.bench.environment`, with the load at both ends and the C++ kernels
            that were loaded at the end.
    """

    baseline: str
    method: str
    clock: str
    variants: tuple[Measured, ...]
    environment: dict[str, Any]

    def __iter__(self) -> Iterator[Measured]:
        return iter(self.variants)

    def __getitem__(self, name: str) -> Measured:
        for measured in self.variants:
            if measured.name == name:
                return measured
        hint = did_you_mean(name, [measured.name for measured in self.variants])
        raise ConfigError(f"there is no variant '{name}': {hint}")

    def decisive_seconds(self, name: str) -> float:
        """Returns the seconds of one call of a variant, by the clock of the comparison."""
        measured = self[name]
        own = measured.processor_seconds if self.clock == "processor" else None
        return measured.seconds if own is None else own

    def ratio(self, name: str, baseline: str) -> Interval:
        """Returns the speed of a variant relative to another, from interleaved runs.

        Raises:
            ConfigError: if there is no variant of that name, or the runs were not interleaved.
        """
        if self.method != "paired":
            raise ConfigError(f"ratio: expected interleaved variants, got method '{self.method}'.")
        readings = (self[baseline].readings, self[name].readings)
        base, own = ([getattr(each, self.clock) for each in taken] for taken in readings)
        return paired_ratio(base, own)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row of formatted text for each variant, without columns that no variant has."""
        rows = [self._row(measured) for measured in self.variants]
        names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        return [{name: row[name] for name in names} for row in rows]

    def table(self, title: str = "Times of one call") -> None:
        """Prints the rows. The title describes the method of measurement."""
        print_table(f"{title} ({self.how})", self.rows())

    @property
    def how(self) -> str:
        """Describes the method of measurement in a few words."""
        threads = self.environment["threads"]
        where = f"{threads} thread{'s' if threads > 1 else ''}"
        if self.method == "paired":
            return f"interleaved, compared by {self.clock} time, {where}"
        way = "torch.utils.benchmark" if self.method == "torch" else "time"
        return f"by {way}, one variant after another, without an interval, {where}"

    def save(self, path: str | Path) -> None:
        """Writes all readings as JSON, atomically; numbers that are not finite become null."""
        record = dataclasses.asdict(self)
        for variant, measured in zip(record["variants"], self.variants, strict=True):
            variant["speed_up"] = measured.speed_up
            variant["readings"] = {
                name: [getattr(reading, name) for reading in measured.readings] for name in CLOCKS
            }
        write_json(path, record)

    def _row(self, measured: Measured) -> dict[str, Any]:
        is_baseline = measured.name == self.baseline
        return {
            "variant": measured.name,
            "time": format_seconds(measured.seconds),
            "processor time": format_seconds(measured.processor_seconds),
            "times as fast": "1 (baseline)" if is_baseline else format_ratio(measured.ratio),
            "first call": format_seconds(measured.first_call_seconds),
            "prepare": format_seconds(measured.prepare_seconds),
            "largest difference": None if is_baseline else measured.largest_difference,
            "peak memory": format_bytes(measured.peak_bytes),
        }


def format_seconds(seconds: float | None) -> str | None:
    """Formats seconds with three digits and a unit.

    >>> format_seconds(0.0000123)
    '12.3 µs'
    """
    if seconds is None:
        return None
    size, unit = next((u for u in UNITS if seconds >= u[0]), UNITS[-1])
    number = seconds / size
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:.{digits}f} {unit}"


def format_bytes(count: float | None) -> str | None:
    """Formats bytes in units of 1,000 and its powers.

    >>> format_bytes(2_500_000), format_bytes(66_000)
    ('2.5 MB', '66.0 kB')
    """
    if count is None:
        return None
    size, unit = next((u for u in BYTE_UNITS if count >= u[0]), BYTE_UNITS[-1])
    return f"{count / size:.1f} {unit}"


def format_ratio(ratio: Interval) -> str:
    """Formats a ratio with its bounds, without a number if the bounds span 1.

    >>> format_ratio(Interval(1.31, 1.29, 1.34)), format_ratio(Interval(1.01, 0.99, 1.04))
    ('1.31 (1.29 to 1.34)', 'no difference shown (0.99 to 1.04)')
    """
    if not ratio.is_known:
        return f"{ratio.median:.2f}, no interval"
    bounds = f"({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{NO_DIFFERENCE} {bounds}" if ratio.spans_one else f"{ratio.median:.2f} {bounds}"
