"""Geometry of a picture: placed boxes and frames, lines, and blocks of these, in pixels."""

from __future__ import annotations

import dataclasses

from chop.ir.drawing.hierarchy import Item

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Placed:
    """A box or a frame at its place: left, top, width and height in pixels."""

    item: Item
    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Line:
    """Part of the way of one node's result: straight down from `start`, then over to `end`.

    Attributes:
        source: the node whose result flows.
        start: bottom of a box, or a port.
        turn: straight below `start`, where the layer ends.
        end: top of the next layer.
        arrow: whether it ends at a box, and not at a port.
    """

    source: int
    start: Point
    turn: Point
    end: Point
    arrow: bool

    def moved(self, dx: float, dy: float, mirror_width: float | None = None) -> Line:
        """The line somewhere else, swapped left to right first if a width is given."""
        start, turn, end = (
            ((x if mirror_width is None else mirror_width - x) + dx, y + dy)
            for x, y in (self.start, self.turn, self.end)
        )
        return Line(self.source, start, turn, end, self.arrow)


@dataclasses.dataclass
class Block:
    """A laid-out item; coordinates are relative to its top left corner.

    Attributes:
        item: what is laid out.
        width: in pixels.
        height: in pixels.
        entries: where on the top border each node's result enters.
        exits: where on the bottom border each node's result leaves.
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
