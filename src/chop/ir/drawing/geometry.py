"""Geometry of a drawing in pixels: placed boxes and frames, lines and blocks."""

from __future__ import annotations

import dataclasses

from chop.ir.drawing.hierarchy import Item

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Placed:
    """Box or frame with its left, top, width and height in pixels."""

    item: Item
    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Line:
    """Line segment of a node's result: straight down from `start`, then over to `end`.

    Attributes:
        source: node that computes the result.
        start: bottom of a box, or a port.
        turn: point straight below `start` at the end of the layer.
        end: top of the next layer.
        arrow: True if the line ends at a box, False at a port.
    """

    source: int
    start: Point
    turn: Point
    end: Point
    arrow: bool

    def moved(self, dx: float, dy: float, mirror_width: float | None = None) -> Line:
        """Returns the line shifted, and mirrored within `mirror_width` first if that is given."""
        start, turn, end = (
            ((x if mirror_width is None else mirror_width - x) + dx, y + dy)
            for x, y in (self.start, self.turn, self.end)
        )
        return Line(self.source, start, turn, end, self.arrow)


@dataclasses.dataclass
class Block:
    """Item after layout; coordinates are relative to its top left corner.

    Attributes:
        item: the box or frame.
        width: in pixels.
        height: in pixels.
        entries: position on the top border at which each node's result enters.
        exits: position on the bottom border at which each node's result leaves.
        placed: the boxes and frames inside, outer ones first.
        lines: the lines inside.
    """

    item: Item
    width: float
    height: float
    entries: dict[int, float]
    exits: dict[int, float]
    placed: list[Placed] = dataclasses.field(default_factory=list)
    lines: list[Line] = dataclasses.field(default_factory=list)
