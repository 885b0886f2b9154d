"""Roofline of a device, from measured copies and matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chop.bench.clock import Call, Clock, clock_for

COPIED_BYTES = {"cpu": 2**27, "cuda": 2**30}
"""Size of the copied tensor in bytes, larger than any cache."""
PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
TRIES = 7
"""Number of tries; the fastest one counts, because a ceiling is the undisturbed speed."""
MOST_SECONDS = 1.0
"""Time limit of the tries: some CPUs have no fast product of 16-bit numbers."""


@dataclass(frozen=True)
class Roofline:
    """Memory and compute ceilings of a device.

    Attributes:
        bytes_per_second: read and written during the copy of a tensor.
        flops_per_second: of the product of two matrices.

    Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance
    model for multicore architectures".
    """

    bytes_per_second: float
    flops_per_second: float

    def floor_seconds(self, moved_bytes: float, flops: float) -> float:
        """Returns the lower bound of the time to move and compute this much concurrently."""
        return max(moved_bytes / self.bytes_per_second, flops / self.flops_per_second)

    def bound(self, moved_bytes: float, flops: float) -> str:
        """Returns the ceiling that bounds a computation, "memory" or "compute"."""
        in_memory = moved_bytes / self.bytes_per_second
        return "memory" if in_memory > flops / self.flops_per_second else "compute"


def measured_roofline(
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    clock: Clock | None = None,
) -> Roofline:
    """Measures both ceilings with the present number of threads of torch.

    The product is measured in `dtype` and in float32, and the faster one counts, because a
    kernel may compute 16-bit numbers in float32.

    Args:
        dtype: dtype of the matrices.
        device: device to measure.
        clock: default: the clock of the device, see `chop.bench.clock.clock_for`.
    """
    place = torch.device(device)
    watch = clock or clock_for(place, torch.get_num_threads(), None)
    rates = [_products_per_second(each, place, watch) for each in {dtype, torch.float32}]
    return Roofline(copy_bytes_per_second(place, watch), max(rates))


def copy_bytes_per_second(device: torch.device, clock: Clock) -> float:
    """Returns bytes read and written per second by a copy that exceeds the caches."""
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
