"""Batches of another dtype than at capture: converted where the graph needs it, else refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GuardError
from chop.ir.batches import select_inputs

FLOATS = [torch.float64, torch.bfloat16, torch.float16]
WEIGHTS = {"by": "type", "linear": {"config": {"weight": {"name": "mxint", "width": 4}}}}
DERIVED = {
    "by": "type",
    "linear": {"config": {"data_in": {"name": "integer", "width": 8, "frac_width": "auto"}}},
}


class Net(nn.Module):
    """Norm and two linear layers; `converts` makes it take any float."""

    def __init__(self, converts=False):
        super().__init__()
        torch.manual_seed(0)
        self.converts = converts
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        if self.converts:
            x = x.float()
        return self.second(self.norm(F.relu(self.first(x))))


def rows(dtype=torch.float32):
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).to(dtype)


def graph(**settings):
    return MaseGraph(Net(**settings).eval(), dummy_in={"x": rows()})


def linear():
    torch.manual_seed(0)
    return MaseGraph(nn.Sequential(nn.Linear(8, 8)).eval(), dummy_in={"input": rows()})


def gptq(mg, batches, **settings):
    quantized, _ = passes.quantize_transform_pass(mg, WEIGHTS)
    return passes.gptq_transform_pass(quantized, {"batches": batches, **settings})


def calibrate(mg, batches):
    quantized, _ = passes.quantize_transform_pass(mg, DERIVED)
    return passes.calibrate_transform_pass(quantized, {"batches": batches})


METHODS = {
    "gptq": gptq,
    "calibrate": calibrate,
    "smoothquant": lambda mg, b: passes.smoothquant_transform_pass(mg, {"batches": b}),
    "awq": lambda mg, b: passes.awq_transform_pass(mg, {"batches": b, "weight": "mxint:width=4"}),
    "wanda": lambda mg, b: passes.prune_transform_pass(
        mg, {"weight": {"sparsity": 0.5, "method": "wanda"}, "batches": b}
    ),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.sampled(1)
def test_floats_of_another_dtype_give_what_the_captured_dtype_gives(method, dtype):
    expected, _ = METHODS[method](graph(), [{"x": rows(dtype).float()}])
    found, _ = METHODS[method](graph(), [{"x": rows(dtype)}])
    assert torch.equal(found.model(rows()), expected.model(rows()))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_converted_model_takes_batches_of_float32(dtype):
    mg = graph()
    mg.model = mg.model.to(dtype)
    (taken,) = select_inputs(mg, [{"x": rows()}], "here")
    assert taken["x"].dtype == dtype
    assert mg.model(**taken).dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_the_graph_takes_is_not_converted(dtype):
    (taken,) = select_inputs(graph(converts=True), [{"x": rows(dtype)}], "here")
    assert taken["x"].dtype == dtype


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers_for_floats_are_refused(dtype):
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(
        GuardError, match=rf"batch 1: the graph was captured for x of float32, got {kind}; conv"
    ):
        gptq(graph(), [{"x": rows()}, {"x": rows().to(dtype)}])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_floats_for_indices_are_refused(dtype):
    net = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 4)).eval()
    ids = torch.arange(8)[None]
    mg = MaseGraph(net, dummy_in={"input": ids})
    with pytest.raises(GuardError, match="captured for input of int64, got"):
        calibrate(mg, [{"input": ids.to(dtype)}])
    assert len(list(select_inputs(mg, [{"input": ids.int()}], "here"))) == 1


@pytest.mark.parametrize("scale", [2.0**65, 2.0**-80, 2.0**40])
def test_wanda_does_not_depend_on_the_scale_of_inputs(scale):
    expected, _ = METHODS["wanda"](linear(), [{"input": rows()}])
    found, _ = METHODS["wanda"](linear(), [{"input": rows() * scale}])
    assert torch.equal(found.model(rows()), expected.model(rows()))


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(3, dtype=torch.long), torch.zeros(16, 5), torch.full((16,), 9), torch.zeros(16)],
    ids=["rows", "columns", "classes", "floats"],
)
@pytest.mark.sampled(3)
def test_labels_that_do_not_fit_are_refused(labels):
    settings = {"weight": {"sparsity": 0.5, "method": "snip"}}
    with pytest.raises(ConfigError, match=r"cross entropy of logits of shape \(16, 4\)"):
        passes.prune_transform_pass(
            graph(), {**settings, "batches": [{"x": rows(), "labels": labels}]}
        )
