"""Latency of a quantized graph with packed weights, as a custom metric of searches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes import pack_transform_pass
from chop.train.feed import eval_mode

WARM_UP = 3


def packed_latency(batch: Mapping[str, Tensor], repeats: int = 20) -> Callable[[MaseGraph], float]:
    """Returns a function that measures the median forward time of a graph with packed weights.

    The packed graph is timed, because fake quantization is slower the more it rounds. The time is
    measured in this process and disturbed by other work on the machine, so run such a search with
    one worker on an idle machine.

    Args:
        batch: inputs by name, on the device of the graph.
        repeats: number of timed forwards, after three warm-up forwards.
    Raises:
        ConfigError: if `repeats` is below 1. The returned function raises it if the graph has
            nothing to pack.

    Example: `PrecisionProblem(..., custom_metrics={"latency_ms": packed_latency(batch)})`.
    """
    if repeats < 1:
        raise ConfigError(f"repeats: expected at least 1, got {repeats}.")

    def measure(mg: MaseGraph) -> float:
        packed, _ = pack_transform_pass(mg, {"silent": True})
        with torch.inference_mode(), eval_mode(packed.model):
            times = [_forward_ms(packed, batch) for _ in range(WARM_UP + repeats)]
        return statistics.median(times[WARM_UP:])

    return measure


def _forward_ms(mg: MaseGraph, batch: Mapping[str, Tensor]) -> float:
    on_gpu = any(x.is_cuda for x in batch.values())
    begun = time.perf_counter()
    mg.model(**batch)
    if on_gpu:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begun)
