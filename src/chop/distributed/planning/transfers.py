"""Transfer costs: redistribution of a value between layouts, as DTensor performs it."""

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
    """Redistribution of one value.

    Attributes:
        sent: collectives of one process.
        copy_bytes: bytes of the new local tensor; 0 if it shares the old memory.
        passing_bytes: peak bytes in addition to both tensors.
    """

    sent: tuple[Sent, ...] = ()
    copy_bytes: float = 0
    passing_bytes: float = 0

    def times(self, factor: float) -> Transfer:
        """Returns the transfer of a value with a multiple of the bytes."""
        sent = tuple(replace(x, size_bytes=x.size_bytes * factor) for x in self.sent)
        return Transfer(sent, self.copy_bytes * factor, self.passing_bytes * factor)


class Transfers:
    """Observes transfers on a mesh, since DTensor may use intermediate layouts.

    All chunks are equal, so bytes are proportional to size. The costs also depend on which
    dimensions are equal, and on which is the first, because only its chunks are gathered without
    a copy. This also applies to the first dimension after those of size one, such as a single
    sample.

    Args:
        mesh: simulated mesh; the caller has entered `FakeTensorMode`.
        backend: backend of the collectives, which may need buffers.
    """

    def __init__(self, mesh: DeviceMesh, backend: str = "gloo") -> None:
        self._mesh, self._backend = mesh, backend
        self._known: dict[tuple[bool, Layout, Layout], Transfer] = {}

    def of(self, tensor: Tensor, given: Layout, wanted: Layout) -> Transfer | None:
        """Returns the transfer of a value; None if it is impossible.

        Args:
            tensor: tensor with the shape and dtype of the whole value.
            given: present layout.
            wanted: layout to read; partial sums only if the present layout has them.
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
        """Returns the transfer per byte of a value, measured on a large one."""
        dims = [shard_dim(text) or 0 for text in (*given, *wanted) if text != PARTIAL]
        # Divisible by any product of mesh axes, so that all chunks are equal.
        sizes = [2 * self._mesh.size()] * (1 + max(dims, default=0))
        whole = torch.empty([1, *sizes[1:]] if has_one else sizes)
        old = sharded_fake(whole, self._mesh, given)
        assert old is not None
        meter = MemoryMeter([old.to_local()], self._backend)
        with counted_collectives(self._mesh) as sent, meter:
            new = old.redistribute(placements=torch_placements(wanted)).to_local().contiguous()
        copy_bytes = meter.live
        del new
        return Transfer(tuple(sent), copy_bytes, meter.peak - copy_bytes).times(1 / whole.nbytes)


def _alike(shape: Sequence[int], given: Layout, wanted: Layout) -> tuple[bool, Layout, Layout]:
    """Returns an equivalent transfer with few dimensions, and whether the first has size one.

    The first dimension of another size remains the first:

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
