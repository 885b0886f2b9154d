"""Draws the picture and table of `architecture.md` from the import contracts in pyproject.toml."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/images/architecture.svg"
PAGE = ROOT / "docs/architecture.md"
HEADER_OF_TABLE = "| layer | subpackage | contents |\n| --- | --- | --- |\n"
WIDTH, ARROW = 368, 24
"""Narrow, so that its text is legible on a phone."""
MOST_BOXES = 3
"""In a row; a layer with more members has several rows."""
ROW_HEIGHT, ROW_GAP, LAYER_GAP, HEADER, MARGIN = 28, 6, 12, 34, 8
STYLE = (
    "text{font:15px sans-serif;fill:#1f2933}.title{font-weight:bold}"
    ".box{fill:#d6e4f7;stroke:#3b6ea8}.arrow{stroke:#6b7280;fill:none}"
)

Layers = Sequence[Sequence[str]]
"""Top to bottom; members of a layer import none of one another."""


def contracts() -> dict[str, Layers]:
    """The layers of each container that pyproject.toml has a contract for, the package first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {
        container: [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
        for contract in settings["contracts"]
        if contract["type"] == "layers"
        for container in contract["containers"]
    }


def picture() -> str:
    """An SVG: the layers of each contract below one another, with an arrow along each."""
    body, top = [], MARGIN
    for container, layers in contracts().items():
        parts, top = _column(container, layers, top)
        body += parts
    width, height = WIDTH + ARROW + 2 * MARGIN, top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">\n<style>{STYLE}</style>\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _column(container: str, layers: Layers, top: int) -> tuple[list[str], int]:
    """The elements of one contract, and the place below them."""
    title = (
        f'<text class="title" x="{MARGIN}" y="{top + 16}">{container}: imports point down</text>'
    )
    start = top = top + HEADER
    parts = [title]
    for names in layers:
        for first in range(0, len(names), MOST_BOXES):
            parts += _boxes(names[first : first + MOST_BOXES], top)
            top += ROW_HEIGHT + ROW_GAP
        top += LAYER_GAP - ROW_GAP
    bottom, arrow = top - LAYER_GAP, MARGIN + WIDTH + ARROW // 2
    parts.append(f'<path class="arrow" d="M{arrow} {start}V{bottom}m-5 -9l5 9l5 -9"/>')
    return parts, bottom + 2 * MARGIN


def _boxes(names: Sequence[str], top: int) -> list[str]:
    """One row of boxes, which share the width."""
    box = (WIDTH - ROW_GAP * (len(names) - 1)) / len(names)
    lefts = [MARGIN + place * (box + ROW_GAP) for place in range(len(names))]
    return [
        f'<rect class="box" x="{x:g}" y="{top}" width="{box:g}" height="{ROW_HEIGHT}" rx="4"/>'
        f'<text x="{x + box / 2:g}" y="{top + 19}" text-anchor="middle">{name}</text>'
        for x, name in zip(lefts, names, strict=True)
    ]


def table() -> str:
    """A Markdown table: each room's layer, counted from the top, and its docstring's first line."""
    rows = (
        f"| {number} | `chop.{name}` | {_summary(name)} |"
        for number, layer in enumerate(contracts()["chop"], 1)
        for name in layer
    )
    return HEADER_OF_TABLE + "\n".join(rows) + "\n"


def _summary(room: str) -> str:
    """The first line of a room's docstring, without its full stop."""
    package = ROOT / "src/chop" / room
    file = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.partition("\n")[0].rstrip(".")


def page() -> str:
    """The architecture page with its table as it has to be."""
    before, _, rest = PAGE.read_text().partition(HEADER_OF_TABLE)
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n{after}"


if __name__ == "__main__":
    PICTURE.write_text(picture())
    PAGE.write_text(page())
