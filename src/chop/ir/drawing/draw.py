"""Graph drawing as an SVG file for browsers and picture viewers.

Modules are frames and nodes are boxes, colored by kind of operator; data flow from top to bottom.
Nodes that compute sizes are omitted, and large graphs are folded to stay readable. The tooltip of
a box has the node's full name and the line of the model's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from chop.base.files import Picture, write_text
from chop.captured.module import CapturedModule
from chop.errors import ConfigError
from chop.ir.drawing.comparison import CHANGED, GONE, NEW, SAME
from chop.ir.drawing.geometry import Block, Line, Placed
from chop.ir.drawing.layout import lay_out
from chop.ir.drawing.view_model import (
    COLLAPSED,
    LINE_HEIGHT,
    TEXT_WIDTH,
    Box,
    ViewModel,
    build_view_model,
)
from chop.ir.ops import Kind

# (fill, border): pale fills keep black text readable in print too.
COLORS: dict[str, tuple[str, str]] = {
    Kind.PRODUCT: ("#d6e4f7", "#3b6ea8"),
    Kind.NORM: ("#e6dcf3", "#7a56a8"),
    Kind.ACTIVATION: ("#fbe3cf", "#bf6a1f"),
    Kind.ARITHMETIC: ("#fbf3c9", "#a08a1a"),
    Kind.POOLING: ("#d3efec", "#2e8b84"),
    Kind.DROPOUT: ("#f7dbe6", "#b0507c"),
    Kind.LOSS: ("#f6d0cc", "#b03a2e"),
    Kind.INPUT: ("#d8f0d3", "#3f8f35"),
    Kind.CONSTANT: ("#ececec", "#8a8a8a"),
    Kind.OUTPUT: ("#c9e8c4", "#2c6e24"),
    Kind.OTHER: ("#f7f7f7", "#9a9a9a"),
    COLLAPSED: ("#ffffff", "#3b6ea8"),
    NEW: ("#bfe5b8", "#2c6e24"),
    GONE: ("#f3b8b0", "#a32a1c"),
    CHANGED: ("#fbe08a", "#8a6d00"),
    SAME: ("#f7f7f7", "#b5b5b5"),
}
OTHER_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pdf", ".eps")
FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
HEADER = 44.0
ARROW = "M-3.5,-6 L0,0 L3.5,-6 Z"

LegendRow = list[tuple[str, str, float]]
"""Kind, text and distance from the left of each legend entry."""


def draw(
    model: CapturedModule,
    file: str | Path = "mase_graph.svg",
    depth: int | None = None,
    compare: CapturedModule | None = None,
) -> Picture:
    """Draws a graph as an SVG file, which notebooks display; creates missing folders.

    Args:
        model: the captured model.
        file: path of the picture; the suffix `.svg` is added if it is missing.
        depth: levels of modules to unfold; None unfolds as much as stays readable.
        compare: second model; new, removed and changed nodes are colored.
    Returns: the path of the file.

    Raises:
        ConfigError: if `depth` is not positive, or the suffix is that of another picture format.
        WriteError: if the disk is full or read-only.
    """
    path = Path(file).expanduser()
    if path.suffix.lower() in OTHER_PICTURES:
        raise ConfigError(
            f"draw: '{path.name}': the picture is an SVG file, which browsers and word processors "
            f"show: expected '{path.stem}.svg'."
        )
    if path.suffix != ".svg":
        path = path.with_name(f"{path.name}.svg")
    text = to_svg(model, depth, compare)
    write_text(path, text)
    return Picture(path)


def to_svg(
    model: CapturedModule, depth: int | None = None, compare: CapturedModule | None = None
) -> str:
    """Returns the SVG text of a graph; equal graphs give equal texts."""
    plan = build_view_model(model, depth, compare)
    inputs = [n for n, node in enumerate(plan.nodes) if node.op == "placeholder"]
    title = f"{model.record.class_name}: {len(model.graph.nodes)} nodes"
    if compare is not None:
        title += f", compared with {len(compare.graph.nodes)}"
    return picture(plan, title, inputs)


DARK_STYLE = """<style>@media screen and (prefers-color-scheme: dark) {
.chop-graph > rect[width="100%"] { fill: #14181d }
.chop-graph [stroke="#ffffff"] { stroke: #14181d }
.chop-graph > text { fill: #e8ebee } .chop-graph [fill="#41566e"] { fill: #a9b3be }
}</style>"""
"""Style for dark screens; boxes stay pale with dark texts."""


def picture(plan: ViewModel, title: str, inputs: Sequence[int] = ()) -> str:
    """Returns boxes and frames as SVG.

    Args:
        plan: boxes, frames and lines to draw.
        title: text above the picture.
        inputs: nodes of the plan that stay at the top.
    """
    block = lay_out(plan.root, plan.uses, inputs)
    legend = list(_legend(plan))
    width = max(block.width, 640.0)
    rows = _legend_rows(legend, width)
    top = HEADER + 22.0 * len(rows)
    height = top + block.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{escape(FONT)}" font-size="10" '
        'class="chop-graph">',
        f"<title>{escape(title)}</title>",
        DARK_STYLE,
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_draw_legend(rows),
        f'<g transform="translate({(width - block.width) / 2:.1f} {top:.1f})">',
        *_draw_block(plan, block),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


# --- the legend ----------------------------------------------------------------------------------


def _legend(plan: ViewModel) -> Iterator[tuple[str, str]]:
    """Returns (kind, text) of the legend in the order of the colors, then notes of kind ""."""
    boxes = [box for box in plan.words.values() if box.color in COLORS]
    counts = Counter(box.color for box in boxes)
    for kind in COLORS:
        if counts[kind]:
            yield kind, f"{kind} {counts[kind]}"
    if any(box.is_quantized for box in boxes):
        yield "", "thick border: quantized"
    if any(box.stays_float for box in boxes):
        yield "", "dashed: could be quantized, is float"
    for letter, meaning in plan.letters.items():
        yield "", f"{letter} = {meaning}"
    if plan.hidden:
        yield "", f"not drawn: {plan.hidden} nodes that compute sizes"


def _legend_rows(
    entries: list[tuple[str, str]], width: float
) -> list[list[tuple[str, str, float]]]:
    rows: list[list[tuple[str, str, float]]] = [[]]
    x = 16.0
    for kind, text in entries:
        needed = len(text) * TEXT_WIDTH + (34 if kind else 18)
        if x + needed > width and rows[-1]:
            rows.append([])
            x = 16.0
        rows[-1].append((kind, text, x))
        x += needed
    return rows


def _draw_legend(rows: list[LegendRow]) -> Iterator[str]:
    for number, row in enumerate(rows):
        y = HEADER + 22.0 * number
        for kind, text, x in row:
            if kind:
                fill, border = COLORS[kind]
                yield (
                    f'<rect x="{x:.1f}" y="{y - 8:.1f}" width="12" height="12" rx="2" '
                    f'fill="{fill}" stroke="{border}"/>'
                )
            yield f'<text x="{x + (18 if kind else 0):.1f}" y="{y + 2:.1f}">{escape(text)}</text>'


# --- boxes, frames and lines --------------------------------------------------------------------


def _draw_block(plan: ViewModel, block: Block) -> Iterator[str]:
    boxes = [placed for placed in block.placed if not placed.item.children]
    frames = [placed for placed in block.placed if placed.item.children]
    for placed in frames:
        yield from _draw_frame(placed, plan.box(placed.item))
    yield '<g fill="none" stroke="#6b7280" stroke-width="1.1">'
    yield from (f'<path d="{_way(line)}"/>' for line in block.lines)
    yield '</g>\n<g fill="#6b7280">'
    for line in block.lines:
        if line.arrow:
            x, y = line.end
            yield f'<path d="{ARROW}" transform="translate({x:.1f} {y:.1f})"/>'
    yield "</g>"
    for placed in frames:
        yield from _draw_label(placed, plan.box(placed.item))
    for placed in boxes:
        yield from _draw_box(placed, plan.box(placed.item))


def _way(line: Line) -> str:
    (x, y), (_, turn), (end_x, end_y) = line.start, line.turn, line.end
    middle = (turn + end_y) / 2
    way = f"M{x:.1f},{y:.1f} L{x:.1f},{turn:.1f} "
    if abs(end_x - x) < 0.5:
        return f"{way}L{end_x:.1f},{end_y:.1f}"
    return f"{way}C{x:.1f},{middle:.1f} {end_x:.1f},{middle:.1f} {end_x:.1f},{end_y:.1f}"


def _draw_frame(placed: Placed, box: Box) -> Iterator[str]:
    yield (
        f"<g><title>{escape(box.tooltip)}</title>"
        f'<rect x="{placed.x:.1f}" y="{placed.y:.1f}" width="{placed.width:.1f}" '
        f'height="{placed.height:.1f}" rx="6" fill="#1f3a5f" fill-opacity="0.02" '
        'stroke="#9fb3c8"/></g>'
    )


def _draw_label(placed: Placed, box: Box) -> Iterator[str]:
    """Draws the label of a frame on a light ground, after the lines that may cross it."""
    yield (
        f'<text x="{placed.x + 8:.1f}" y="{placed.y + 14:.1f}" fill="#41566e" '
        'stroke="#ffffff" stroke-width="3" stroke-linejoin="round" paint-order="stroke">'
        f'<tspan font-weight="bold">{escape(box.title)}</tspan> {escape(box.kind)}</text>'
    )


def _draw_box(placed: Placed, box: Box) -> Iterator[str]:
    fill, border = COLORS[box.color]
    thickness = "2.2" if box.is_quantized else "1"
    dashes = ' stroke-dasharray="4 3"' if box.stays_float else ""
    middle, y = placed.x + placed.width / 2, placed.y + LINE_HEIGHT
    yield f"<g data-node={quoteattr(placed.item.key)}><title>{escape(box.tooltip)}</title>"
    yield (
        f'<rect x="{placed.x:.1f}" y="{placed.y:.1f}" width="{placed.width:.1f}" '
        f'height="{placed.height:.1f}" rx="4" fill="{fill}" stroke="{border}" '
        f'stroke-width="{thickness}"{dashes}/>'
    )
    yield (
        f'<text x="{middle:.1f}" y="{y:.1f}" text-anchor="middle" font-size="11" '
        f'font-weight="bold">{escape(box.title)}</text>'
    )
    for line in box.lines:
        y += LINE_HEIGHT
        yield (
            f'<text x="{middle:.1f}" y="{y:.1f}" text-anchor="middle" fill="#374151">'
            f"{escape(line)}</text>"
        )
    yield "</g>"
