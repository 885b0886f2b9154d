"""Dynamic axes (dynamic shapes) of an ONNX file: axes that vary, and sizes the graph supports.

A file cannot test a condition on sizes. An axis that the graph's guards pin is fixed in the file,
so that runtimes reject other sizes. Sizes that other guards exclude are reported to the user.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from torch import Tensor

from chop.captured.guards.shape_guards import ShapeGuard, compile_guard, guard_holds
from chop.export.graphs.flat import map_tensors, named_tensors

Axis = tuple[str, int]
Sizes = dict[Axis, int]
AxisNames = Mapping[int, str]
BATCH, SEQUENCE = "batch", "sequence"


class Conditions:
    """Shape guards of a graph, evaluated for other sizes of its example inputs.

    Args:
        guards: guards of the graph's record.
        example: inputs by argument name that satisfy the guards.
        known: batch and sequence axes of tensors by name; those of other tensors are inferred.
    """

    def __init__(
        self,
        guards: Iterable[ShapeGuard],
        example: Mapping[str, Any],
        known: Mapping[str, AxisNames] = MappingProxyType({}),
    ) -> None:
        self._example = example
        self._tensors = named_tensors(example)
        self._free = _batches_and_lengths(self._tensors, known)
        self._codes = {guard.expression: compile_guard(guard) for guard in guards}
        numbers = {int(k) for text in self._codes for k in re.findall(r"(?<![\w.\[])\d+", text)}
        # Guards change at the numbers that they contain: sizes around these are probed.
        self._nearby = {k + step for k in numbers for step in (-1, 0, 1)}

    def violated(self, sizes: Sizes) -> list[str]:
        """Returns the guards that some axis sizes violate."""
        shapes = iter(
            [sizes.get((name, a), size) for a, size in enumerate(x.shape)]
            for name, x in self._tensors.items()
        )
        given = map_tensors(lambda _: SimpleNamespace(shape=next(shapes)), dict(self._example))
        return [text for text, code in self._codes.items() if not guard_holds(code, given)]

    def varying(self) -> dict[str, list[int]]:
        """Returns the batch and sequence axes that no guard pins, by input."""
        return {
            name: [a for one, a in self._free if one == name and self._may_vary((one, a))]
            for name in self._tensors
        }

    def _may_vary(self, axis: Axis) -> bool:
        return any(not self.violated(sizes) for sizes in self._other_sizes(axis))

    def restricting(self, axes: Iterable[Axis]) -> list[str]:
        """Returns the guards that some sizes of the axes violate, in the graph's order."""
        restricting = {
            text for axis in axes for sizes in self._together(axis) for text in self.violated(sizes)
        }
        return [text for text in self._codes if text in restricting]

    def _other_sizes(self, axis: Axis) -> Iterator[Sizes]:
        """Yields sizes that change one axis, all equal axes, or all axes in proportion."""
        size = self._size(axis)
        for other in self._probes(size):
            yield {axis: other}
        yield from self._together(axis)
        # Guards such as "b == 2 * a" hold only if both axes grow.
        for times in (2, 3):
            yield {one: times * self._size(one) for one in self._free if one[1] == axis[1]}

    def _together(self, axis: Axis) -> Iterator[Sizes]:
        size = self._size(axis)
        equal = [one for one in self._free if self._size(one) == size]
        for tied in ([one for one in equal if one[1] == axis[1]], equal):
            for other in self._probes(size):
                yield dict.fromkeys(tied, other)

    def _probes(self, size: int) -> list[int]:
        near = {size + step for step in (-2, -1, 1, 2)} | {times * size for times in (2, 3, 4)}
        halves = {1, size // 2, 2 * size + 1}
        return sorted(n for n in near | halves | self._nearby if n > 0 and n != size)

    def _size(self, axis: Axis) -> int:
        return int(self._tensors[axis[0]].shape[axis[1]])


def _batches_and_lengths(
    tensors: Mapping[str, Tensor], known: Mapping[str, AxisNames]
) -> list[Axis]:
    """Returns known axes, first axes, and second axes as long as token ids or boolean masks."""
    lengths = {x.shape[1] for x in tensors.values() if x.dim() > 1 and not x.is_floating_point()}
    return [
        (name, a)
        for name, x in tensors.items()
        for a in known.get(name, _first_and_length(x, lengths))
    ]


def _first_and_length(x: Tensor, lengths: Collection[int]) -> list[int]:
    return [a for a, size in enumerate(x.shape[:2]) if a == 0 or size in lengths]


def symbolic_axes(proto: Any) -> list[Axis]:
    """Returns the input axes of a file that accept any size."""
    return [
        (each.name, a)
        for each in proto.graph.input
        for a, dim in enumerate(each.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    ]
