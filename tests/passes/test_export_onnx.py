import importlib.util
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError, UnavailableError
from chop.formats import Float, Integer, QuantSpec, ScaleInteger
from chop.models import get_model
from tests.networks import Made
from tests.onnx_runs import quantized, raised, run, session, translations_once

from .conftest import with_metadata

__all__ = ["translations_once"]

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

INT8 = 3
IN_INTEGERS = {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"}


def kinds_run(path, folder):
    """How many operators of each kind the runtime computes, after its own rewriting."""
    session(path, folder / "optimized.onnx")
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


# operator: (model, example input)
MODELS = {
    "linear": (nn.Sequential(nn.Linear(24, 10)), torch.randn(5, 24)),
    "linear of sequences": (nn.Sequential(nn.Linear(24, 10, bias=False)), torch.randn(4, 7, 24)),
    "conv1d": (nn.Sequential(nn.Conv1d(4, 6, 3, padding=1)), torch.randn(3, 4, 9)),
    "conv2d": (
        nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), nn.ReLU()),
        torch.randn(3, 4, 9, 8),
    ),
    "layer_norm": (nn.Sequential(nn.LayerNorm(16)), torch.randn(6, 16)),
    "embedding": (
        Made(lambda m, x: m.table(x), table=nn.Embedding(50, 12)),
        torch.randint(0, 50, (3, 6)),
    ),
    "matmul": (Made(lambda m, x: torch.matmul(x, x.transpose(-1, -2) + 0.5)), torch.randn(3, 5, 8)),
    "scaled_dot_product_attention": (
        Made(lambda m, x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
        torch.randn(2, 3, 6, 8),
    ),
}
FORMATS = {
    "powers of two": (Integer(8, 4), Integer(8, "minmax")),
    "four bits": (Integer(4, 1), Integer(4, "mse")),
    "measured": (ScaleInteger(8), ScaleInteger(8)),
    "by channel": (ScaleInteger(8), ScaleInteger(8, granularity="channel")),
    "given": (ScaleInteger(8, scales=(0.0273,)), ScaleInteger(6, scales=(0.0131,))),
    "weights only": (Float(), Integer(8, "minmax")),
    "unsigned": (Integer(8, 5, is_signed=False), Integer(8, 7)),
}


BY_CHANNEL = ("conv2d", "layer_norm", "matmul")
PAIRS = [
    *(("linear", formats) for formats in FORMATS),
    *((name, "by channel" if name in BY_CHANNEL else "powers of two") for name in MODELS),
]


@pytest.mark.parametrize("name, formats", dict.fromkeys(PAIRS))
@pytest.mark.long
def test_one_operator_gives_what_it_gave(name, formats, tmp_path):
    model, x = MODELS[name]
    torch.manual_seed(2)
    argument = "x" if isinstance(model, Made) else "input"
    mg = raised(model, **{argument: x})
    data_in, weight = FORMATS[formats]
    if name in ("matmul", "scaled_dot_product_attention"):
        weight = data_in  # of an activation too
    operator = name.split(" of ")[0]
    spec = {"weight": weight} if name == "embedding" else {"data_in": data_in, "weight": weight}
    q = quantized(mg, {operator: spec})
    _, info = passes.export_onnx_interface_pass(q, {"path": tmp_path / name})
    assert info["fallback"] == [] and len(info["quantized"]) in (1, 3)
    onnx.checker.check_model(str(info["path"]), full_check=True)
    other = x if name == "embedding" else torch.cat([x, torch.randn_like(x)]).clamp(-3.4, 3.4)
    with torch.no_grad():
        expected = q.model(other)
    got = run(info["path"], **{argument: other})
    if name != "conv1d":
        assert ((got - expected).abs() < 1e-5).float().mean() > 0.9
    assert (got - expected).abs().max() <= BOUND.get(name, 1e-5)


BOUND = {
    # scores and weights are rounded too: they may lie on either side of a boundary
    "scaled_dot_product_attention": 0.1,
    # half a step of the product, by which the bias may be off: here of 2^-1 times 2^-4
    "conv1d": 2.0**-6,
}


@pytest.mark.long
def test_ends_of_the_range_and_zeros(tmp_path):
    """Saturation: `integer` reaches -128 as ONNX does, `scale_integer` ends one step above."""
    same = nn.Linear(3, 3, bias=False)
    same.weight.data = torch.eye(3)
    x = torch.tensor([[-1e30, -9.0, -0.0], [0.0, 9.0, 1e30], [0.015, -0.016, 0.03125]])
    mg = raised(nn.Sequential(same), input=x)
    for number_format, lowest in (
        (Integer(8, 4), -8.0),
        (ScaleInteger(8, scales=(0.0625,)), -7.9375),
    ):
        q = quantized(mg, {"linear": {"data_in": number_format}})
        _, info = passes.export_onnx_interface_pass(q, {"path": tmp_path / "ends"})
        got, expected = run(info["path"], input=x), q.model(x).detach()
        assert torch.equal(got[1:], expected[1:])
        assert expected.min() == lowest and got.min() == -8
    zeros = torch.zeros(3, 3)
    q = quantized(mg, {"linear": {"data_in": ScaleInteger(8)}})
    _, info = passes.export_onnx_interface_pass(q, {"path": tmp_path / "zeros"})
    assert torch.equal(run(info["path"], input=zeros), zeros)


CASES = {
    "mlp": {"linear": 3},
    "cnn": {"conv2d": 2, "linear": 1},
    "vit": {"linear": 13},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1)
def test_models_run_in_integers_and_are_small(name, tmp_path):
    mg = raised(get_model(name))
    if name == "cnn":
        mg, _ = passes.conv_bn_fusion_transform_pass(mg, {})
    spec = QuantSpec(Integer(8, 4), ScaleInteger(8, granularity="channel"))
    q = quantized(mg, dict.fromkeys(CASES[name], spec))
    before = {key: x.clone() for key, x in q.model.state_dict().items()}
    _, info = passes.export_onnx_interface_pass(q, {"path": tmp_path / "new" / f"{name}.onnx"})
    layers = sum(CASES[name].values())
    assert len(info["quantized"]) == layers
    kinds = kinds_run(info["path"], tmp_path)
    assert sum(kinds[kind] for kind in IN_INTEGERS) == layers
    weights = [each for each in onnx.load(info["path"]).graph.initializer if len(each.dims) > 1]
    in_integers = sum(each.data_type == INT8 for each in weights)
    assert in_integers == layers
    parameters = sum(p.numel() for p in q.model.parameters())
    assert info["size_bytes"] < 2 * parameters + 60_000
    x = torch.randn(9, 1, 8, 8)
    with torch.no_grad():
        exact, expected = mg.model(pixel_values=x).logits, q.model(pixel_values=x).logits
    got = run(info["path"], pixel_values=x)
    # a value next to a boundary may be rounded the other way, and rounding errs far more
    assert (got - expected).abs().max() <= (expected - exact).abs().max()
    assert (got - expected).abs().median() < 1e-3
    assert all(torch.equal(x, before[key]) for key, x in q.model.state_dict().items())


def bert(*names):
    """The graph of a text classifier of one layer, with these inputs."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=512, num_hidden_layers=1, **sizes))
    return with_metadata(MaseGraph(model.eval(), hf_input_names=list(names)))


@pytest.mark.slow
@pytest.mark.long
def test_texts_of_any_size_and_one_step_of_the_format(tmp_path):
    mg = bert("input_ids", "attention_mask")
    step = 2.0**-6
    spec = {"data_in": Integer(8, 4), "weight": Integer(8, "minmax"), "bias": Integer(16, 10)}
    q = quantized(mg, {"linear": {**spec, "data_out": Integer(8, 6)}})
    _, info = passes.export_onnx_interface_pass(q, {"path": tmp_path / "bert"})
    assert info["inputs"] == ["input_ids", "attention_mask"] and info["outputs"] == ["logits"]
    inputs = {i.name: i.shape for i in session(info["path"]).get_inputs()}
    assert inputs == {key: ["batch", "sequence"] for key in info["inputs"]}
    for batch, length in ((1, 5), (4, 33)):
        ids = torch.randint(5, 500, (batch, length))
        mask = torch.ones_like(ids)
        mask[-1, length // 2 :] = 0
        with torch.no_grad():
            expected = q.model(input_ids=ids, attention_mask=mask).logits
        got = run(info["path"], input_ids=ids, attention_mask=mask)
        assert torch.equal(got / step, (got / step).round())
        assert (got - expected).abs().max() <= step


def test_what_cannot_be_written_is_named(tmp_path):
    three_axes = Made(lambda m, x: F.scaled_dot_product_attention(x, x, x))
    mg = raised(three_axes, x=torch.randn(2, 5, 8))
    with pytest.raises(GraphError, match="only 4D query, key, and value"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "three"})
    x = torch.randn(2, 8).bfloat16()
    mg = raised(nn.Sequential(nn.Linear(8, 4)).bfloat16(), input=x)
    q = quantized(mg, {"linear": {"weight": Integer(8, 6)}})
    with pytest.raises(ConfigError, match=r"'0' has torch.bfloat16 parameters; call .*float\(\)"):
        passes.export_onnx_interface_pass(q, {"path": tmp_path / "half"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_formats_without_an_onnx_form_are_named_or_fall_back(tmp_path):
    mg = raised(get_model("mlp"))
    q = quantized(
        mg,
        {
            "fc1": {"data_in": {"name": "mxint"}, "weight": {"name": "mxfp"}},
            "fc2": {"data_in": Integer(16, 8), "weight": Integer(12, 6, floor=True)},
            "fc3": {"data_in": Integer(8, 4), "weight": Integer(8, 6), "bias": {"name": "mxint"}},
        },
        by="name",
    )
    target = tmp_path / "mlp.onnx"
    with pytest.raises(ConfigError, match=r"fc1\.data_in .*fc1\.weight .*fc2\.data_in .*fc2\.wei"):
        passes.export_onnx_interface_pass(q, {"path": target})
    assert not target.exists()
    _, info = passes.export_onnx_interface_pass(q, {"path": target, "float_fallback": True})
    assert info["quantized"] == ["fc3"] and len(info["fallback"]) == 4
    weights_only = passes.quantize_transform_pass(
        mg,
        {
            "by": "name",
            "fc1": {"config": {"weight": {"name": "mxfp"}}},
            "fc2": {"config": {"weight": Integer(12, 6, floor=True)}},
            "fc3": {"config": q.model.fc3.spec},
        },
    )[0]
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        expected = weights_only.model(pixel_values=x).logits
    torch.testing.assert_close(run(target, pixel_values=x), expected, atol=0.05, rtol=0)
    waiting = quantized(mg, {"fc1": {"data_in": Integer(8, "minmax")}}, by="name")
    with pytest.raises(ConfigError, match=r"fc1\.data_in \(integer 8\.minmax\).*calibrated"):
        passes.export_onnx_interface_pass(waiting, {"path": target})


@pytest.mark.long
def test_pruned_packed_and_learned_layers_are_written_as_what_they_compute(tmp_path):
    mg = raised(get_model("mlp"))
    pruned, _ = passes.prune_transform_pass(
        mg, {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}}
    )
    x = torch.randn(6, 1, 8, 8)
    learned = {
        "data_in": ScaleInteger(8),
        "weight": ScaleInteger(8, granularity="channel"),
        "gradient": "lsq",
    }
    q = quantized(pruned, {"linear": learned})
    q, _ = passes.calibrate_transform_pass(q, {"batches": [{"pixel_values": x}]})
    packed, _ = passes.pack_transform_pass(q, {"silent": True})
    for name, each in {"pruned": pruned, "learned": q, "packed": packed}.items():
        _, info = passes.export_onnx_interface_pass(each, {"path": tmp_path / name})
        with torch.no_grad():
            expected = each.model(pixel_values=x).logits
        got = run(info["path"], pixel_values=x)
        torch.testing.assert_close(got, expected, atol=2e-3, rtol=1e-3)
        assert len(info["quantized"]) == (0 if name == "pruned" else 3)
    codes = [w for w in onnx.load(info["path"]).graph.initializer if w.data_type == INT8]
    zeros = [(onnx.numpy_helper.to_array(w) == 0).mean() for w in codes if len(w.dims) > 1]
    assert len(zeros) == 3 and min(zeros) >= 0.5


@pytest.mark.long
def test_losses_are_left_out_and_float_graphs_are_exported_too(tmp_path):
    mg = bert("input_ids", "attention_mask", "labels")
    _, info = passes.export_onnx_interface_pass(
        mg, {"path": tmp_path / "float.onnx", "dynamic_axes": False}
    )
    assert info["outputs"] == ["logits"] and info["quantized"] == []
    loaded = session(info["path"])
    assert [i.name for i in loaded.get_inputs()] == ["input_ids", "attention_mask"]
    assert all(isinstance(size, int) for i in loaded.get_inputs() for size in i.shape)
    ids = torch.randint(5, 500, tuple(loaded.get_inputs()[0].shape))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        expected = mg.model(**inputs, labels=torch.zeros(len(ids), dtype=torch.long)).logits
    torch.testing.assert_close(run(info["path"], **inputs), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_fused_graphs_are_exported(tmp_path):
    x = torch.randn(80, 8)
    layers = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)
    mg = raised(nn.Sequential(*layers), input=x[:2])
    fused, _ = passes.fuse_linear_activation_transform_pass(mg, {})
    assert len(fused.nodes) < len(mg.nodes)
    _, info = passes.export_onnx_interface_pass(fused, {"path": tmp_path / "fused"})
    with torch.no_grad():
        expected = mg.model(x)
    assert info["path"] == tmp_path / "fused.onnx"
    torch.testing.assert_close(run(info["path"], input=x), expected, atol=1e-5, rtol=1e-5)


def test_what_is_not_installed_is_named(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "onnx" else found(name, *a)
    )
    mg = raised(get_model("mlp"))
    with pytest.raises(UnavailableError, match=r"ONNX needs onnx: pip install (-e /.*|mase-chop)$"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "x.onnx"})
    with pytest.raises(ConfigError, match="path"):
        passes.export_onnx_interface_pass(mg, {"file": tmp_path / "x.onnx"})


def test_autocast_regions_are_not_written(tmp_path):
    class Exact(nn.Sequential):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x) @ x.mT

    x = torch.randn(5, 8)
    model = Exact(nn.Linear(8, 8))
    mg = raised(model, x=x)
    nodes = len(mg.nodes)
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "exact"})
    torch.testing.assert_close(run(info["path"], x=x), model(x).detach())
    assert len(mg.nodes) == nodes
