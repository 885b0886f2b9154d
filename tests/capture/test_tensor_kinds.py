"""Fake, sharded and nested tensors: one sentence that says what to do, or a leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.distributed.planning.simulated import simulated_mesh
from chop.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.first(x))
        return y


def test_a_model_with_fake_tensors_is_refused() -> None:
    real = Two()
    with FakeTensorMode() as mode:
        model, x = Two(), torch.randn(3, 4)
        with pytest.raises(CaptureError, match="FakeTensorMode"):
            capture(model, {"x": x})
    with pytest.raises(CaptureError, match="FakeTensorMode"):
        capture(model, {"x": torch.randn(3, 4)})
    with pytest.raises(CaptureError, match="FakeTensorMode"):
        capture(real, {"x": x})
    with mode, pytest.raises(CaptureError, match="FakeTensorMode"):
        capture(real, {"x": x})
    y = torch.randn(3, 4)
    torch.testing.assert_close(capture(real, {"x": y})(y), real(y))


def shard_all(model: Two, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh)


def shard_a_layer(model: Two, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.first, mesh=mesh)


def distribute(model: Two, mesh: Any) -> None:
    from torch.distributed.tensor import distribute_module

    distribute_module(model, mesh)


@pytest.mark.parametrize(
    ("shard", "message"),
    [(shard_all, "Two is sharded"), (shard_a_layer, "first is sharded"), (distribute, "DTensor")],
)
def test_a_model_spread_over_processes_is_refused(
    shard: Callable[[Two, Any], None], message: str
) -> None:
    model = Two()
    with simulated_mesh((2,)) as mesh:
        shard(model, mesh)
        with pytest.raises(CaptureError, match=message):
            capture(model, {"x": torch.randn(3, 4)})


def test_a_capture_is_sharded_after_it() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    with simulated_mesh((1,)) as mesh:
        model, x = Two(), torch.randn(3, 4)
        captured = capture(model, {"x": x})
        expected = captured.eval()(x)
        fully_shard(captured, mesh=mesh)
        y = captured(x)
        torch.testing.assert_close(y, expected)
        y.sum().backward()
        assert isinstance(captured.get_parameter("first.weight").grad, DTensor)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_inputs_are_refused(layout: torch.layout) -> None:
    x = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=layout)
    with pytest.raises(CaptureError, match="dense tensors in input, got a nested one"):
        capture(nn.Sequential(nn.Linear(4, 4)), {"input": x})


class Padded(nn.Module):
    """Attends to rows of several lengths, as a nested tensor."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.layout, self.linear = layout, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.as_nested_tensor([x[0], x[1, :2]], layout=self.layout)
        return torch.nested.to_padded_tensor(self.linear(rows), 0.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_module_with_nested_tensors_is_one_node(layout: torch.layout) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Padded(layout))
    with pytest.warns(CaptureWarning, match="1 .*became a leaf"):
        captured = capture(model, {"input": torch.randn(2, 3, 4)})
    assert [node.target for node in captured.graph.nodes] == ["input", "0", "1", "output"]
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(captured(x), model(x))
    with pytest.raises(CaptureError, match="move these lines into a submodule"):
        capture(Padded(layout), {"x": x})
