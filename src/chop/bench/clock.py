"""Timing of calls: wall clock, processor time and device time."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from chop.errors import ConfigError, did_you_mean

Call = Callable[[], Any]
CLOCKS = ("wall", "processor", "device")
BLOCK_SECONDS = 0.02
"""Length of a block in seconds. Shorter blocks are lost in the jitter of clocks and caches."""
FEWEST_BLOCKS = 10
"""Minimum number of blocks per variant; a short measurement shortens the blocks instead."""
STEP = 1e-4
"""Largest step in seconds of a clock that times blocks. Linux updates the processor time only every
few milliseconds if it is limited (`ulimit -t`) or a timer runs on it.
"""
LONGEST_BLOCK_SECONDS = 0.5
"""Wall-clock limit of a block: calls that sleep never fill a block of processor time."""


@dataclass(frozen=True)
class Reading:
    """Seconds of one call, averaged over a block of calls.

    Attributes:
        wall: elapsed time.
        processor: time of all threads of this process; None if it was not read.
        device: time on the GPU between two events; None on a CPU.
    """

    wall: float
    processor: float | None = None
    device: float | None = None


class Clock(ABC):
    """Timer for blocks of calls.

    Attributes:
        decides: field of `Reading` by which variants are compared.
    """

    decides: str

    @abstractmethod
    def time(self, call: Call, calls: int) -> Reading:
        """Makes a number of calls one after another and reads all clocks."""

    def decisive(self, reading: Reading) -> float:
        """Returns the seconds by which variants are compared."""
        return float(getattr(reading, self.decides))

    def block_size(self, call: Call, wanted_seconds: float = BLOCK_SECONDS) -> int:
        """Returns the number of calls that fill a block. Its trial calls serve as warm-up.

        Time is measured by the clock that decides, so a block that another process interrupted
        gets more calls.
        """
        calls = 1
        while True:
            seconds, passed = self._fastest(call, calls)
            if seconds >= wanted_seconds or passed >= LONGEST_BLOCK_SECONDS:
                return max(1, math.ceil(calls * min(1.0, wanted_seconds / max(seconds, 1e-9))))
            wanted = 1.1 * calls * wanted_seconds / max(seconds, 1e-9)
            calls = max(2 * calls, min(10 * calls, round(wanted)))

    def _fastest(self, call: Call, calls: int) -> tuple[float, float]:
        """Returns deciding and wall seconds of the fastest of three blocks, or of a long one."""
        blocks: list[tuple[float, float]] = []
        while len(blocks) < 3 and sum(passed for _, passed in blocks) < LONGEST_BLOCK_SECONDS:
            reading = self.time(call, calls)
            blocks.append((calls * self.decisive(reading), calls * reading.wall))
        return min(blocks)


class HostClock(Clock):
    """Clock for code on the CPU."""

    def __init__(self, decides: str) -> None:
        self.decides = decides

    def time(self, call: Call, calls: int) -> Reading:
        """Reads wall and processor time."""
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(calls):
            call()
        busy = time.process_time() - processor
        return Reading((time.perf_counter() - wall) / calls, busy / calls)


class _CudaClock(Clock):
    """Clock for code on a GPU, with events before the first and after the last call of a block."""

    def __init__(self, decides: str, device: torch.device) -> None:
        self.decides = decides
        self.device = device

    def time(self, call: Call, calls: int) -> Reading:
        """Reads all three clocks. Wall time includes the wait for the device."""
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            wall, processor = time.perf_counter(), time.process_time()
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            busy, passed = time.process_time() - processor, time.perf_counter() - wall
        return Reading(passed / calls, busy / calls, begin.elapsed_time(end) / 1000 / calls)


def block_seconds(seconds: float) -> float:
    """Returns the length of a block for a given measuring time per variant, in seconds.

    >>> block_seconds(1.0), block_seconds(0.05)
    (0.02, 0.005)
    """
    return min(BLOCK_SECONDS, seconds / FEWEST_BLOCKS)


def clock_for(device: torch.device, threads: int, decides: str | None) -> Clock:
    """Returns the clock of a device.

    On a CPU, one thread is compared by processor time, which excludes other processes.
    Several threads are compared by wall time, which they are meant to shorten. So is one
    thread if the clock of processor time advances in large steps. On a GPU, device time decides.

    Raises:
        ConfigError: if the device has no such clock.
    """
    if device.type == "cuda":
        return _CudaClock(_known(decides or "device", CLOCKS, device), device)
    chosen = decides or ("processor" if threads == 1 and _processor_step() < STEP else "wall")
    return HostClock(_known(chosen, CLOCKS[:2], device))


def _known(decides: str, choices: tuple[str, ...], device: torch.device) -> str:
    if decides not in choices:
        hint = did_you_mean(decides, choices)
        raise ConfigError(f"clock: there is no '{decides}' on {device}; {hint}")
    return decides


def _processor_step() -> float:
    """Returns the smallest of five steps of the clock of processor time, in seconds."""
    steps = []
    for _ in range(5):
        start = now = time.process_time()
        while now == start:
            now = time.process_time()
        steps.append(now - start)
    return min(steps)
