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
WIDTH, COLUMN_GAP = 560, 60
ROW_HEIGHT, ROW_GAP, HEADER, MARGIN = 30, 8, 34, 16
STYLE = (
    "text{font:13px sans-serif;fill:#1f2933}.title{font-weight:bold}"
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
    """An SVG with a column of layers for each contract; an arrow points down along each."""
    columns = contracts()
    height = HEADER + max(map(len, columns.values())) * (ROW_HEIGHT + ROW_GAP) + 2 * MARGIN
    width = len(columns) * (WIDTH + COLUMN_GAP) + MARGIN
    body = [
        part
        for place, (container, layers) in enumerate(columns.items())
        for part in _column(container, layers, MARGIN + place * (WIDTH + COLUMN_GAP))
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">\n<style>{STYLE}</style>\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _column(container: str, layers: Layers, left: int) -> list[str]:
    bottom = MARGIN + HEADER + len(layers) * (ROW_HEIGHT + ROW_GAP) - ROW_GAP
    arrow = left + WIDTH + 16
    parts = [
        f'<text class="title" x="{left}" y="{MARGIN + 16}">{container}: imports point down</text>',
        f'<path class="arrow" d="M{arrow} {MARGIN + HEADER}V{bottom}m-5 -9l5 9l5 -9"/>',
    ]
    for row, names in enumerate(layers):
        top = MARGIN + HEADER + row * (ROW_HEIGHT + ROW_GAP)
        box = (WIDTH - ROW_GAP * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            x = left + place * (box + ROW_GAP)
            parts.append(
                f'<rect class="box" x="{x:g}" y="{top}" width="{box:g}" height="{ROW_HEIGHT}" '
                f'rx="4"/><text x="{x + box / 2:g}" y="{top + 20}" text-anchor="middle">'
                f"{name}</text>"
            )
    return parts


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
