"""Transfers by an exemplar equal those of a tensor of that very shape and dtype."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from chop.distributed import process
from chop.distributed.collectives import Sent, counted_collectives
from chop.distributed.memory import MemoryMeter
from chop.distributed.planning.layouts import Layout, local_shape, sharded_fake, torch_placements
from chop.distributed.planning.simulated import simulated_mesh
from chop.distributed.planning.transfers import Transfer, Transfers
from chop.private.torch_api import FakeTensorMode
from tests.distributed import cluster

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
MESHES = [(2,), (4,), (2, 2), (2, 3)]


def observed(like: torch.Tensor, mesh: DeviceMesh, given: Layout, wanted: Layout) -> Transfer:
    """What DTensor does with this tensor."""
    old = sharded_fake(like, mesh, given)
    assert old is not None
    with counted_collectives(mesh) as sent, MemoryMeter([old.to_local()]) as meter:
        new = old.redistribute(placements=torch_placements(wanted)).to_local().contiguous()
    assert tuple(new.shape) == local_shape(like.shape, mesh.shape, wanted)
    return Transfer(tuple(sent), meter.live, meter.peak - meter.live)


def cases(mesh: Sequence[int], count: int, seed: int) -> Iterator[tuple[tuple[int, ...], Layout]]:
    """Shapes that divide, and a layout to read them in."""
    pick = random.Random(seed)
    for _ in range(count):
        rank = pick.randint(1, 4)
        sizes = [pick.choice([6, 12, 24, 36]) for _ in range(rank)]
        if pick.random() < 0.3:
            sizes[pick.randrange(rank)] = 5
        for dim in range(pick.choice([0, 0, 0, 1, 2])):
            sizes[min(dim, rank - 1)] = 1
        texts = ["R", *(f"S{d}" for d in range(rank))]
        yield tuple(sizes), tuple(pick.choice(texts) for _ in mesh)


def givens(shape: Sequence[int], mesh: Sequence[int]) -> list[Layout]:
    texts = ["R", "P", *(f"S{d}" for d in range(len(shape)))]
    layouts = itertools.product(texts, repeat=len(mesh))
    return [layout for layout in layouts if local_shape(shape, mesh, layout) is not None]


def close(found: Sequence[Sent], expected: Sequence[Sent]) -> bool:
    return len(found) == len(expected) and all(
        (a.operation, a.axis) == (b.operation, b.axis)
        and a.size_bytes == pytest.approx(b.size_bytes)
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.sampled(1)
def test_transfers_are_those_of_the_tensor_itself(shape: tuple[int, ...]):
    compared, different = 0, []
    with simulated_mesh(shape) as mesh, FakeTensorMode(), torch.no_grad():
        transfers = Transfers(mesh)
        for index, (sizes, wanted) in enumerate(cases(shape, 25, seed=len(shape))):
            like = torch.empty(sizes, dtype=DTYPES[index % 4])
            for given in givens(sizes, shape):
                found = transfers.of(like, given, wanted)
                if local_shape(sizes, shape, wanted) is None:
                    assert found is None
                    continue
                assert found is not None
                expected = observed(like, mesh, given, wanted)
                compared += 1
                bytes_ = (found.copy_bytes, found.passing_bytes)
                if not close(found.sent, expected.sent) or bytes_ != pytest.approx(
                    (expected.copy_bytes, expected.passing_bytes), abs=1
                ):
                    different.append((sizes, like.dtype, given, wanted, found, expected))
    assert compared > 40
    assert not different, "\n".join(map(str, different))


def test_transfers_by_hand():
    x = torch.empty(8, 12, device="meta")
    whole = x.nbytes
    with simulated_mesh((4,)) as mesh, FakeTensorMode(), torch.no_grad():
        transfers = Transfers(mesh)
        assert transfers.of(x, ("R",), ("S1",)).sent == ()
        assert transfers.of(x, ("S0",), ("S0",)) == Transfer()
        gathered = transfers.of(x, ("S0",), ("R",))
        assert gathered.sent == (Sent("all_gather_into_tensor", whole / 4, 0),)
        assert (gathered.copy_bytes, gathered.passing_bytes) == (whole, whole)  # gloo's buffer
        gathered = Transfers(mesh, "nccl").of(x, ("S0",), ("R",))
        assert (gathered.copy_bytes, gathered.passing_bytes) == (whole, 0)
        summed = transfers.of(x, ("P",), ("R",))
        assert summed.sent == (Sent("all_reduce", whole, 0),)
        scattered = transfers.of(x, ("P",), ("S0",))
        assert scattered.sent == (Sent("reduce_scatter_tensor", whole, 0),)
        assert scattered.copy_bytes == whole / 4
        for given, wanted in ((("R",), ("P",)), (("S0",), ("P",)), (("R",), ("S2",))):
            assert transfers.of(x, given, wanted) is None
        assert (
            transfers.of(torch.empty(6, 12, device="meta"), ("R",), ("S0",)) is None
        )  # six do not divide by four


PAIRS = [
    *((("S0",), ("R",)), (("S1",), ("R",)), (("P",), ("R",))),
    *((("P",), ("S0",)), (("P",), ("S1",)), (("S0",), ("S1",))),
]


def measured(pairs: Sequence[tuple[Layout, Layout]]) -> list[int]:
    """Bytes that joined processes need at most for a transfer."""
    mesh, found = process.start((2,), "gloo"), []
    with torch.no_grad():
        for given, wanted in pairs:
            old = sharded_fake(torch.empty(8, 12), mesh, given)
            assert old is not None
            with MemoryMeter([old.to_local()]) as meter:
                old.redistribute(placements=torch_placements(wanted)).to_local().contiguous()
            found.append(meter.peak)
    return found


def test_joined_processes_need_the_memory_that_is_predicted():
    real = cluster.run(measured, 2, PAIRS)
    x = torch.empty(8, 12)
    with simulated_mesh((2,)) as mesh, FakeTensorMode(), torch.no_grad():
        found = [Transfers(mesh).of(x, *pair) for pair in PAIRS]
    predicted = [each.copy_bytes + each.passing_bytes for each in found if each is not None]
    assert real == [predicted] * 2
    assert predicted[:4] == [384 + 384, 384 + 384, 384, 192 + 384]
