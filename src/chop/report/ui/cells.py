"""Cells of the list of runs: displayed text and sort key of each number."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from chop.report.page.svg import shortened
from chop.report.ui.run_entry import RunEntry
from chop.report.words import parsed_time, time_text

GREATEST = 1e18
"""Numbers above this bound are treated as corrupt and not shown."""
LONGEST = 28
"""Maximum number of characters of a path in a cell; the start is cut off."""
MINUTE, HOUR, DAY = 60, 3600, 86400
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class ListCell:
    """Cell of the list of runs.

    Attributes:
        column: name of its column.
        text: displayed text. "" if unknown.
        value: sort key. None sorts by the text.
        is_number: aligns the cell right.
        title: full text, if a short one is displayed.
    """

    column: str
    text: str
    value: float | None = None
    is_number: bool = False
    title: str = ""


def list_cells(run: RunEntry, now: datetime | None = None) -> list[ListCell]:
    """Returns the cells of a run after its name. Missing numbers give empty cells.

    Args:
        run: the run.
        now: current time, for the duration of a running run.
    """
    outcome, spent = run.outcome, get_seconds(run, now or datetime.now(UTC))
    share = outcome is not None and outcome.is_share
    value, reference, bits, size = (
        _known(getattr(outcome, name, None))
        for name in ("value", "reference", "bits", "size_bytes")
    )
    metric = "" if outcome is None or value is None else f"{outcome.metric} "
    return [
        ListCell("command", run.kind),
        ListCell("model", shortened(run.model, LONGEST), title=run.model),
        ListCell("data", shortened(run.data, LONGEST), title=run.data),
        ListCell("result", metric + _metric_text(value, share), value, True),
        ListCell("float", _metric_text(reference, share), reference, True),
        ListCell("bits", "" if bits is None else f"{bits:.2f}", bits, True),
        ListCell("size", _size_text(size), size, True),
        ListCell("duration", _duration_text(spent), spent, True),
        ListCell("state", run.state),
        ListCell("started", time_text(run.started).removesuffix(" UTC"), _timestamp(run.started)),
    ]


def _known(value: float | None) -> float | None:
    """Returns a plausible number unchanged, and None for others."""
    # Huge integers overflow floats, and comparisons with NaN are false.
    return float(value) if value is not None and abs(value) < GREATEST else None


def _metric_text(value: float | None, is_share: bool) -> str:
    """Formats a metric, shares in percent.

    >>> _metric_text(0.96667, True), _metric_text(12.3456, False), _metric_text(None, True)
    ('96.67 %', '12.35', '')
    """
    if value is None:
        return ""
    return f"{100 * value:.2f} %" if is_share else f"{value:.4g}"


def _size_text(size: float | None) -> str:
    """Formats bytes in a suitable unit.

    >>> _size_text(5_000), _size_text(12), _size_text(2.5e9), _size_text(None)
    ('5.0 kB', '12 B', '2.5 GB', '')
    """
    if size is None:
        return ""
    factor, unit = next((each for each in UNITS if abs(size) >= each[0]), (1.0, "B"))
    return f"{size / factor:,.0f} {unit}" if unit == "B" else f"{size / factor:,.1f} {unit}"


def get_seconds(run: RunEntry, now: datetime) -> float | None:
    """Returns the duration of a run so far. None if it is unknown, as after a kill."""
    start = parsed_time(run.started)
    end = now if run.state == "running" else parsed_time(run.ended)
    if start is None or end is None or end < start:
        return None
    return (end - start).total_seconds()


def _duration_text(seconds: float | None) -> str:
    """Formats a duration in its two largest units.

    >>> [_duration_text(x) for x in (None, 0.4, 65, 7260, 180000)]
    ['', '0 s', '1 min 5 s', '2 h 1 min', '2 d 2 h']
    """
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def _timestamp(text: str) -> float | None:
    time = parsed_time(text)
    return None if time is None else time.timestamp()
