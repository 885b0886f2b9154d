"""Files of QONNX: its own executor and hls4ml's C simulation compute what the graph does."""

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, VerificationError
from chop.export.onnx import files
from chop.export.onnx.operators import qonnx_bipolar, qonnx_quant
from chop.export.onnx.plain import in_plain_operators
from chop.export.onnx.quant import ROUNDED, STORED
from chop.export.qonnx import target as qonnx
from chop.export.targets import target
from chop.formats import ScaleInteger, Ternary, parse_format_string
from chop.formats.elements import Fixed
from tests.integer.graphs import quantized_graph, test_rows
from tests.onnx_runs import session, translations_once
from tests.pages import ROOT

__all__ = ["translations_once"]

onnx = pytest.importorskip("onnx", reason="onnx writes files of QONNX")

BY_ITS_READER = pytest.mark.skipif(
    find_spec("qonnx") is None, reason="qonnx executes its files: pip install qonnx"
)
DIGITS = 360


def net():
    """Three kinds of layers that circuits have; 3 channels of 8 numbers in."""
    torch.manual_seed(0)
    first, last = nn.Conv1d(3, 4, 3, padding=1), nn.Linear(32, 5)
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), last).eval()


@cache
def graph_of_net():
    """In floats, and rows."""
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))
    return MaseGraph(net(), dummy_in={"input": x}), x


def quantized(data_in, weight, bias=None, model=None, x=None):
    mg, x = graph_of_net() if model is None else (MaseGraph(model, dummy_in={"input": x}), x)
    spec = {"data_in": data_in, "weight": weight, "bias": bias}
    spec = {k: parse_format_string(v) if isinstance(v, str) else v for k, v in spec.items()}
    rule = {"config": {k: v for k, v in spec.items() if v is not None}}
    kinds = {type(module).__name__.lower() for module in mg.model.modules()}
    rules = {kind: rule for kind in ("linear", "conv1d", "conv2d") if kind in kinds}
    return passes.quantize_transform_pass(mg, {"by": "type", **rules})[0], x


def run_plainly(path, x):
    """What onnxruntime computes of a file, of each row alone."""
    plain = in_plain_operators(onnx.load(path), rounds=True)
    path.with_name("plain.onnx").write_bytes(plain.SerializeToString())
    runtime = session(path.with_name("plain.onnx"))
    (name,) = [each.name for each in runtime.get_inputs()]
    rows = [runtime.run(None, {name: row.numpy()})[0] for row in x.split(1)]
    return torch.from_numpy(np.concatenate(rows))


STATIC = ScaleInteger(8, scales=(0.0273,))
# formats of inputs, weights and biases; attributes and width of the nodes of inputs and weights
FORMATS = {
    "8 bits": ("8.4", "8.6", "8.7", (1, 0, b"ROUND", 8), (1, 0, b"ROUND", 8)),
    "2 and 3 bits": ("3.1", "2.1", None, (1, 0, b"ROUND", 3), (1, 0, b"ROUND", 2)),
    "16 bits": ("16.10", "12.8", "16.10", (1, 0, b"ROUND", 16), (1, 0, b"ROUND", 12)),
    "unsigned and floored": (
        "integer:width=4:frac_width=2:is_signed=false",
        "integer:width=6:frac_width=5:floor=true",
        None,
        (0, 0, b"ROUND", 4),
        (1, 0, b"ROUND", 6),
    ),
    "inputs floored": (
        "integer:width=6:frac_width=3:floor=true",
        "8.6",
        None,
        (1, 0, b"FLOOR", 6),
        (1, 0, b"ROUND", 8),
    ),
    "measured": (STATIC, "scale_integer:width=5", None, (1, 1, b"ROUND", 8), (1, 1, b"ROUND", 5)),
    "by channel": (
        STATIC,
        "scale_integer:width=4:granularity=channel",
        None,
        (1, 1, b"ROUND", 8),
        (1, 1, b"ROUND", 4),
    ),
    "ternary": (
        "ternary:threshold=0.5",
        "ternary:scaling_factor=true",
        None,
        (1, 1, b"ROUND", 2),
        (1, 1, b"ROUND", 2),
    ),
    "binary": ("binary", "binary:scaling_factor=true", None, None, None),
    "bits": ("8.4", "binary:bipolar=false", None, (1, 0, b"ROUND", 8), (0, 0, b"ROUND", 1)),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.sampled(1)
def test_nodes_say_what_formats_are(name, tmp_path):
    data_in, weight, bias, of_input, of_weight = FORMATS[name]
    mg, x = quantized(data_in, weight, bias)
    path = qonnx.write(mg, tmp_path / "file.onnx")["path"]
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 8]
    values = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    found = {True: set(), False: set()}
    for node in proto.graph.node:
        if node.op_type == "Quant":
            is_weight = node.input[0] in values and values[node.input[0]].ndim > 1
            is_bias = node.input[0] in values and not is_weight
            given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            what = (given["signed"], given["narrow"], given["rounding_mode"])
            assert values[node.input[2]] == 0
            if not is_bias:
                found[is_weight].add((*what, int(values[node.input[3]])))
    expected = [{what} if what else set() for what in (of_input, of_weight)]
    assert [found[False], found[True]] == expected
    kinds = Counter(node.op_type for node in proto.graph.node)
    assert kinds["BipolarQuant"] == (4 if of_input is None else 0)
    assert {"Conv", "MatMul"} < set(kinds) and not {"Gemm", "Transpose"} & set(kinds)
    with torch.no_grad():
        ours = mg.model(x)
    torch.testing.assert_close(run_plainly(path, x), ours, rtol=1e-5, atol=1e-5)


@BY_ITS_READER
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.sampled(1)
def test_its_executor_computes_the_graph(name, tmp_path):
    mg, x = quantized(*FORMATS[name][:3])
    path = tmp_path / "file"
    _, info = passes.export_interface_pass(mg, {"to": "qonnx", "path": path})
    assert info["path"] == path.with_suffix(".onnx") and info["notes"] == []
    found = info["read"](info["path"])({"input": x})
    with torch.no_grad():
        ours = mg.model(x)
    assert list(found) == ["output"]
    if name in ("8 bits", "2 and 3 bits", "inputs floored"):  # all sums are exact
        assert torch.equal(found["output"], ours)
    torch.testing.assert_close(found["output"], ours, rtol=1e-5, atol=1e-5)


@BY_ITS_READER
@pytest.mark.parametrize(
    "low, high", [(-128, 127), (-127, 127), (0, 7), (-1, 1), (-(2**31), 2**31 - 1)]
)
@pytest.mark.parametrize("scale", [0.25, 0.0273])
def test_our_reference_of_quant_is_that_of_its_library(low, high, scale):
    from qonnx.custom_op.general.intquant import int_quant

    k = torch.arange(-600, 600) / 4
    x = torch.cat([k * scale, torch.randn(500), torch.tensor([0.0, 1e30, -1e30])]).float()
    width = high.bit_length() + (low < 0)
    for floors, mode in ((False, "ROUND"), (True, "FLOOR")):
        ours = qonnx_quant(x, torch.tensor(scale), low, high, floors)
        numbers = [np.float32(scale), np.float32(0), np.array(width, dtype=np.float32)]
        theirs = int_quant(x.numpy(), *numbers, low < 0, low == -high, mode)
        assert torch.equal(ours, torch.from_numpy(theirs).float())


@BY_ITS_READER
def test_our_reference_of_bipolar_quant_is_that_of_its_library():
    from qonnx.custom_op.general.bipolar_quant import binary_quant

    x, scale = torch.tensor([[-2.0, -0.0], [0.0, 1e-30]]), torch.tensor([[0.5], [3.0]])
    theirs = binary_quant(x.numpy(), scale.numpy())
    assert torch.equal(qonnx_bipolar(x, scale), torch.from_numpy(theirs))


REFUSED = {
    "blocks": ("8.4", "mxint", ["0: QONNX has no node for its weight (mxint"]),
    "small floats": ("8.4", "mxfp:width=8", ["0: QONNX has no node", "3: QONNX has no node"]),
    "scales that follow inputs": ("scale_integer:width=8", "8.4", ["data_in (scale_integer"]),
    "thresholds that follow inputs": ("ternary", "8.4", ["data_in (ternary"]),
    "thresholds beside scales": (
        Ternary(threshold=0.5, scaling_factor=True, scales=(0.3,)),
        "8.4",
        ["data_in (ternary"],
    ),
    "draws": ("8.4", "binary:stochastic=true", ["weight (binary"]),
    "zero points": ("8.4", "group_affine:width=4", ["weight (group_affine"]),
    "levels": ("binary_residual", "8.4", ["data_in (binary_residual"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_node_is_refused_by_module(name, tmp_path):
    data_in, weight, said = REFUSED[name]
    mg, _ = quantized(data_in, weight)
    with pytest.raises(ConfigError, match="qonnx cannot store [12] module") as caught:
        qonnx.write(mg, tmp_path / "file.onnx")
    assert [text for text in said if text not in str(caught.value)] == []
    assert "Choose integer" in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("width, is_symmetric", [(1, False), (33, True), (40, False)])
def test_widths_that_nodes_lack(width, is_symmetric):
    element = Fixed(width, 0, "twos_complement", is_symmetric)
    assert ROUNDED[Fixed](element) is STORED[Fixed](element) is None
    widest = Fixed(32, 0, "twos_complement", is_symmetric)
    assert ROUNDED[Fixed](widest).high == 2**31 - 1


def test_blocks_of_whole_rows_are_scales_by_channel(tmp_path):
    torch.manual_seed(0)
    mg = MaseGraph(nn.Sequential(nn.Linear(32, 5)), dummy_in={"input": torch.randn(2, 32)})
    rule = {"config": {"weight": {"name": "mxint", "width": 6, "block_size": [1, 32]}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule})
    proto = onnx.load(qonnx.write(mg, tmp_path / "a.onnx")["path"])
    (node,) = [node for node in proto.graph.node if node.op_type == "Quant"]
    values = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    weight, scale = (values[name] for name in node.input[:2])
    assert (weight.shape, scale.shape) == ((32, 5), (1, 5))
    assert (np.frexp(scale)[0] == 0.5).all()
    layer = mg.model.get_submodule("0")
    assert np.array_equal(weight.T, layer.spec.weight(layer.weight).detach().numpy())


class Mixing(nn.Module):
    def forward(self, input):
        return input.softmax(0)


def test_rows_that_change_one_another_stay_together(tmp_path):
    mg = MaseGraph(Mixing(), dummy_in={"input": torch.randn(4, 3)})
    proto = onnx.load(qonnx.write(mg, tmp_path / "file.onnx")["path"])
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [4, 3]


def test_a_file_that_computes_something_else_is_not_written(monkeypatch, tmp_path):
    build_proto = qonnx.build_proto

    def changed(*arguments):
        proto = build_proto(*arguments)
        (relu,) = [node for node in proto.graph.node if node.op_type == "Relu"]
        relu.op_type = "Abs"
        return proto

    monkeypatch.setattr(qonnx, "build_proto", changed)
    mg, _ = quantized("8.4", "8.6")
    with pytest.raises(VerificationError, match="onnxruntime computes another 'output'"):
        qonnx.write(mg, tmp_path / "file.onnx")
    assert [*tmp_path.iterdir()] == []


def test_halves_become_float32_which_is_said(tmp_path):
    x = torch.randn(2, 32)
    mg = MaseGraph(nn.Sequential(nn.Linear(32, 5)).bfloat16(), dummy_in={"input": x.bfloat16()})
    rule = {"config": {"weight": {"name": "integer", "width": 8, "frac_width": 6}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule})
    assert qonnx.write(mg, tmp_path / "a.onnx")["notes"] == ["the model was converted to float32"]


@pytest.mark.long  # as those of ONNX are
@BY_ITS_READER
def test_large_weights_are_beside_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "LARGEST", 100)
    monkeypatch.setattr(files, "SMALL", 100)
    mg, x = quantized("8.4", "8.6")
    made = target("qonnx").export(mg, tmp_path / "a")
    assert [each.name for each in made.files] == ["a.onnx", "a.onnx.data"]
    with torch.no_grad():
        assert torch.equal(qonnx.read(made.path)({"input": x})["output"], mg.model(x))


def written(name, folder):
    """A built-in model in 8 bits, its file, all test rows, and what the graph makes of them."""
    mg = quantized_graph(name, "8.auto", trained=True)
    path = target("qonnx").export(mg, folder / "qonnx").path
    x = test_rows(name, DIGITS)["pixel_values"]
    with torch.no_grad():
        return path, x, mg.model.eval()(pixel_values=x).logits


@pytest.mark.long
@BY_ITS_READER
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_built_in_models_are_equal_on_digits(name, tmp_path):
    path, x, ours = written(name, tmp_path)
    assert x.shape == (DIGITS, 1, 8, 8)
    found = qonnx.read(path)({"pixel_values": x})["logits"]
    assert torch.equal(found, ours)


SIMULATE = """
import numpy as np
np.save("found.npy", circuit.predict(np.load("rows.npy")))
"""
FILE = "runs/export/qonnx.onnx"
PRECISION = "fixed<32,16>"
"""Of the page."""


def simulated(folder, x, precision=PRECISION):
    """What hls4ml's C simulation computes of `qonnx.onnx` by the code of the page."""
    pytest.importorskip("hls4ml", reason="hls4ml makes circuits: pip install hls4ml")
    page = (ROOT / "docs/guide/export-qonnx.md").read_text()
    (code,) = re.findall(r"^```py\n(.*?)^```", page, re.S | re.M)
    assert FILE in code and PRECISION in code
    last = x.permute(0, *range(2, x.dim()), 1) if x.dim() > 2 else x
    np.save(folder / "rows.npy", np.ascontiguousarray(last.numpy()))
    code = code.replace(FILE, "qonnx.onnx").replace(PRECISION, precision) + SIMULATE
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.load(folder / "found.npy"))


@pytest.mark.long
@BY_ITS_READER
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_circuits_of_hls4ml_are_equal_on_digits(name, tmp_path):
    path, x, ours = written(name, tmp_path)
    assert path.name == "qonnx.onnx" and len(x) == DIGITS
    assert torch.equal(simulated(tmp_path, x), ours)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, input):
        return torch.relu(self.second(torch.relu(self.first(input))) + input)


def pooled():
    first, last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(16, 5)
    second = nn.Conv2d(8, 4, 3)
    pool = nn.MaxPool2d(2)
    return nn.Sequential(first, nn.ReLU(), pool, second, nn.ReLU(), nn.Flatten(), last)


CIRCUITS = {
    "4 bits": (net, (3, 8), "6.3", "4.auto"),
    "16 bits": (net, (3, 8), "16.10", "12.8"),
    "ternary": (net, (3, 8), "8.4", "ternary"),
    "binary": (net, (3, 8), "binary", "binary"),
    "max-pooling": (pooled, (3, 8, 8), "8.5", "8.auto"),
    "sums": (Residual, (16,), "8.5", "8.auto"),
}


@pytest.mark.long
@BY_ITS_READER
@pytest.mark.parametrize("name", CIRCUITS)
def test_circuits_with_scales_that_are_powers_of_two_are_equal(name, tmp_path):
    make, shape, data_in, weight = CIRCUITS[name]
    torch.manual_seed(0)
    model, x = make().eval(), (torch.randn(20, *shape) * 64).round() / 64
    mg, _ = quantized(data_in, weight, "8.6", model, x)
    qonnx.write(mg, tmp_path / "qonnx.onnx")
    with torch.no_grad():
        ours = mg.model(x)
    assert torch.equal(simulated(tmp_path, x).view(ours.shape), ours)


@pytest.mark.long
@BY_ITS_READER
@pytest.mark.parametrize(
    "precision, least, most", [(PRECISION, 0.01, 1.0), ("fixed<48,16>", 0.0, 1e-5)]
)
def test_other_scales_are_rounded_by_hls4ml(precision, least, most, tmp_path):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5)).eval()
    x = torch.randn(20, 16)
    mg, _ = quantized(STATIC, "scale_integer:width=8", None, model, x)
    qonnx.write(mg, tmp_path / "qonnx.onnx")
    with torch.no_grad():
        ours = mg.model(x)
    off = (simulated(tmp_path, x, precision) - ours).abs().max() / ours.abs().max()
    assert least < off < most
