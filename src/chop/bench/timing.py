"""Interleaved timing of variants, robust on a shared machine."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.bench.clock import Call, Clock, Reading, block_seconds, clock_for
from chop.bench.cuda_graph import as_cuda_graph
from chop.bench.environment import environment, kernels, load
from chop.bench.outputs import copied, largest_difference
from chop.bench.peak_memory import peak_bytes
from chop.bench.record import Comparison, Measured, format_seconds
from chop.bench.statistics import MIN_PAIRS, Interval, paired_ratio
from chop.config import with_checked_arguments
from chop.errors import ConfigError, describe, did_you_mean

METHODS = ("paired", "torch", "time")


@dataclass(frozen=True)
class Variant:
    """One of several ways to compute the same result.

    Attributes:
        name: name in tables.
        call: computes once and returns the outputs.
        prepare: alternative to `call`: compiles, captures or packs once, and returns the call.
    """

    name: str
    call: Call | None = None
    prepare: Callable[[], Call] | None = None

    def __post_init__(self) -> None:
        if (self.call is None) == (self.prepare is None):
            raise ConfigError(
                f"variant '{self.name}': expected a call, or prepare, which returns one; got "
                f"{'neither' if self.call is None else 'both'}."
            )
        if not callable(given := self.call or self.prepare):
            raise ConfigError(f"variant '{self.name}': expected a function, got {describe(given)}.")


@dataclass(frozen=True)
class _Ready:
    """Variant that was prepared and called once."""

    name: str
    call: Call
    prepare_seconds: float | None
    first_call_seconds: float
    outputs: list[Tensor]


@with_checked_arguments
def compare(
    variants: Sequence[Variant],
    baseline: str | None = None,
    *,
    seconds: float = 1.0,
    method: str = "paired",
    device: str | torch.device = "cpu",
    threads: int | None = None,
    clock: str | None = None,
    outputs: bool = True,
    memory: bool = True,
    inference: bool = True,
    cuda_graph: bool = False,
    seed: int = 0,
) -> Comparison:
    """Measures variants in turns, A B ... B A, in blocks of at least 20 ms.

    Each block is paired with the block of the baseline in the same sweep. The ratio of two
    variants is the median over the pairs, so that a slow phase of the machine affects both.
    The methods "torch" and "time" measure one variant after another and give no interval.

    Args:
        variants: variants with different names.
        baseline: variant that the others are compared with. Default: the first.
        seconds: measuring time per variant; slow calls take longer, until there are ten pairs.
            Below 0.2, a block takes a tenth of it instead of 20 ms.
        method: "paired", "torch" (`torch.utils.benchmark`) or "time" (a loop and a mean).
        device: device of the computation; on a GPU, events around each block are timed.
        threads: threads of torch during the measurement. Default: unchanged.
        clock: "wall", "processor" or "device". Default: see `chop.bench.clock.clock_for`.
        outputs: compares the outputs of the first calls with those of the baseline.
        memory: measures the peak memory of a call.
        inference: runs everything under `torch.inference_mode()`.
        cuda_graph: on a GPU, records each call as a CUDA graph if possible; memory is measured
            without the graph.
        seed: seed of the order in a sweep and of the bootstrap.
    Raises:
        ConfigError: if a setting is wrong, or outputs cannot be compared.

    Example::

        result = compare([Variant("eager", lambda: model(x)),
                          Variant("compiled", prepare=lambda: partial(torch.compile(model), x))])
        result.table()
        result["compiled"].speed_up  # None: no difference shown
    """
    from chop.runs.progress import announce_step  # brings bars along

    place, began = torch.device(device), time.perf_counter()
    baseline = _check(variants, baseline, seconds, method, threads)
    with surroundings(threads, inference):
        watch = clock_for(place, torch.get_num_threads(), clock if method == "paired" else "wall")
        record = {**environment(place, torch.get_num_threads()), "load_before": load()}
        ready = [_prepare(v, watch) for v in variants]
        first = [v.name for v in variants].index(baseline)
        differences = [_difference(each, ready[first]) if outputs else None for each in ready]
        with _no_collection():
            calls = [each.call for each in ready]
            if cuda_graph and place.type == "cuda":
                calls = [as_cuda_graph(call, place) for call in calls]
            readings = _taken(method, calls, watch, seconds, seed)
        peaks = [peak_bytes(each.call, place) if memory else None for each in ready]
    record |= {"load_after": load(), "kernels": kernels()}
    taken = format_seconds(time.perf_counter() - began)
    announce_step(f"measured {', '.join(each.name for each in ready)} in {taken}")
    measured = tuple(
        Measured(
            name=each.name,
            seconds=_seconds(method, own),
            processor_seconds=_processor_seconds(own),
            ratio=_ratio(method, readings[first], own, watch, seed),
            first_call_seconds=each.first_call_seconds,
            prepare_seconds=each.prepare_seconds,
            largest_difference=difference,
            peak_bytes=peak,
            readings=tuple(own),
        )
        for each, own, peak, difference in zip(ready, readings, peaks, differences, strict=True)
    )
    return Comparison(baseline, method, watch.decides, measured, record)


def _check(
    variants: Sequence[Variant],
    baseline: str | None,
    seconds: float,
    method: str,
    threads: int | None,
) -> str:
    names = [variant.name for variant in variants]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"variants: expected one or more with different names, got {names}.")
    if baseline is not None and baseline not in names:
        raise ConfigError(
            f"baseline '{baseline}' is not a variant: {did_you_mean(baseline, names)}"
        )
    if method not in METHODS:
        raise ConfigError(f"unknown method '{method}': {did_you_mean(method, METHODS)}")
    if not seconds > 0:
        raise ConfigError(f"seconds: expected more than 0, got {seconds}.")
    if threads is not None and threads < 1:
        raise ConfigError(f"threads: expected 1 or more, got {threads}.")
    return baseline or names[0]


@contextmanager
def surroundings(threads: int | None, inference: bool) -> Iterator[None]:
    """Context in which variants are prepared and called.

    Args:
        threads: threads of torch. Default: unchanged.
        inference: whether `torch.inference_mode` is on.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else threads)
    try:
        # inference_mode(False) would turn gradients on within a no_grad of the caller's.
        with torch.inference_mode() if inference else nullcontext():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disables garbage collection, which would count toward a random call."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _prepare(variant: Variant, clock: Clock) -> _Ready:
    call, spent = variant.call, None
    if variant.prepare is not None:
        call, spent = _called_once(variant.prepare, clock)
    assert call is not None
    returned, first = _called_once(call, clock)
    return _Ready(variant.name, call, spent, first, copied(returned))


def _called_once(call: Call, clock: Clock) -> tuple[Any, float]:
    """Returns the result of a call and its wall seconds, including the wait for the device."""
    returned: list[Any] = []
    reading = clock.time(lambda: returned.append(call()), 1)
    return returned[0], reading.wall


def _taken(
    method: str, calls: Sequence[Call], clock: Clock, seconds: float, seed: int
) -> list[list[Reading]]:
    if method == "paired":
        return _in_turns(calls, clock, seconds, seed)
    way = _by_torch if method == "torch" else _by_time
    return [way(call, clock, seconds) for call in calls]


def _in_turns(
    calls: Sequence[Call], clock: Clock, seconds: float, seed: int
) -> list[list[Reading]]:
    """Readings per variant; those of one place in the lists are of one sweep."""
    sizes = [clock.block_size(call, block_seconds(seconds)) for call in calls]
    # A fixed order falls into step with the turns that the system gives to other processes.
    orders = random.Random(seed)
    taken: list[list[Reading]] = [[] for _ in calls]
    stop = time.perf_counter() + seconds * len(calls)
    while len(taken[0]) < MIN_PAIRS or time.perf_counter() < stop:
        order = orders.sample(range(len(calls)), len(calls))
        for place in (*order, *reversed(order)):
            taken[place].append(clock.time(calls[place], sizes[place]))
    return taken


def _by_torch(call: Call, clock: Clock, seconds: float) -> list[Reading]:
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return [Reading(wall) for wall in timer.blocked_autorange(min_run_time=seconds).times]


def _by_time(call: Call, clock: Clock, seconds: float) -> list[Reading]:
    stop = time.perf_counter() + seconds
    taken = [clock.time(call, 1)]
    while time.perf_counter() < stop:
        taken.append(clock.time(call, 1))
    return [Reading(reading.wall) for reading in taken]


def _seconds(method: str, readings: Sequence[Reading]) -> float:
    times = [r.wall if r.device is None else r.device for r in readings]
    return statistics.fmean(times) if method == "time" else statistics.median(times)


def _processor_seconds(readings: Sequence[Reading]) -> float | None:
    times = [reading.processor for reading in readings if reading.processor is not None]
    return statistics.median(times) if times else None


def _ratio(
    method: str, base: Sequence[Reading], own: Sequence[Reading], clock: Clock, seed: int
) -> Interval:
    if method != "paired":
        return Interval(_seconds(method, base) / _seconds(method, own))
    return paired_ratio([*map(clock.decisive, base)], [*map(clock.decisive, own)], seed=seed)


def _difference(ours: _Ready, base: _Ready) -> float | None:
    return largest_difference(ours.outputs, base.outputs, ours.name)
