"""Layer layout of a drawing: order within each layer, and horizontal positions."""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence

from chop.ir.drawing.geometry import Block

COLUMN_GAP = 16.0
SWEEPS = 8
# Weight of a straight line, by the number of its ends that pass through a layer.
STRAIGHTNESS = (1.0, 0.2, 6.0)

Wish = tuple[float, float]


@dataclasses.dataclass(eq=False)
class Slot:
    """Element of a layer: a block, a port of the frame, or a line that passes through."""

    layer: int
    width: float
    height: float
    block: Block | None = None
    x: float = 0.0
    is_mirrored: bool = False
    above: list[Join] = dataclasses.field(default_factory=list)
    below: list[Join] = dataclasses.field(default_factory=list)

    def mirror(self) -> None:
        """Mirrors the block horizontally."""
        self.is_mirrored = not self.is_mirrored
        for join in self.above:
            join.lower_offset = self.width - join.lower_offset
        for join in self.below:
            join.upper_offset = self.width - join.upper_offset


@dataclasses.dataclass(eq=False)
class Join:
    """Line between two adjacent layers; offsets are from the left edge of each slot."""

    source: int
    upper: Slot
    upper_offset: float
    lower: Slot
    lower_offset: float


def in_layers(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Groups the slots by layer and preserves their order."""
    layers: list[list[Slot]] = [[] for _ in range(max(slot.layer for slot in slots) + 1)]
    for slot in slots:
        layers[slot.layer].append(slot)
    return layers


# --- the order within layers -------------------------------------------------------------------


def order(layers: list[list[Slot]]) -> None:
    """Reorders the layers by barycenter sweeps and keeps the order with the fewest crossings."""
    # A sweep may add crossings, so that the best order is restored at the end.
    best, fewest = _snapshot(layers), _crossings(layers)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for neighbors, layer in itertools.pairwise(layers if down else reversed(layers)):
            _sort_by_neighbors(layer, neighbors, down)
            _mirror_blocks(layer, neighbors)
        if (count := _crossings(layers)) < fewest:
            best, fewest = _snapshot(layers), count
        if fewest == 0:
            break
    for layer, ordered in zip(layers, best, strict=True):
        layer[:] = [slot for slot, _ in ordered]
        for slot, is_mirrored in ordered:
            if slot.is_mirrored != is_mirrored:
                slot.mirror()


def _snapshot(layers: list[list[Slot]]) -> list[list[tuple[Slot, bool]]]:
    return [[(slot, slot.is_mirrored) for slot in layer] for layer in layers]


def _sort_by_neighbors(layer: list[Slot], neighbors: list[Slot], down: bool) -> None:
    position = _positions(neighbors)
    own = _positions(layer)

    def barycenter(slot: Slot) -> float:
        near = slot.above if down else slot.below
        where = [position(join.upper if down else join.lower, join) for join in near]
        return sum(where) / len(where) if where else own(slot, None)

    wishes = {id(slot): (barycenter(slot), own(slot, None)) for slot in layer}
    layer.sort(key=lambda slot: wishes[id(slot)])


def _positions(layer: list[Slot]) -> Callable[[Slot, Join | None], float]:
    """Returns the end of each line in a layer: slot number and position within the slot."""
    number = {id(slot): float(n) for n, slot in enumerate(layer)}

    def position(slot: Slot, join: Join | None) -> float:
        if join is None:
            return number[id(slot)]
        offset = join.upper_offset if join.upper is slot else join.lower_offset
        return number[id(slot)] + offset / slot.width

    return position


def _mirror_blocks(layer: list[Slot], neighbors: list[Slot]) -> None:
    """Mirrors blocks whose lines arrive in reverse order."""
    position = _positions(neighbors)
    for slot in layer:
        if slot.block is None or len(slot.above) < 2 or slot.above[0].upper not in neighbors:
            continue
        ends = [(position(join.upper, join), join.lower_offset) for join in slot.above]
        pairs = list(itertools.combinations(ends, 2))
        if sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs) > len(pairs) / 2:
            slot.mirror()


def _crossings(layers: list[list[Slot]]) -> int:
    return sum(map(_crossings_below, layers, layers[1:]))


def _crossings_below(upper: list[Slot], lower: list[Slot]) -> int:
    position = _positions(lower)
    ends: list[float] = []
    count = 0
    for slot in upper:
        lines = sorted((join.upper_offset, position(join.lower, join)) for join in slot.below)
        for _, end in lines:
            # Earlier lines that end further right cross this one.
            count += len(ends) - bisect_right(ends, end)
            insort(ends, end)
    return count


# --- columns -----------------------------------------------------------------------------------


def place_columns(layers: list[list[Slot]]) -> None:
    """Moves slots towards their neighbors without changing their order or minimum distance."""
    for layer in layers:
        total = sum(slot.width + COLUMN_GAP for slot in layer)
        x = -total / 2
        for slot in layer:
            slot.x = x
            x += slot.width + COLUMN_GAP
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            _align(layer, _wishes_above if down else _wishes_below)
    for layer in layers:
        _align(layer, _in_line, settled=True)


def _wish(join: Join, slot: Slot) -> Wish:
    """Returns the position that makes a line straight, and its weight."""
    ends = (join.upper.block is None) + (join.lower.block is None)
    shift = join.upper_offset - join.lower_offset
    if ends == 0:
        # Stacked frames align by their centers; following the ports would make them drift.
        shift = (join.upper.width - join.lower.width) / 2
    x = join.upper.x + shift if slot is join.lower else join.lower.x - shift
    return x, STRAIGHTNESS[ends]


def _wishes_above(slot: Slot) -> list[Wish]:
    return [_wish(join, slot) for join in slot.above]


def _wishes_below(slot: Slot) -> list[Wish]:
    return [_wish(join, slot) for join in slot.below]


def _in_line(slot: Slot) -> list[Wish]:
    """Aligns a slot with its neighbor if they have no other lines, so that chains are straight."""
    is_chain = len(slot.above) == 1 and len(slot.above[0].upper.below) == 1
    return _wishes_above(slot) if is_chain else []


def _align(
    layer: list[Slot], get_wishes: Callable[[Slot], list[Wish]], settled: bool = False
) -> None:
    """Least-squares placement in a fixed order; touching slots share the mean of their wishes.

    Args:
        layer: slots to move.
        get_wishes: preferred positions of the center of a slot, with weights.
        settled: True if slots without wishes hold their position.
    """
    pools: list[tuple[float, float, int]] = []
    shift = 0.0
    shifts = []
    for slot in layer:
        wishes = get_wishes(slot) or [(slot.x, 1.0 if settled else 0.01)]
        weight = sum(weight for _, weight in wishes)
        x = sum(x * weight for x, weight in wishes) / weight
        # Without the widths of its predecessors, the minimum distance is a mere order.
        pools.append((x - shift, weight, 1))
        # Isotonic regression: pools that violate the order are merged into their mean.
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (a, a_weight, a_count), (b, b_weight, b_count) = pools[-2:]
            both = a_weight + b_weight
            pools[-2:] = [((a * a_weight + b * b_weight) / both, both, a_count + b_count)]
        shifts.append(shift)
        shift += slot.width + COLUMN_GAP
    values = [value for value, _, count in pools for _ in range(count)]
    for slot, value, offset in zip(layer, values, shifts, strict=True):
        slot.x = value + offset
