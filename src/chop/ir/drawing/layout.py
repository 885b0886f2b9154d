"""Layout of a drawing: layers from top to bottom, nested frames, routed lines.

Each frame is laid out separately and is then a single box in its parent. Lines cross the border
of a frame at ports, so that they never run through unrelated boxes.

Source: Sugiyama, Tagawa, Toda 1981, "Methods for visual understanding of hierarchical system
structures" (layers, dummies for long edges, barycenters).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from chop.ir.drawing.geometry import Block, Line, Placed
from chop.ir.drawing.hierarchy import Item, Uses, flow_between, without_cycles
from chop.ir.drawing.layers import Join, Slot, in_layers, order, place_columns

LAYER_GAP = 24.0
LINE_SPACE = 6.0
PADDING = 14.0
LABEL_HEIGHT = 12.0


def lay_out(root: Item, uses: Uses, top: Iterable[int] = ()) -> Block:
    """Lays out everything in `root`.

    Args:
        root: frame of the whole picture, without a border.
        uses: readers of each node's result.
        top: nodes that stay in the first layer.
    """
    return _lay_out(root, uses, frozenset(top))


def _lay_out(item: Item, uses: Uses, top: frozenset[int]) -> Block:
    if not item.children:
        return _box(item, uses)
    children = without_cycles(item.children, uses)
    blocks = [_lay_out(child, uses, top) for child in children]
    return _Level(item, blocks, uses, top).block()


def _box(item: Item, uses: Uses) -> Block:
    entries, exits = _crossing(item, uses)
    middle = item.width / 2
    return Block(
        item, item.width, item.height, dict.fromkeys(entries, middle), dict.fromkeys(exits, middle)
    )


def _crossing(item: Item, uses: Uses) -> tuple[list[int], list[int]]:
    """Returns the nodes whose results enter an item, and those whose results leave it."""
    inside = set(item.leaves)
    entries = [s for s, users in uses.items() if s not in inside and not inside.isdisjoint(users)]
    exits = [s for s in item.leaves if not inside.issuperset(uses.get(s, ()))]
    return sorted(entries), exits


class _Level:
    """Layout of one frame: blocks in layers, lines between them, and ports on the border."""

    def __init__(
        self, item: Item, blocks: Sequence[Block], uses: Uses, top: frozenset[int]
    ) -> None:
        self.item = item
        self.entries, self.exits = _crossing(item, uses)
        layers = _layers(blocks, uses, top, bool(self.entries))
        last = max(layers.values()) + 1
        self.blocks = {b.item.key: _block_slot(layers[b.item.key], b) for b in blocks}
        self.entry_ports = {s: _port(0) for s in self.entries}
        self.exit_ports = {s: _port(last) for s in self.exits}
        self.joins: list[Join] = []
        self.slots = [*self.entry_ports.values(), *self.blocks.values()]
        self._connect(uses)
        self.slots += self.exit_ports.values()
        self.layers = in_layers(self.slots)

    def _connect(self, uses: Uses) -> None:
        home = {leaf: slot for slot in self.blocks.values() for leaf in _leaves(slot)}
        for source in sorted({*self.entries, *home}):
            start = home.get(source) or self.entry_ports[source]
            ends = {id(home[u]): home[u] for u in uses.get(source, ()) if u in home}
            targets = [slot for slot in ends.values() if slot is not start]
            if source in self.exit_ports:
                targets.append(self.exit_ports[source])
            if targets:
                self._draw(source, start, targets)

    def _draw(self, source: int, start: Slot, targets: list[Slot]) -> None:
        """Draws one trunk through the layers, from which the lines to the targets branch off."""
        trunk, offset = start, _exit_offset(start, source)
        for layer in range(start.layer + 1, max(slot.layer for slot in targets) + 1):
            for slot in targets:
                if slot.layer == layer:
                    self._join(source, trunk, offset, slot, _entry_offset(slot, source))
            if any(slot.layer > layer for slot in targets):
                passing = Slot(layer, LINE_SPACE, 0.0)
                self.slots.append(passing)
                self._join(source, trunk, offset, passing, LINE_SPACE / 2)
                trunk, offset = passing, LINE_SPACE / 2

    def _join(self, source: int, a: Slot, a_offset: float, b: Slot, b_offset: float) -> None:
        join = Join(source, a, a_offset, b, b_offset)
        a.below.append(join)
        b.above.append(join)
        self.joins.append(join)

    def block(self) -> Block:
        """Returns the frame with all positions."""
        order(self.layers)
        place_columns(self.layers)
        origin = min(slot.x for slot in self.slots) - PADDING
        for slot in self.slots:
            slot.x -= origin
        width = max(slot.x + slot.width for slot in self.slots) + PADDING
        if width < self.item.width:
            for slot in self.slots:
                slot.x += (self.item.width - width) / 2
            width = self.item.width
        tops, bottoms = self._heights()
        block = Block(
            self.item,
            width,
            bottoms[-1] + (0 if self.exits else PADDING),
            {s: slot.x + slot.width / 2 for s, slot in self.entry_ports.items()},
            {s: slot.x + slot.width / 2 for s, slot in self.exit_ports.items()},
        )
        ys = {id(slot): tops[slot.layer] for slot in self.slots}
        for slot in self.blocks.values():
            if not slot.above:  # without inputs, it can sit next to its reader
                ys[id(slot)] = bottoms[slot.layer] - slot.height
            _insert(block, slot, ys[id(slot)])
        for join in self.joins:
            a, b = join.upper, join.lower
            ax, bx = a.x + join.upper_offset, b.x + join.lower_offset
            start = (ax, ys[id(a)] + a.height)
            arrow = b.block is not None and not b.block.item.children
            turn, end = (ax, bottoms[a.layer]), (bx, tops[b.layer])
            block.lines.append(Line(join.source, start, turn, end, arrow))
        return block

    def _heights(self) -> tuple[list[float], list[float]]:
        """Returns top and bottom of every layer."""
        y = 0.0 if self.entries else PADDING + LABEL_HEIGHT
        tops, bottoms = [], []
        for number, layer in enumerate(self.layers):
            tops.append(y)
            bottoms.append(y + max((slot.height for slot in layer), default=0.0))
            y = bottoms[-1] + LAYER_GAP
            if number == 0 and self.entries:
                y += LABEL_HEIGHT
        return tops, bottoms


def _leaves(slot: Slot) -> tuple[int, ...]:
    return slot.block.item.leaves if slot.block else ()


def _port(layer: int) -> Slot:
    return Slot(layer, LINE_SPACE, 0.0)


def _block_slot(layer: int, block: Block) -> Slot:
    return Slot(layer, block.width, block.height, block)


def _exit_offset(slot: Slot, source: int) -> float:
    return slot.block.exits[source] if slot.block else slot.width / 2


def _entry_offset(slot: Slot, source: int) -> float:
    return slot.block.entries[source] if slot.block else slot.width / 2


def _insert(block: Block, slot: Slot, y: float) -> None:
    inner = slot.block
    assert inner is not None
    block.placed.append(Placed(inner.item, slot.x, y, inner.width, inner.height))
    for placed in inner.placed:
        offset = inner.width - placed.x - placed.width if slot.is_mirrored else placed.x
        block.placed.append(dataclasses.replace(placed, x=offset + slot.x, y=placed.y + y))
    for line in inner.lines:
        block.lines.append(line.moved(slot.x, y, inner.width if slot.is_mirrored else None))


# --- layers ------------------------------------------------------------------------------------


def _layers(
    blocks: Sequence[Block], uses: Uses, top: frozenset[int], has_entries: bool
) -> dict[str, int]:
    """Returns the layer of each block: as high as its inputs allow, constants near readers."""
    items = [block.item for block in blocks]
    flow = flow_between(items, uses)
    layers = dict.fromkeys(flow, 0)
    for item in items:
        for target in flow[item.key]:
            layers[target] = max(layers[target], layers[item.key] + 1)
    constant = _constant(blocks, flow, top)
    for item in reversed(items):
        if item.key in constant and flow[item.key]:
            layers[item.key] = min(layers[target] for target in flow[item.key]) - 1
    first = 1 if has_entries else 0
    number = {layer: first + n for n, layer in enumerate(sorted(set(layers.values())))}
    return {key: number[layer] for key, layer in layers.items()}


def _constant(blocks: Sequence[Block], flow: dict[str, set[str]], top: frozenset[int]) -> set[str]:
    """Returns the keys of items that do not depend on any input of the frame."""
    inside = {leaf for block in blocks for leaf in block.item.leaves}
    constant: set[str] = set()
    for block in blocks:
        item = block.item
        inputs = {key for key, targets in flow.items() if item.key in targets}
        if inside >= block.entries.keys() and inputs <= constant and top.isdisjoint(item.leaves):
            constant.add(item.key)
    return constant
