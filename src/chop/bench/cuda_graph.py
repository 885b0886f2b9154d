"""CUDA graphs of calls, recorded once and launched as a whole."""

from __future__ import annotations

import logging

import torch

from chop.bench.clock import Call
from chop.errors import first_line

WARM_UP_CALLS = 3

log = logging.getLogger(__name__)


def as_cuda_graph(call: Call, device: torch.device) -> Call:
    """Returns a call that replays the kernels of `call`.

    If the kernels cannot be recorded, it warns and returns `call`.

    The graph reads the tensors that existed during the recording and writes the same outputs
    in every call.
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
        log.warning("no CUDA graph can record the call, timed without: %s", first_line(error))
        return call

    def replay() -> object:
        graph.replay()
        return output

    return replay
