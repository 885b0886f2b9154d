"""Roofline of a device, as measured: bytes copied, and operations of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chop.bench.clock import Call, Clock, clock_for

COPIED_BYTES = {"cpu": 2**27, "cuda": 2**30}
"""More than any cache holds."""
PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
TRIES = 7
"""The fastest counts: a ceiling is what the device reaches when nothing is in its way."""
MOST_SECONDS = 1.0
"""After so long no further try is made: numbers of 16 bits that a CPU has no product for."""


@dataclass(frozen=True)
class Roofline:
    """Two ceilings of a device.

    Attributes:
        bytes_per_second: read and written while a tensor is copied.
        flops_per_second: of the product of two matrices.

    Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance
    model for multicore architectures".
    """

    bytes_per_second: float
    flops_per_second: float

    def floor_seconds(self, moved_bytes: float, flops: float) -> float:
        """The shortest time in which so much can be moved and computed, both at once."""
        return max(moved_bytes / self.bytes_per_second, flops / self.flops_per_second)

    def bound(self, moved_bytes: float, flops: float) -> str:
        """Which ceiling that is: "memory" or "compute"."""
        in_memory = moved_bytes / self.bytes_per_second
        return "memory" if in_memory > flops / self.flops_per_second else "compute"


def measured_roofline(
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    clock: Clock | None = None,
) -> Roofline:
    """Both ceilings, with torch's present number of threads.

    Products count in `dtype` or in float32, whichever is faster: a kernel may compute numbers of
    16 bits as float32.

    Args:
        dtype: of the matrices.
        device: where.
        clock: None takes that of the device, see `chop.bench.clock.clock_for`.
    """
    place = torch.device(device)
    watch = clock or clock_for(place, torch.get_num_threads(), None)
    rates = [_products_per_second(each, place, watch) for each in {dtype, torch.float32}]
    return Roofline(copy_bytes_per_second(place, watch), max(rates))


def copy_bytes_per_second(device: torch.device, clock: Clock) -> float:
    """Bytes read plus bytes written a second while a tensor larger than the caches is copied."""
    count = COPIED_BYTES[device.type]
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / _fastest(lambda: target.copy_(source), clock)


def _products_per_second(dtype: torch.dtype, device: torch.device, clock: Clock) -> float:
    size = PRODUCT_SIZE[device.type]
    x, y = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _fastest(lambda: x @ y, clock)


def _fastest(call: Call, clock: Clock) -> float:
    call()
    taken: list[float] = []
    while len(taken) < TRIES and sum(taken) < MOST_SECONDS:
        taken.append(clock.decisive(clock.time(call, 1)))
    return min(taken)
