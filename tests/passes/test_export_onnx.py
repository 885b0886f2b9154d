import functools
import importlib.util
from collections import Counter, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification
from transformers.modeling_outputs import ModelOutput, SequenceClassifierOutput

from chop import MaseGraph, passes
from chop.capture.pytree import tree_map
from chop.errors import ConfigError, GraphError, UnavailableError, VerificationError
from chop.formats import Float, Integer, QuantSpec, ScaleInteger
from chop.models import get_model
from chop.notices import forget_notices
from chop.onnx import export
from chop.passes.interface.export_onnx import SESSION_CONFIG

from .conftest import with_metadata

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

INT8, UINT8, FLOAT = 3, 2, 1
IN_INTEGERS = {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"}


@pytest.fixture(scope="module", autouse=True)
def _translations_once():
    """The exporter reads the sources of 500 translations at each export, most of its time."""
    from torch._export import utils
    from torch.onnx._internal._lazy_import import onnxscript_apis
    from torch.onnx._internal.exporter import _schemas

    slow = [
        (onnxscript_apis, "get_torchlib_ops"),
        (_schemas, "op_signature_from_function"),
        (utils, "_collect_all_valid_cia_ops_for_namespace"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in slow:
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield


def session(path, optimized=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    for name, value in SESSION_CONFIG.items():
        options.add_session_config_entry(name, value)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def run(path, **inputs):
    loaded = session(path)
    known = {each.name for each in loaded.get_inputs()}
    given = {name: x.numpy() for name, x in inputs.items() if name in known}
    return torch.from_numpy(loaded.run(None, given)[0])


def kinds_run(path, folder):
    """How many operators of each kind the runtime computes, after its own rewriting."""
    session(path, folder / "optimized.onnx")
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


def raised(model, **inputs):
    return with_metadata(MaseGraph(model.eval(), dummy_in=inputs or None))


def quantized(mg, rules, by="type"):
    given = {key: {"config": spec} for key, spec in rules.items()}
    return passes.quantize_transform_pass(mg, {"by": by, **given})[0]


def some_long(cases, kept):
    """Parameters of a test, those that are not `kept` for the long run."""
    marks = {True: (), False: (pytest.mark.long,)}
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks[case in kept])
        for case in cases
    ]


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class Product(nn.Module):
    def forward(self, x):
        return torch.matmul(x, x.transpose(-1, -2) + 0.5)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 12)

    def forward(self, ids):
        return self.table(ids)


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
    "embedding": (Tokens(), torch.randint(0, 50, (3, 6))),
    "matmul": (Product(), torch.randn(3, 5, 8)),
    "scaled_dot_product_attention": (Attention(), torch.randn(2, 3, 6, 8)),
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
OTHERS = [
    (name, "powers of two" if name in BY_CHANNEL else "by channel")
    for name in MODELS
    if name != "linear"
]


@pytest.mark.parametrize(
    "name, formats",
    [*dict.fromkeys(PAIRS), *(pytest.param(*pair, marks=pytest.mark.long) for pair in OTHERS)],
)
@pytest.mark.sampled(3)
def test_one_operator_gives_what_it_gave(name, formats, tmp_path):
    model, x = MODELS[name]
    torch.manual_seed(2)
    (argument,) = [key for key in ("input", "x", "ids") if key in _arguments(model)]
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


def _arguments(model):
    import inspect

    return inspect.signature(model.forward).parameters


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


def test_static_scales_of_activations_are_constants(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(16, 6)
    mg = raised(nn.Sequential(nn.Linear(6, 4)), input=x)
    mg = quantized(mg, {"linear": QuantSpec.uniform(ScaleInteger(8))})
    for static in (False, True):
        settings = {"batches": [{"input": x}], "static_scales": static}
        fixed, _ = passes.calibrate_transform_pass(mg, settings)
        _, info = passes.export_onnx_interface_pass(fixed, {"path": tmp_path / f"{static}.onnx"})
        follows = "ReduceMax" in [node.op_type for node in onnx.load(info["path"]).graph.node]
        assert follows is not static
        got, expected = run(info["path"], input=x / 2), fixed.model(x / 2).detach()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)
    assert not torch.equal(expected, mg.model(x / 2))


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


class Masked(nn.Module):
    """Attention among rows of numbers, told by booleans which of them are there."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x, kept):
        q = self.proj(x)[:, None]
        y = F.scaled_dot_product_attention(q, q, q, attn_mask=kept[:, None, None, :])[:, 0]
        return {"y": y, "ends": (y.sum(1), y.amax(1))}


@pytest.mark.parametrize("rows", [1, 2])
def test_axes_vary_whatever_the_example_and_all_outputs_are_named(rows, tmp_path):
    example = {"x": torch.randn(rows, 5, 8), "kept": torch.ones(rows, 5, dtype=torch.bool)}
    q = quantized(raised(Masked(), **example), {"linear": {"weight": Integer(8, 6)}})
    _, info = passes.export_onnx_interface_pass(q, {"path": tmp_path / "masked"})
    loaded = session(info["path"])
    shapes = {each.name: each.shape for each in loaded.get_inputs()}
    assert shapes == {"x": ["batch", "sequence", 8], "kept": ["batch", "sequence"]}
    assert info["outputs"] == [each.name for each in loaded.get_outputs()]
    x, kept = torch.randn(3, 7, 8), torch.arange(7) < torch.tensor([[3], [7], [5]])
    got = loaded.run(None, {"x": x.numpy(), "kept": kept.numpy()})
    expected = q.model(x=x, kept=kept)
    assert len(got) == 3
    for ours, theirs in zip(got, (expected["y"], *expected["ends"]), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs, atol=1e-5, rtol=1e-5)


class ThreeAxes(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_what_cannot_be_written_is_named(tmp_path):
    mg = raised(ThreeAxes(), x=torch.randn(2, 5, 8))
    with pytest.raises(GraphError, match="only 4D query, key, and value"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "three"})
    x = torch.randn(2, 8).bfloat16()
    mg = raised(nn.Sequential(nn.Linear(8, 4)).bfloat16(), input=x)
    q = quantized(mg, {"linear": {"weight": Integer(8, 6)}})
    with pytest.raises(ConfigError, match=r"'0' has torch.bfloat16 parameters; call .*float\(\)"):
        passes.export_onnx_interface_pass(q, {"path": tmp_path / "half"})
    assert list(tmp_path.iterdir()) == []


def test_formats_without_an_onnx_form_are_named_or_fall_back(tmp_path):
    mg = raised(get_model("mlp"))
    q = quantized(
        mg,
        {
            "fc1": {"data_in": {"name": "mxint"}, "weight": {"name": "mxint"}},
            "fc2": {"data_in": Integer(16, 8), "weight": Integer(8, 6, floor=True)},
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
            "fc1": {"config": {"weight": {"name": "mxint"}}},
            "fc2": {"config": {"weight": Integer(8, 6, floor=True)}},
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
    with torch.no_grad():
        q.model(pixel_values=x)
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
    with pytest.raises(UnavailableError, match=r"ONNX needs onnx: .*mase-chop\[onnx\]"):
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


class Ends(nn.Module):
    """A linear layer, a buffer, and an end of any kind."""

    def __init__(self, end):
        super().__init__()
        self.proj, self.end = nn.Linear(4, 4), end
        self.register_buffer("w", torch.linspace(-1, 1, 16).view(4, 4))

    def forward(self, x):
        return self.end(self, x)


Pair = namedtuple("Pair", "u v")


def repeated(model, x):
    y = model.proj(x)
    return {"a": y, "b": y, "x": x}


# by name: (end of the model, names of its outputs)
ENDS = {
    "one keyword": (lambda m, x: torch.add(m.proj(x), other=x), ["output"]),
    "only keywords": (lambda m, x: F.linear(input=m.proj(x), weight=m.w, bias=m.w[0]), ["output"]),
    "a number by keyword": (lambda m, x: torch.softmax(m.proj(x), dim=1), ["output"]),
    "a method": (lambda m, x: m.proj(x).clamp(min=x, max=x + 1), ["output"]),
    "a call of several results": (lambda m, x: m.proj(x).max(dim=1), ["output.0", "output.1"]),
    "a named tuple": (lambda m, x: Pair(u=m.proj(x), v=x), ["u", "v"]),
    "parts of a part": (
        lambda m, x: {"p": [m.proj(x), None, (x + 1,)], "q": 3, "r": "text"},
        ["p.0", "p.2.0", "q"],
    ),
    "a value thrice": (repeated, ["a", "b", "x.out"]),
    "the input itself": (lambda m, x: x, ["output"]),
    "parameters": (lambda m, x: {"w": m.proj.weight, "linear": m.proj(x) + m.w[0]}, None),
    "of Hugging Face": (
        lambda m, x: SequenceClassifierOutput(
            loss=x.sum(), logits=m.proj(x), hidden_states=(x * 2, x + 1)
        ),
        ["logits", "hidden_states.0", "hidden_states.1"],
    ),
}


def tensors_of(answer):
    if isinstance(answer, Tensor):
        return [answer]
    parts = answer.values() if isinstance(answer, dict) else answer
    return [] if isinstance(answer, str | int | None) else [t for x in parts for t in tensors_of(x)]


@pytest.mark.parametrize(
    "name",
    some_long(
        ENDS,
        (
            "one keyword",
            "only keywords",
            "a number by keyword",
            "parts of a part",
            "a value thrice",
            "of Hugging Face",
        ),
    ),
)
@pytest.mark.filterwarnings("ignore:.*the output 'r' is a str, which ONNX lacks.*")
@pytest.mark.sampled(2)
def test_outputs_are_those_of_the_output_node(name, tmp_path):
    end, names = ENDS[name]
    x = torch.randn(3, 4)
    model = Ends(end)
    _, info = passes.export_onnx_interface_pass(raised(model, x=x), {"path": tmp_path / "ends"})
    if names is not None:
        assert info["outputs"] == names
    got = session(info["path"]).run(None, {n: x.numpy() for n in info["inputs"]})
    answer = model(x)
    if isinstance(answer, ModelOutput):
        answer = {key: value for key, value in answer.items() if key != "loss"}
    expected = tensors_of(answer)
    assert len(got) == len(expected) + ("q" in info["outputs"])
    for ours, theirs in zip(got, expected, strict=False):
        torch.testing.assert_close(torch.from_numpy(ours), theirs.detach(), atol=1e-6, rtol=1e-5)


@dataclass
class Point:
    a: Tensor
    b: Tensor


# by name: (model of nested inputs, example, names in the file)
NESTED = {
    "dict": (lambda m, x: m.proj(x["k"]) + x["z"][0], {"k": 0, "z": (1, 2)}, ["x.k", "x.z.0"]),
    "list": (lambda m, x: m.proj(x[1]), [0, 1], ["x.1"]),
    "tuple": (lambda m, x: m.proj(x[0]) * x[1], (0, 1), ["x.0", "x.1"]),
    "named tuple": (lambda m, x: m.proj(x.v), Pair(0, 1), ["x.1"]),
    "dataclass": (lambda m, x: m.proj(x.b) - x.a, Point(0, 1), ["x.a", "x.b"]),
}


@pytest.mark.parametrize(
    "kind, rows",
    some_long(
        [("dict", 1), *((kind, 3) for kind in NESTED)],
        [("dict", 1), ("tuple", 3), ("dataclass", 3)],
    ),
)
def test_nested_inputs_are_flattened_by_name(kind, rows, tmp_path):
    run_model, example, names = NESTED[kind]
    given = tree_map(lambda i: torch.randn(rows, 4) + i, example)
    q = quantized(raised(Ends(run_model), x=given), {"linear": {"weight": Integer(8, 6)}})
    _, info = passes.export_onnx_interface_pass(q, {"path": tmp_path / "nested"})
    assert info["inputs"] == names
    flat = {"x.k": "k", "x.z.0": "z"}

    def part(name):
        if kind == "dict":
            found = given[flat[name]]
            return found[0] if isinstance(found, tuple) else found
        if kind == "dataclass":
            return getattr(given, name[-1])
        return given[int(name[-1])]

    got = run(info["path"], **{name: part(name) for name in names})
    torch.testing.assert_close(got, q.model(x=given).detach(), atol=1e-5, rtol=1e-5)


class Float64(nn.Module):
    def forward(self, x):
        return x + torch.linspace(0, 1, 8, dtype=torch.float64)


# by name: (model, example, whether it is quantized)
ARGUMENTS = {
    "divisor of 2D": (nn.AvgPool2d(3, 2, 1, divisor_override=5), (2, 4, 9, 10), False),
    "divisor of 2D, ceil": (
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=5),
        (2, 4, 10, 10),
        False,
    ),
    "divisor of 2D, in integers": (nn.AvgPool2d((2, 3), divisor_override=4), (2, 4, 9, 10), True),
    "divisor of 3D": (nn.AvgPool3d(2, divisor_override=3), (1, 2, 4, 5, 6), False),
    "circular padding": (
        nn.Conv2d(4, 6, 3, padding=2, padding_mode="circular"),
        (2, 4, 6, 6),
        True,
    ),
    "reflected padding": (nn.Conv1d(4, 6, 3, padding=2, padding_mode="reflect"), (2, 4, 9), True),
    "tanh": (nn.GELU("tanh"), (3, 8), True),
    "float64 beside 8 bits": (Float64(), (3, 8), True),
}


@pytest.mark.parametrize(
    "name",
    some_long(
        ARGUMENTS,
        (
            "divisor of 2D, ceil",
            "divisor of 2D, in integers",
            "circular padding",
            "float64 beside 8 bits",
        ),
    ),
)
@pytest.mark.sampled(2)
def test_arguments_of_operators_are_honored(name, tmp_path):
    layer, shape, in_integers = ARGUMENTS[name]
    argument = "x" if isinstance(layer, Float64) else "input"
    x = torch.randn(*shape)
    model = layer if isinstance(layer, Float64) else nn.Sequential(layer)
    mg = raised(model, **{argument: x})
    if in_integers:
        kind = next(mg.operator(n).name for n in mg.nodes if mg.operator(n).is_quantizable)
        mg = quantized(mg, {kind: {"data_in": Integer(8, 4)}})
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "arguments"})
    assert len(info["quantized"]) == in_integers
    got = run(info["path"], **{argument: x})
    torch.testing.assert_close(got, mg.model(**{argument: x}).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "model, shape, reason",
    [
        (nn.LSTM(4, 6, proj_size=3), (5, 2, 4), "initial_c must have shape"),
        (nn.Linear(4, 3).bfloat16(), (2, 4), r"call mg.model.float\(\) first"),
        (lambda x: torch.fft.rfft(x), (3, 4), "instead of torch.complex64"),
    ],
    ids=["lstm", "bfloat16", "complex"],
)
def test_files_that_do_not_compute_the_graph_are_refused(model, shape, reason, tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x)

    dtype = torch.bfloat16 if reason.startswith("call") else torch.float32
    mg = raised(Model(), x=torch.randn(*shape, dtype=dtype))
    with pytest.raises(VerificationError, match=reason):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "refused"})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_beyond_rounding_is_refused(monkeypatch, tmp_path):
    """A factor of 1.02 is found, also where 8-bit roundings change results by more."""
    mg = quantized(raised(get_model("mlp")), {"linear": {"data_in": Integer(4, 1)}})
    proto_of = export.proto_of

    def changed(*arguments):
        proto = proto_of(*arguments)
        for each in proto.graph.initializer:
            if each.name == "fc2.bias":
                values = onnx.numpy_helper.to_array(each) * 1.02 + 0.01
                each.CopyFrom(onnx.numpy_helper.from_array(values.astype("float32"), each.name))
        return proto

    monkeypatch.setattr(export, "proto_of", changed)
    with pytest.raises(VerificationError, match="computes another 'logits'.* rounding explains"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "changed"})
    assert list(tmp_path.iterdir()) == []


# What only looks like an error: ties, random numbers, state.
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x):
        with torch.no_grad():
            self.total += x.sum(0)
        return x + self.total


@pytest.mark.parametrize(
    "model",
    [
        Ends(lambda m, x: m.proj(x[:, :4]).relu().topk(3)),
        Ends(lambda m, x: m.proj(x[:, :4]) + torch.rand_like(x[:, :4])),
        Counting(),
    ],
    ids=["ties", "random", "state"],
)
def test_right_files_are_not_refused(model, tmp_path):
    x = torch.randn(2, 8).repeat(3, 1)
    state = torch.get_rng_state()
    mg = raised(model, x=x)
    before = {key: value.clone() for key, value in mg.model.state_dict().items()}
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "right"})
    assert info["size_bytes"] > 0 and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[key]) for key, x in mg.model.state_dict().items())


def test_without_onnxruntime_a_file_is_written_and_said_not_to_be_run_once(monkeypatch, tmp_path):
    forget_notices()
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "onnxruntime" else found(name, *a),
    )
    mg = raised(nn.Linear(4, 2), input=torch.randn(3, 4))
    with pytest.warns(UserWarning, match="onnxruntime is not installed") as warned:
        for name in ("first", "second"):
            _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / name})
            assert info["path"].exists()
    assert len(warned) == 1
