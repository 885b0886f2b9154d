"""Inputs without a batch: a first size of one is the channels, and stays one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GuardError

CASES = {
    "one channel": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), (1, 8, 8)),
    "three channels": (nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()), (3, 8, 8)),
    "a signal": (nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU()), (1, 8)),
    "a volume": (nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU()), (1, 6, 6, 6)),
    "classes": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(0), nn.Linear(72, 3)),
        (1, 8, 8),
    ),
}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
@pytest.mark.sampled(1)
def test_an_image_without_a_batch(case: str) -> None:
    model, shape = CASES[case]
    x: Tensor = torch.randn(shape)
    graph = MaseGraph(model.eval(), dummy_in={"input": x}).model
    assert graph.auto_leaves == ()
    assert torch.equal(graph(x), model(x))
    with pytest.raises(GuardError, match=r"input.shape\[0\]"):
        graph(torch.cat([x, x]))


@torch.no_grad()
def test_a_batch_of_one_is_a_batch() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).eval()
    graph = MaseGraph(model, dummy_in={"input": torch.randn(1, 1, 8, 8)}).model
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(graph(x), model(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layer", [nn.Conv2d(1, 2, 3), nn.Conv2d(3, 2, 3), nn.Conv2d(2, 2, 1)])
def test_a_circuit_asks_for_a_batch(layer: nn.Module, tmp_path: Path) -> None:
    shape = (getattr(layer, "in_channels", 3), 8, 8)
    model = nn.Sequential(layer, nn.Flatten(0)).eval()
    mg = MaseGraph(model, dummy_in={"input": torch.randn(shape)})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    eight = {"width": 8, "frac_width": 4, "name": "integer"}
    spec = {"config": {"data_in": eight, "weight": eight, "bias": eight}}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "conv2d": spec})
    with pytest.raises(ConfigError, match="expected a batch of samples.*x.unsqueeze"):
        passes.emit_verilog_top_transform_pass(quantized, {"project_dir": tmp_path})
