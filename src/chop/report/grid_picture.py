"""Picture of number formats with a line of marks for the values of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

LABEL_WIDTH, PLOT_WIDTH, GAP = 250, 300, 30
RIGHT = LABEL_WIDTH + PLOT_WIDTH + GAP
LINE_HEIGHT, MARK_HEIGHT, MARGIN = 34, 18, 24
LOWEST_EXPONENT = -12
STYLE = "text{font:12px sans-serif;fill:#333}.axis{stroke:#999}.mark{stroke:#1f5fa8;stroke-width:1}"


def grid_picture(grids: Mapping[str, Sequence[float]]) -> str:
    """Returns an SVG of values between 0 and 1, on a linear and on a logarithmic axis.

    Args:
        grids: line label -> values from 0 to 1. Marks closer than half a pixel are merged; values
            below 2^-12 are omitted on the logarithmic axis.
    """
    width = LABEL_WIDTH + 2 * PLOT_WIDTH + GAP + MARGIN
    height = 2 * MARGIN + LINE_HEIGHT * len(grids)
    body = [
        _line(label, grid, MARGIN + LINE_HEIGHT * row)
        for row, (label, grid) in enumerate(grids.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">\n<style>{STYLE}</style>\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join([*body, *_ticks(height - MARGIN + 4)])
        + "\n</svg>\n"
    )


def _line(label: str, grid: Sequence[float], top: int) -> str:
    evenly = [_even(x) for x in grid]
    by_power = [_by_power(x) for x in grid if x >= 2.0**LOWEST_EXPONENT]
    bottom = top + MARK_HEIGHT
    axes = "".join(
        f'<path class="axis" d="M{x} {bottom}h{PLOT_WIDTH}"/>' for x in (_even(0), RIGHT)
    )
    return (
        f'<text x="8" y="{bottom - 3}">{escape(label)}</text>{axes}'
        f'<path class="mark" d="{_marks([*evenly, *by_power], top)}"/>'
    )


def _marks(positions: Sequence[float], top: int) -> str:
    """Returns vertical marks at positions rounded to half pixels, without duplicates."""
    places = sorted({round(2 * x) / 2 for x in positions})
    return "".join(f"M{x:g} {top}v{MARK_HEIGHT}" for x in places)


def _ticks(baseline: int) -> list[str]:
    evenly = [(_even(x), f"{x:g}") for x in (0, 0.25, 0.5, 0.75, 1)]
    exponents = range(LOWEST_EXPONENT, 1, 4)
    by_power = [(_by_power(2.0**e), f"2^{e}" if e else "1") for e in exponents]
    return [
        f'<text x="{x:g}" y="{baseline}" text-anchor="middle">{text}</text>'
        for x, text in [*evenly, *by_power]
    ]


def _even(x: float) -> float:
    return LABEL_WIDTH + PLOT_WIDTH * x


def _by_power(x: float) -> float:
    return RIGHT + PLOT_WIDTH * (1 - math.log2(x) / LOWEST_EXPONENT)
