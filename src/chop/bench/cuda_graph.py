"""CUDA graph of a call: recorded once, launched as one piece."""

from __future__ import annotations

import logging

import torch

from chop.bench.clock import Call

WARM_UP_CALLS = 3

log = logging.getLogger(__name__)


def as_cuda_graph(call: Call, device: torch.device) -> Call:
    """A call that replays what `call` launches; `call` itself, with a warning, if it cannot be.

    What a graph launches reads the tensors that were there when it was recorded and writes the
    same outputs at every call.
    Source: the PyTorch manual, CUDA semantics, "Whole-network capture".
    """
    # A recording that fails leaves its own stream as the current one.
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
        return _recorded(call)


def _recorded(call: Call) -> Call:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            output = call()
    except RuntimeError as error:
        log.warning("no CUDA graph, timed as it is: %s", str(error).splitlines()[0])
        return call

    def replay() -> object:
        graph.replay()
        return output

    return replay
