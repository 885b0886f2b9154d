"""Shapes of recurrent layers in traces, compared with torch's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chop.private.symbolic_shapes import enable_python_dispatcher, recurrent_shapes
from chop.private.torch_api import FakeTensorMode

LAYERS = {
    "LSTM": (nn.LSTM, {}),
    "stacked LSTM": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "projected LSTM": (nn.LSTM, {"proj_size": 2}),
    "GRU": (nn.GRU, {"batch_first": True}),
    "bidirectional GRU": (nn.GRU, {"bidirectional": True, "bias": False}),
}


class Counted(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators += 1
        return func(*args, **(kwargs or {}))


def shapes(results):
    output, state = results
    states = state if isinstance(state, tuple) else (state,)
    return [(x.shape, x.stride(), x.dtype) for x in (output, *states)]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind, settings", LAYERS.values(), ids=LAYERS)
def test_a_trace_has_the_shapes_of_torch_without_the_loop_over_time(kind, settings):
    expected = shapes(kind(4, 6, **settings)(torch.randn(30, 7, 4)))
    with FakeTensorMode(), enable_python_dispatcher(), torch.no_grad():
        layer, x = kind(4, 6, **settings), torch.empty(30, 7, 4)
        with recurrent_shapes(), Counted() as counted:
            assert shapes(layer(x)) == expected
    assert counted.operators < 30


def test_torchs_decompositions_are_restored():
    x, layer = torch.randn(5, 2, 4), nn.GRU(4, 6)
    with recurrent_shapes():
        assert torch.equal(layer(x)[0], layer(x)[0])  # real tensors are computed
    with FakeTensorMode(), enable_python_dispatcher(), Counted() as counted, torch.no_grad():
        nn.GRU(4, 6)(torch.empty(30, 2, 4))
    assert counted.operators > 100
