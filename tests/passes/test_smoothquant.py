import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.formats import Integer, QuantSpec
from tests.networks import Made

from .conftest import with_metadata


class Block(nn.Module):
    """A norm before two layers, a norm that a residual sum reads too, and layers in a row."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LayerNorm(16)
        self.q = nn.Linear(16, 16)
        self.k = nn.Linear(16, 16, bias=False)
        self.outer = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.drop = nn.Dropout(0.5)
        self.down = nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        y = self.inner(x)
        x = self.outer(self.q(y) * self.k(y).sigmoid())
        x = self.down(self.drop(self.up(x).relu())) + x
        return self.head(x.tanh())


def data(rows, seed):
    return torch.randn(rows, 5, 16, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    block = Block().eval()
    outliers = torch.ones(16)
    outliers[3], outliers[7] = 60.0, 25.0  # what SmoothQuant is for
    for norm in (block.inner, block.outer):
        norm.weight.data *= outliers
        norm.bias.data = torch.randn(16) * outliers
    for layer in (block.q, block.k, block.up):
        layer.weight.data /= outliers
    return with_metadata(MaseGraph(block, dummy_in={"x": data(3, 9)}))


def smooth(mg, **settings):
    batches = [{"x": x} for x in data(64, 1).split(20)]
    return passes.smoothquant_transform_pass(mg, {"batches": batches, **settings})


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("strength", [0.0, 0.5, 0.8])
@pytest.mark.sampled(1)
def test_the_float_model_computes_what_it_did(graph, rescale, strength):
    x = data(10, 2)
    mg, info = smooth(graph, migration_strength=strength, rescale_other_readers=rescale)
    torch.testing.assert_close(mg.model(x), graph.model(x), atol=1e-4, rtol=1e-4)
    expected = {"inner": ["q", "k"], "up": ["down"]}
    assert info["smoothed"] == ({**expected, "outer": ["up"]} if rescale else expected)
    assert not torch.equal(mg.modules["inner"].weight, graph.modules["inner"].weight)
    assert ("up" in info["skipped"]) is not rescale
    assert "not a norm or Linear" in info["skipped"]["head"]


def test_the_scale_is_that_of_the_paper(graph):
    seen = []
    hook = graph.modules["q"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    graph.model(data(64, 1))
    hook.remove()
    amax_x = seen[0].flatten(0, 1).abs().amax(0)
    q, k = graph.modules["q"].weight, graph.modules["k"].weight
    amax_w = torch.cat([q, k]).abs().amax(0)
    expected = amax_x**0.7 / amax_w**0.3
    mg, _ = smooth(graph, migration_strength=0.7)
    torch.testing.assert_close(mg.modules["q"].weight / q, expected.expand(16, 16))
    torch.testing.assert_close(
        graph.modules["inner"].bias / mg.modules["inner"].bias, expected, rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("width", [4, 6, 8])
def test_the_error_of_quantizing_falls(graph, width):
    spec = QuantSpec(data_in=Integer(width, "mse"), weight=Integer(width, "mse"))
    x, batches = data(100, 2), [{"x": data(64, 1)}]

    def error(mg):
        mg, _ = passes.quantize_transform_pass(mg, {"linear": {"config": spec}})
        mg, _ = passes.calibrate_transform_pass(mg, {"batches": batches})
        return (mg.model(x) - graph.model(x)).square().mean().item()

    assert error(smooth(graph, rescale_other_readers=True)[0]) < error(graph) / 2


def test_the_rescaled_branch_trains_and_survives_quantizing_and_export(graph, tmp_path):
    mg, _ = smooth(graph, rescale_other_readers=True)
    product = next(node for node in mg.nodes if node.name.startswith("mul_"))
    common = product.meta["mase"].common
    assert (common.mase_op, common.results["data_out_0"].shape) == ("mul", (3, 5, 16))
    spec = {"config": QuantSpec.uniform(Integer(16, 8))}
    mg, _ = passes.quantize_transform_pass(mg, {"linear": spec, "layer_norm": spec, "mul": spec})
    mg.export(tmp_path / "smooth")
    again = MaseGraph.from_checkpoint(tmp_path / "smooth")
    x = data(7, 3)
    assert torch.equal(again.model(x), mg.model(x))
    mg.model.train()
    mg.model(x).sum().backward()
    assert mg.modules["outer"].weight.grad.isfinite().all()


def test_what_cannot_be_smoothed_is_named():
    def sharing(m, x):
        x = m.twice(m.twice(m.norm(x)))
        return m.b(m.batch(m.a(m.bare(x.sin()))))

    parts = {name: nn.Linear(4, 4) for name in ("twice", "a", "b")}
    parts |= {"norm": nn.LayerNorm(4), "bare": nn.LayerNorm(4, elementwise_affine=False)}
    net = Made(sharing, **parts, batch=nn.BatchNorm1d(4))
    mg = with_metadata(MaseGraph(net.eval(), dummy_in={"x": torch.randn(3, 4, 4)}))
    batches = [{"x": torch.randn(9, 4, 4)}]
    same, info = passes.smoothquant_transform_pass(mg, {"batches": batches})
    assert info["smoothed"] == {}
    assert info["skipped"] == {
        "twice": "it is used in several places",
        "twice_1": "it is used in several places",
        "a": "'bare' before it has no weight per channel",
        "b": "the channels of 'batch' are not the last axis",
    }
    assert torch.equal(same.model(batches[0]["x"]), mg.model(batches[0]["x"]))


def test_batch_norm_and_a_quantized_layer():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    mg = with_metadata(MaseGraph(model, dummy_in={"input": torch.randn(3, 4)}))
    batches = [{"input": torch.randn(50, 4) * torch.tensor([1, 10, 1, 0.1])}]
    smoothed, info = passes.smoothquant_transform_pass(mg, {"batches": batches})
    assert info == {"smoothed": {"0": ["1"], "1": ["3"]}, "skipped": {}}
    x = batches[0]["input"]
    torch.testing.assert_close(smoothed.model(x), model(x), atol=1e-5, rtol=1e-5)
    mg, _ = passes.quantize_transform_pass(mg, {"linear": {"config": QuantSpec(Integer(8, 4))}})
    _, info = passes.smoothquant_transform_pass(mg, {"batches": batches})
    assert set(info["skipped"].values()) == {"it is quantized already"}
