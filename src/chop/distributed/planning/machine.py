"""Machine model of a sharding plan: compute speed, communication speed and memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chop.distributed.collectives import Sent
from chop.distributed.plan import format_mesh
from chop.distributed.process import BACKENDS
from chop.errors import PlanError, describe, did_you_mean


@dataclass(frozen=True)
class Machine:
    """Identical processes on a mesh.

    Attributes:
        mesh: processes along each axis.
        flops: floating-point operations per second of one process.
        memory_bandwidth: bytes per second between a process and its memory.
        bandwidth: bytes per second that a process sends along each mesh axis.
        latency: seconds of one empty message along each mesh axis.
        memory_bytes: memory of a process for parameters, buffers and activations; None: unlimited.
        backend: backend of the collectives, "gloo" or "nccl"; gloo needs memory for buffers.
    """

    mesh: tuple[int, ...]
    flops: float
    memory_bandwidth: float
    bandwidth: tuple[float, ...]
    latency: tuple[float, ...]
    memory_bytes: int | None = None
    backend: str = "gloo"

    @classmethod
    def of(
        cls,
        mesh: tuple[int, ...],
        flops: float,
        memory_bandwidth: float,
        bandwidth: float | Sequence[float],
        latency: float | Sequence[float],
        memory_bytes: int | None = None,
        backend: str = "gloo",
    ) -> Machine:
        """Returns a machine; a single link number applies to all axes.

        Raises:
            PlanError: if a speed is not positive, the number of speeds differs from the axes, or
                the backend is unknown.
        """
        if backend not in BACKENDS:
            raise PlanError(f"backend: got {describe(backend)}: {did_you_mean(backend, BACKENDS)}")
        for name, value in {"flops": flops, "memory_bandwidth": memory_bandwidth}.items():
            _check(name, [value])
        axes = _per_axis("bandwidth", bandwidth, mesh), _per_axis("latency", latency, mesh, True)
        return cls(mesh, flops, memory_bandwidth, *axes, memory_bytes, backend)

    def seconds(self, flops: float, size_bytes: float) -> float:
        """Returns the time of an operator: the longer of its arithmetic and its memory traffic.

        Source: Williams, Waterman and Patterson 2009, "Roofline".
        """
        return max(flops / self.flops, size_bytes / self.memory_bandwidth)

    def get_seconds(self, sent: Iterable[Sent]) -> float:
        """Returns the time of consecutive ring collectives.

        Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
        Operations in MPICH": a ring of n sends n - 1 messages, an all-reduce twice as many.
        """
        return sum(map(self._seconds, sent))

    def _seconds(self, sent: Sent) -> float:
        if sent.axis is None:  # all axes at once: the slowest link decides
            count, bandwidth, latency = (
                math.prod(self.mesh),
                min(self.bandwidth),
                max(self.latency),
            )
        else:
            count = self.mesh[sent.axis]
            bandwidth, latency = self.bandwidth[sent.axis], self.latency[sent.axis]
        rounds = 2 if sent.operation.startswith("all_reduce") else 1
        chunk = sent.size_bytes
        # The input of an all-gather is one chunk. Other inputs are cut into chunks.
        if not sent.operation.startswith("all_gather"):
            chunk = sent.size_bytes / count
        return rounds * (count - 1) * (latency + chunk / bandwidth)

    def on(self, mesh: tuple[int, ...]) -> Machine:
        """Returns the machine with another mesh size and the same number of axes."""
        return dataclasses.replace(self, mesh=mesh)


def _check(name: str, values: Sequence[float], may_be_zero: bool = False) -> None:
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value > 0 or (may_be_zero and value == 0)):
            least = "0 or more" if may_be_zero else "above 0"
            raise PlanError(f"{name}: expected a number {least}, got {describe(value)}.")


def _per_axis(
    name: str, given: float | Sequence[float], mesh: tuple[int, ...], may_be_zero: bool = False
) -> tuple[float, ...]:
    values = tuple(given) if isinstance(given, Sequence) else (given,) * len(mesh)
    if len(values) != len(mesh):
        raise PlanError(
            f"{name}: expected one number, or one for each of the {len(mesh)} axes of the mesh "
            f"{format_mesh(mesh)}, got {len(values)}."
        )
    _check(name, values, may_be_zero)
    return values
