"""Calls of functions, outputs that no format reads, and modes that an integer graph has not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError

FORMAT = {"config": {"name": "integer", "width": 8, "frac_width": "auto"}}


class Calls(nn.Module):
    def __init__(self, function, layer):
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x):
        return self.function(self.layer(x))


def quantized(function, x, layer=None):
    torch.manual_seed(0)
    model = Calls(function, layer or nn.Linear(x.size(-1), 8)).eval()
    mg = MaseGraph(model, dummy_in={"x": x})
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": x}})
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": FORMAT})
    return passes.calibrate_transform_pass(mg, {"batches": [{"x": x}]})[0]


def lowered(mg, x):
    return passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool2d(x, kernel_size=3, stride=2, padding=1),
        lambda x: torch.max_pool2d(x, 3, 2, 1),
        lambda x: torch.max_pool1d(x.flatten(2), 3),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: x.mean(()),
        lambda x: x.mean((-1, -2)),
    ],
    ids=["max", "max-padded", "max-of-torch", "max-1d-of-torch", "avg", "mean-of-all", "mean"],
)
@pytest.mark.sampled(3)
def test_functions_take_their_arguments(function):
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    mg = quantized(function, x, nn.Conv2d(3, 4, 3))
    integer, info = lowered(mg, x)
    assert all(row["different"] == 0 for row in info["operators"] if row["kind"] != "mean")
    torch.testing.assert_close(integer.model(x), mg.model(x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("function", [F.gelu, F.silu, torch.sigmoid, torch.tanh])
@pytest.mark.sampled(3)
def test_tables_at_the_output_keep_float_precision(function, size):
    x = size * torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    mg = quantized(function, x)
    integer, info = lowered(mg, x)
    torch.testing.assert_close(integer.model(x), mg.model(x), rtol=1e-6, atol=1e-9 * size)
    (row,) = (row for row in info["operators"] if row["kind"] != "linear")
    assert row["codes"] == 32 and row["largest"] <= 0.5 and row["saturated"] == 0


def test_dropout_is_that_of_eval_mode():
    x = torch.randn(4, 8)
    mg = quantized(nn.Dropout(0.5), x)
    expected = mg.model(x)
    mg.model.train()
    assert torch.equal(lowered(mg, x)[0].model(x), expected)


def test_labels_of_another_number_of_rows_are_refused():
    x = torch.randn(4, 8)
    batch = {"x": x, "labels": torch.zeros(1, dtype=torch.int64)}
    with pytest.raises(ConfigError, match="labels: got 1 for 4 rows"):
        passes.lower_to_integer_transform_pass(quantized(F.relu, x), {"batches": [batch]})
