"""Figure style: colors, a title and a legend that are never cut, and saving.

Colors: Okabe and Ito, Color Universal Design, 2008: distinct with any color vision.
Yellow, which is faint on white, is left out; black is for baselines and budgets.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from chop.base.files import Picture, atomic_file
from chop.base.tables import printable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

Entry = tuple["Artist", str]
"""Artist that a legend names, and its label."""
WIDTH, HEIGHT = 6.4, 4.0
"""Inches of a figure of one panel, without its legend."""
DOTS_PER_INCH = 160
TITLE_POINTS, LEGEND_POINTS = 11, 9
HANDLE_INCHES = 0.7
"""What a legend's entry takes beside its text."""
LINE_INCHES = 0.19
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^vP*X"
FAINT = "0.65"
"""Grey of what was measured, behind what it led to."""
DARK = {
    "#ffffff": "#14181d",
    "#000000": "#e8ebee",
    "#666666": "#a9b3be",
    "#595959": "#a9b3be",
    **dict(
        zip(
            map(str.lower, PALETTE),
            ("#4aa8e0", "#f08a3c", "#2cc499", "#e08fc0", "#8fcbf0", "#e6b345"),
            strict=True,
        )
    ),
}
"""Color of an SVG -> that on a dark screen, as pages have them."""
MARK = re.compile(r'<path (id="m[0-9a-f]+" )')
"""The shape of a mark, which an SVG of matplotlib uses many times."""
HASH_SALT = "chop"
UNDATED = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Kind of file -> what matplotlib would write into it of the moment and of itself."""


def new_figure(title: str, width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """A figure with a title that is broken into lines where it is longer than the figure is wide.

    Args:
        title: above all panels; "" for none.
        width: inches.
        height: inches without the title's further lines.
    """
    from matplotlib.figure import Figure

    lines = wrapped(title, width - 0.3, TITLE_POINTS)
    height += LINE_INCHES * (len(lines) - 1)
    figure = Figure(figsize=(width, height), layout="constrained")
    if lines:
        figure.suptitle("\n".join(map(plain, lines)), fontsize=TITLE_POINTS)
    return figure


def add_legend(figure: Figure, entries: Sequence[Entry]) -> None:
    """Adds a legend below the panels, where no curve is, if anything has a label.

    The figure grows by its height.

    Args:
        figure: from `new_figure`.
        entries: what is drawn, and its label; long labels are broken into lines.
    """
    if not any(label for _, label in entries):
        return
    width, height = figure.get_size_inches()
    room = width - 0.3
    texts = [wrapped(label, room - HANDLE_INCHES, LEGEND_POINTS) or [" "] for _, label in entries]
    widest = max(text_inches(line, LEGEND_POINTS) for lines in texts for line in lines)
    columns = min(len(entries), max(1, int(room / (widest + HANDLE_INCHES))))
    rows = math.ceil(len(entries) / columns) * max(map(len, texts))
    figure.set_size_inches(width, height + LINE_INCHES * rows + 0.1)
    figure.legend(
        [drawn for drawn, _ in entries],
        ["\n".join(map(plain, lines)) for lines in texts],
        loc="outside lower center",
        ncols=columns,
        fontsize=LEGEND_POINTS,
        frameon=False,
        handlelength=2.6,
    )


def wrapped(text: str, inches: float, points: float) -> list[str]:
    """Lines of a text, each at most `inches` wide; words that are longer are cut."""
    lines: list[str] = []
    for line in map(printable, text.splitlines()):
        characters = max(1, len(line))
        while any(text_inches(part, points) > inches for part in _lines(line, characters)):
            characters = int(0.95 * characters)
        lines += _lines(line, characters)
    return lines


def _lines(text: str, characters: int) -> list[str]:
    return textwrap.wrap(text, max(1, characters))


def text_inches(text: str, points: float) -> float:
    """The width of a line of text."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(size=points)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def plain(text: str) -> str:
    """A text as matplotlib shows it letter by letter: no formula, and never left out."""
    escaped = printable(text).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def on_cell(row: int, column: int) -> str:
    """The `gid` of a text on a colored cell, which stays as it is on a dark screen."""
    return f"cell_{row}_{column}"


def save_figure(figure: Figure, path: Path) -> Picture:
    """Writes a figure in one step; the suffix of the path picks the kind. Notebooks show it.

    The same figure has the same bytes each time: identifiers follow from what is drawn, and no
    file says when it was written.
    """
    from matplotlib import rc_context

    kind = path.suffix.lstrip(".")
    with atomic_file(path) as temporary, rc_context({"svg.hashsalt": HASH_SALT}):
        figure.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=UNDATED.get(kind))
        if kind == "svg":
            svg = temporary.read_text(encoding="utf-8")
            temporary.write_text(_with_dark_colors(svg), encoding="utf-8")
    return Picture(path)


def _with_dark_colors(svg: str) -> str:
    """The same on a light screen and in print; on a dark screen dark, with its own ground."""
    start, tag, rest = svg.partition("<svg ")
    head, end, body = rest.partition(">")
    # Where a mark is used, rules do not see what is around it.
    marked = MARK.sub(r'<path class="chop-mark" \1', body)
    return f'{start}{tag}class="chop-figure" {head}{end}{dark_style()}{marked}' if tag else svg


@cache
def dark_style() -> str:
    """Style of an SVG of matplotlib, whose colors are in attributes; black texts have none."""
    rules = [f".chop-figure {{ fill: {DARK['#000000']} }}"]
    for kind in ("fill", "stroke"):
        for light, dark in DARK.items():
            colored = f'[style*="{kind}: {light}"]'
            chosen = f".chop-figure {colored}, .chop-mark{colored}"
            rules.append(f"{chosen} {{ {kind}: {dark} !important }}")
    rules += [
        '.chop-figure [id^="cell_"] { fill: #000000 }',
        '.chop-figure [id^="cell_"] [style*="fill: #ffffff"] { fill: #ffffff !important }',
    ]
    return f"<style>@media screen and (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
