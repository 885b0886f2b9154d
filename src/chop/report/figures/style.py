"""Figure style: colors, titles, legends and saving.

Colors are those of Okabe and Ito, Color Universal Design, 2008, which are distinct for all kinds of
color vision. Yellow is omitted because it is faint on white; black is reserved for baselines and
budgets.
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
"""Legend artist and its label."""
WIDTH, HEIGHT = 6.4, 4.0
"""Width and height in inches of a figure with one panel, without its legend."""
DOTS_PER_INCH = 160
TITLE_POINTS, LEGEND_POINTS = 11, 9
HANDLE_INCHES = 0.7
"""Width of a legend entry in inches, without its text."""
LINE_INCHES = 0.19
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^vP*X"
FAINT = "0.65"
"""Grey of data in the background."""
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
"""Color in a light SVG -> color on a dark screen, as on pages."""
MARK = re.compile(r'<path (id="m[0-9a-f]+" )')
"""Pattern of a marker shape that an SVG by matplotlib reuses."""
HASH_SALT = "chop"
UNDATED = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Kind of file -> metadata that suppresses dates and versions."""


def new_figure(title: str, width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """Returns a figure with its title wrapped to the figure's width.

    Args:
        title: title above all panels. "" for none.
        width: width in inches.
        height: height in inches, without further title lines.
    """
    from matplotlib.figure import Figure

    lines = wrapped(title, width - 0.3, TITLE_POINTS)
    height += LINE_INCHES * (len(lines) - 1)
    figure = Figure(figsize=(width, height), layout="constrained")
    if lines:
        figure.suptitle("\n".join(map(plain, lines)), fontsize=TITLE_POINTS)
    return figure


def add_legend(figure: Figure, entries: Sequence[Entry]) -> None:
    """Adds a legend below the panels if anything has a label.

    The figure grows by the height of the legend.

    Args:
        figure: figure from `new_figure`.
        entries: artists and labels. Long labels are wrapped.
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
    """Wraps text to lines of at most `inches`; longer words are cut."""
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
    """Returns the width of a line of text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(size=points)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def plain(text: str) -> str:
    """Escapes text so that matplotlib shows it verbatim, without mathtext."""
    escaped = printable(text).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def on_cell(row: int, column: int) -> str:
    """Returns the `gid` of a text on a colored cell, which keeps its color on a dark screen."""
    return f"cell_{row}_{column}"


def save_figure(figure: Figure, path: Path) -> Picture:
    """Saves a figure atomically in the format of the suffix; notebooks also display it.

    Equal figures are saved as equal bytes: identifiers are derived from the content, and files have
    no dates.
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
    """Adds colors for dark screens to an SVG; light screens and print stay the same."""
    start, tag, rest = svg.partition("<svg ")
    head, end, body = rest.partition(">")
    # CSS rules for a reused marker do not see the elements around its use.
    marked = MARK.sub(r'<path class="chop-mark" \1', body)
    return f'{start}{tag}class="chop-figure" {head}{end}{dark_style()}{marked}' if tag else svg


@cache
def dark_style() -> str:
    """Returns the dark-mode style of an SVG by matplotlib, which has colors in attributes."""
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
