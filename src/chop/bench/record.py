"""Measurements: as rows, as a table and as a file."""

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
    """One variant.

    Attributes:
        name: of the variant.
        seconds: of one call in the steady state: the median over the blocks, by the device's
            clock on a GPU, else by the wall's.
        processor_seconds: of one call, by all threads of the process; None where it was not read.
        ratio: how many times as fast as the baseline: its time over this variant's.
        first_call_seconds: by the wall: the first call after `prepare`, where compilers work.
        prepare_seconds: by the wall; None where there was nothing to prepare.
        largest_difference: of the outputs, against the baseline's; None where not compared.
        peak_bytes: what a call takes while it runs, see `chop.bench.peak_memory`; None where
            not known.
        readings: of every block, in the order in which they were taken.
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
        """How many times as fast as the baseline; None where no difference is shown."""
        return None if self.ratio.spans_one else self.ratio.median


@dataclass(frozen=True)
class Comparison:
    """Variants that were measured together.

    Attributes:
        baseline: name of the variant that the others are compared with.
        method: "paired", in turns; "torch" and "time", one after the other.
        clock: by which they are compared: "wall", "processor" or "device".
        variants: in the order in which they were given.
        environment: of the measurement, see `chop.bench.environment`, with the load at both ends
            and the C++ kernels that were loaded at the end.
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
        raise ConfigError(f"no variant '{name}' was measured: {hint}")

    def decisive_seconds(self, name: str) -> float:
        """Of one call of a variant, by the clock that variants are compared by."""
        measured = self[name]
        own = measured.processor_seconds if self.clock == "processor" else None
        return measured.seconds if own is None else own

    def ratio(self, name: str, baseline: str) -> Interval:
        """How many times as fast a variant is as another, of measurements in turns.

        Raises:
            ConfigError: there is no variant of that name, or they were not measured in turns.
        """
        if self.method != "paired":
            raise ConfigError(f"ratio: expected variants that took turns, got '{self.method}'.")
        readings = (self[baseline].readings, self[name].readings)
        base, own = ([getattr(each, self.clock) for each in taken] for taken in readings)
        return paired_ratio(base, own)

    def rows(self) -> list[dict[str, Any]]:
        """A row per variant, as formatted text; what no variant has is left out."""
        rows = [self._row(measured) for measured in self.variants]
        names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        return [{name: row[name] for name in names} for row in rows]

    def table(self, title: str = "Times of one call") -> None:
        """Prints the rows; the title says how they were taken."""
        print_table(f"{title} ({self.how})", self.rows())

    @property
    def how(self) -> str:
        """How the times were taken, in a few words."""
        threads = self.environment["threads"]
        where = f"{threads} thread{'s' if threads > 1 else ''}"
        if self.method == "paired":
            return f"in turns, compared by {self.clock} time, {where}"
        way = "torch.utils.benchmark" if self.method == "torch" else "time"
        return f"by {way}, one variant after the other: no interval, {where}"

    def save(self, path: str | Path) -> None:
        """Writes all there is as JSON, in one step; what is not finite becomes null."""
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
    """Three digits and a unit.

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
    """In units of 1,000 bytes and powers of it.

    >>> format_bytes(2_500_000), format_bytes(66_000)
    ('2.5 MB', '66.0 kB')
    """
    if count is None:
        return None
    size, unit = next((u for u in BYTE_UNITS if count >= u[0]), BYTE_UNITS[-1])
    return f"{count / size:.1f} {unit}"


def format_ratio(ratio: Interval) -> str:
    """With its bounds, and no number where they span 1.

    >>> format_ratio(Interval(1.31, 1.29, 1.34)), format_ratio(Interval(1.01, 0.99, 1.04))
    ('1.31 (1.29 to 1.34)', 'no difference shown (0.99 to 1.04)')
    """
    if not ratio.is_known:
        return f"{ratio.median:.2f}, no interval"
    bounds = f"({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{NO_DIFFERENCE} {bounds}" if ratio.spans_one else f"{ratio.median:.2f} {bounds}"
