"""Transfers: what it costs to bring a value from one layout into another, as DTensor does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chop.distributed.collectives import Sent, counted_collectives
from chop.distributed.memory import MemoryMeter
from chop.distributed.placements import REPLICATED, shard_dim, sharded
from chop.distributed.planning.layouts import (
    PARTIAL,
    Layout,
    local_shape,
    sharded_fake,
    torch_placements,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Transfer:
    """One value on its way into another layout.

    Attributes:
        sent: the collectives, by one process.
        copy_bytes: of the new tensor of a process; 0 where it is the old one's memory.
        passing_bytes: beyond old and new one, at the worst moment.
    """

    sent: tuple[Sent, ...] = ()
    copy_bytes: float = 0
    passing_bytes: float = 0

    def times(self, factor: float) -> Transfer:
        """The transfer of a value that has so many times the bytes."""
        sent = tuple(replace(x, size_bytes=x.size_bytes * factor) for x in self.sent)
        return Transfer(sent, self.copy_bytes * factor, self.passing_bytes * factor)


class Transfers:
    """Transfers on a mesh. DTensor may go through other layouts, so each is observed.

    All chunks are equal, so that bytes are in proportion. What counts beside is which dimensions
    are one and the same, and which is the first: only its chunks are gathered without a copy.
    Behind dimensions of size one, as one sample has, the next one is gathered so too.

    Args:
        mesh: simulated; the caller has entered `FakeTensorMode`.
        backend: of the collectives, which may need buffers.
    """

    def __init__(self, mesh: DeviceMesh, backend: str = "gloo") -> None:
        self._mesh, self._backend = mesh, backend
        self._known: dict[tuple[bool, Layout, Layout], Transfer] = {}

    def of(self, tensor: Tensor, given: Layout, wanted: Layout) -> Transfer | None:
        """The transfer of a value; None where it is not possible.

        Args:
            tensor: of the shape and dtype of the whole value.
            given: the layout that it has.
            wanted: the one in which it is read; partial sums only where they are there already.
        """
        if given == wanted:
            return Transfer()
        if PARTIAL in wanted or local_shape(tensor.shape, self._mesh.shape, wanted) is None:
            return None
        key = _alike(tensor.shape, given, wanted)
        if key not in self._known:
            self._known[key] = self._observed(*key)
        return self._known[key].times(tensor.nbytes)

    def _observed(self, has_one: bool, given: Layout, wanted: Layout) -> Transfer:
        """The transfer of a value of one byte, by that of a large one."""
        dims = [shard_dim(text) or 0 for text in (*given, *wanted) if text != PARTIAL]
        sizes = [2 * self._mesh.size()] * (1 + max(dims, default=0))
        whole = torch.empty([1, *sizes[1:]] if has_one else sizes)
        old = sharded_fake(whole, self._mesh, given)
        assert old is not None
        meter = MemoryMeter([old.to_local()], self._backend)
        with counted_collectives(self._mesh) as sent, meter:
            new = old.redistribute(placements=torch_placements(wanted)).to_local().contiguous()
        kept = meter.live
        del new
        return Transfer(tuple(sent), kept, meter.peak - kept).times(1 / whole.nbytes)


def _alike(shape: Sequence[int], given: Layout, wanted: Layout) -> tuple[bool, Layout, Layout]:
    """The same transfer with the least dimensions, and whether the first of them has size one.

    The first dimension that has another size stays the first:

    >>> _alike((6, 6, 6, 6), ("S3", "S0"), ("R", "S3"))
    (False, ('S1', 'S0'), ('R', 'S1'))
    >>> _alike((1, 1, 6, 6), ("S3",), ("S2",))
    (True, ('S2',), ('S1',))
    """
    first = next((dim for dim, size in enumerate(shape) if size != 1), 0)
    has_one = first > 0
    dims = {sharded(first): sharded(int(has_one))}
    for text in (*given, *wanted):
        if text not in (REPLICATED, PARTIAL):
            dims.setdefault(text, sharded(len(dims) + has_one))
    return (
        has_one,
        tuple(dims.get(text, text) for text in given),
        tuple(dims.get(text, text) for text in wanted),
    )
