"""Weights of a few bits in files of ONNX, as onnxruntime and OpenVINO read them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.actions.export.proof import compare_weights
from chop.errors import ConfigError
from chop.export.onnx import files
from chop.export.openvino import FLOAT_INPUTS, ROUNDED_INPUTS
from chop.export.targets import target
from chop.formats import Integer, parse_format_string
from chop.pipelines.packed_weights import pack_weights
from tests.onnx_runs import quantized, raised, translations_once

__all__ = ["translations_once"]

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ROWS = 20
EVEN, UNEVEN = 128, 72


class Layers(nn.Module):
    """Layers whose results are their weights, where inputs are the identity and all indices."""

    def __init__(self) -> None:
        super().__init__()
        self.even = nn.Linear(EVEN, 12, bias=False)
        self.uneven = nn.Linear(UNEVEN, 5, bias=False)
        self.table = nn.Embedding(ROWS, EVEN)
        self.short = nn.Embedding(ROWS, UNEVEN)

    def forward(self, even: Tensor, uneven: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        return self.even(even), self.uneven(uneven), self.table(ids), self.short(ids)


@pytest.fixture(scope="module")
def whole() -> tuple[MaseGraph, dict[str, Tensor]]:
    torch.manual_seed(0)
    inputs = {"even": torch.eye(EVEN), "uneven": torch.eye(UNEVEN), "ids": torch.arange(ROWS)}
    return MaseGraph(Layers().eval(), dummy_in=inputs), inputs


MULTIPLY, GATHER = "MatMulNBits", "GatherBlockQuantized"
FEW = {MULTIPLY: 2, GATHER: 1}
# format: (operators that compute from codes, bits of a weight in the file at most)
FORMATS = {
    "group_integer:width=4": (FEW, 7.5),
    "group_integer:width=4:group_size=64": (FEW, 7.5),
    "mxint:width=4": (FEW, 7.5),
    "mxint:width=4:block_size=16": (FEW, 7.5),
    "group_integer:width=3:group_size=128": (FEW, 7.5),
    "group_integer:width=4:group_size=24": ({}, 11),
    "group_integer:width=4:group_size=256": (FEW, 7.5),
    "scale_integer:width=4:granularity=channel": ({MULTIPLY: 2}, 7.5),
    "integer:width=4:frac_width=3": ({MULTIPLY: 2}, 7.5),
    "mxint:width=8": ({}, 11),
    "group_integer:width=8": ({}, 11),
    "group_integer:width=6": ({}, 11),
    "integer:width=8:frac_width=6": ({}, 10),
    "group_affine:width=4:group_size=32": ({MULTIPLY: 2}, 10),
    "group_affine:width=8": ({}, 11.5),
}


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.sampled(1)
def test_files_hold_the_codes(text, whole, tmp_path):
    mg, inputs = whole
    packed = pack_weights(mg, parse_format_string(text))
    made = target("onnx").export(packed, tmp_path / "model")
    proto = onnx.load(made.path)
    onnx.checker.check_model(proto, full_check=True)
    kinds, bits = FORMATS[text]
    assert {k: n for k, n in _kinds(proto).items() if k in FEW} == kinds
    weights = sum(x.numel() for x in mg.model.parameters())
    stored = [each for each in proto.graph.initializer if each.data_type != onnx.TensorProto.INT64]
    assert 8 * sum(len(each.raw_data) for each in stored) <= bits * weights
    assert made.notes == () and made.size_bytes == made.path.stat().st_size
    _check_weights(packed, target("onnx").weights(made.path), text)
    _compare(packed, inputs, target("onnx").read(made.path), _rounds(text))


@pytest.mark.parametrize("text", [text for text in FORMATS if "width=6" not in text])
@pytest.mark.sampled(1)
def test_openvino_reads_the_codes(text, whole, tmp_path):
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    mg, inputs = whole
    packed = pack_weights(mg, parse_format_string(text))
    made = target("openvino").export(packed, tmp_path / "model")
    _, bits = FORMATS[text]
    data = made.path.with_suffix(".bin")
    assert {*made.files} == {made.path, data} and made.notes == (FLOAT_INPUTS,)
    stored = openvino.Core().read_model(made.path).get_rt_info(["runtime_options", ROUNDED_INPUTS])
    assert stored.astype(str) == "0"
    weights = sum(x.numel() for x in mg.model.parameters())
    assert 8 * data.stat().st_size <= (bits + 1) * weights
    _check_weights(packed, target("openvino").weights(made.path), text)
    _compare(packed, inputs, target("openvino").read(made.path), _rounds(text))


def test_openvino_folds_a_batch_norm_into_the_scales_of_codes(tmp_path):
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)).eval()
    nn.init.uniform_(model[1].weight, 2, 3)
    mg = MaseGraph(model, dummy_in={"input": torch.randn(2, 3, 6, 6)})
    rule = {"config": {"name": "integer", "width": 8, "frac_width": 6}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "conv2d": rule})
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    made = target("openvino").export(packed, tmp_path / "model")
    nodes = openvino.Core().read_model(made.path).get_ordered_ops()
    constants = [x.data for x in nodes if x.get_type_name() == "Constant"]
    (codes,) = [torch.tensor(x) for x in constants if x.shape == (8, 3, 3, 3)]
    assert codes.dtype == torch.int8
    assert torch.equal(codes / 64, packed.modules["0"].weight)
    assert compare_weights(packed, target("openvino").weights(made.path)).difference > 0.1


def _check_weights(packed: MaseGraph, given: dict[str, Tensor], text: str) -> None:
    """All are the graph's; zero points are taken off products, or rounded another way."""
    found = compare_weights(packed, given)
    if text.startswith("group_affine"):
        assert found.difference is None or found.difference < 1e-6
    else:
        assert str(found) == "4 of 4"


def _rounds(text: str) -> bool:
    """Whether products with ones and zeros are rounded: of two terms, or of 24 bits and a code."""
    return text.startswith(("group_affine", "scale_integer"))


def _compare(packed: MaseGraph, inputs: dict[str, Tensor], run, rounds: bool) -> None:
    """Values of codes are exact: each result is one of them, and products with zeros beside it."""
    with torch.no_grad():
        expected = packed.model(**inputs)
    found = run(inputs)
    assert len(found) == 4
    for (name, got), right in zip(found.items(), expected, strict=True):
        if rounds and name in ("output.0", "output.1"):
            torch.testing.assert_close(got, right, atol=1e-6, rtol=1e-6)
        else:
            assert torch.equal(got, right), name


def _kinds(proto) -> Counter[str]:
    return Counter(node.op_type for node in proto.graph.node)


class Block(nn.Module):
    """A linear layer with a bias, whose inputs are rounded to 8 bits, of any number of axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 48), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


@pytest.mark.parametrize("weight", ["group_integer:width=4", "mxint:width=8"])
@pytest.mark.sampled(1)
def test_inputs_may_be_rounded_too(weight, tmp_path):
    torch.manual_seed(1)
    x = torch.randn(3, 7, 64)
    spec = {"data_in": Integer(8, 4), "weight": parse_format_string(weight)}
    mg = quantized(raised(Block(), x=x), {"linear": spec})
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "block"})
    assert (info["quantized"], info["fallback"]) == (["first", "second"], [])
    kinds = _kinds(onnx.load(info["path"]))
    assert kinds["QuantizeLinear"] == 2 and kinds[MULTIPLY] == (2 if "width=4" in weight else 0)
    other = torch.randn(5, 7, 64)
    got = target("onnx").read(info["path"])({"x": other})["output"]
    torch.testing.assert_close(got, mg.model(other).detach(), atol=2.0**-4, rtol=0)
    assert ((got - mg.model(other)).abs() < 1e-5).float().mean() > 0.9


def test_formats_of_other_elements_become_floats_with_a_note(whole, tmp_path):
    mg, inputs = whole
    packed = pack_weights(mg, parse_format_string("mxfp:width=4"))
    made = target("onnx").export(packed, tmp_path / "model")
    assert made.notes == ("4 operands are stored as rounded floats: ONNX lacks their formats",)
    _compare(packed, inputs, target("onnx").read(made.path), False)
    with pytest.raises(ConfigError, match="no form in integers of even.weight"):
        passes.export_onnx_interface_pass(packed, {"path": tmp_path / "refused"})
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.long
def test_weights_that_a_batch_norm_was_folded_into_differ(tmp_path):
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    net[1].running_var.fill_(2.0)
    mg = raised(net.eval(), input=torch.randn(2, 1, 4, 4))
    packed = pack_weights(mg, parse_format_string("group_integer:width=4"))
    made = target("onnx").export(packed, tmp_path / "model")
    found = compare_weights(packed, target("onnx").weights(made.path))
    assert str(found) == "1 of 2" and found.difference > 1e-3


def test_large_weights_are_beside_the_file(whole, monkeypatch, tmp_path):
    mg, inputs = whole
    packed = pack_weights(mg, parse_format_string("group_integer:width=4"))
    monkeypatch.setattr(files, "LARGEST", 2000)
    monkeypatch.setattr(files, "SMALL", 200)
    made = target("onnx").export(packed, tmp_path / "model")
    data = tmp_path / "model.onnx.data"
    assert made.files == (made.path, data) and {*tmp_path.iterdir()} == {*made.files}
    sizes = [file.stat().st_size for file in made.files]
    assert made.size_bytes == sum(sizes) and sizes[1] > 2000
    _compare(packed, inputs, target("onnx").read(made.path), False)
    proto = onnx.load(made.path)
    monkeypatch.undo()
    assert files.write_files(proto, made.path, _whole) == (made.path,)
    assert not data.exists() and made.path.stat().st_size > sizes[1]
    _compare(packed, inputs, target("onnx").read(made.path), False)


def _whole(weights) -> None:
    assert weights is None


def test_large_files_that_are_wrong_leave_nothing(monkeypatch, tmp_path):
    proto = onnx.ModelProto()
    weight = torch.randn(50, 50).numpy()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    monkeypatch.setattr(files, "LARGEST", 2000)
    with pytest.raises(ConfigError, match="refused"):
        files.write_files(proto, tmp_path / "model.onnx", _refuse)
    assert list(tmp_path.iterdir()) == []


def _refuse(weights) -> None:
    assert [file.name for file in weights.iterdir()] == ["model.onnx.data"]
    raise ConfigError("refused")


class Given(nn.Module):
    """A table that a function looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(ROWS, UNEVEN))
        self.layer = nn.Linear(UNEVEN, 5)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = nn.functional.embedding(ids, self.table)
        return rows, self.layer(rows)


def test_parameters_that_functions_are_given_are_rounded_floats(tmp_path):
    torch.manual_seed(0)
    given = {"ids": torch.arange(ROWS)}
    mg = MaseGraph(Given().eval(), dummy_in=given)
    packed = pack_weights(mg, parse_format_string("mxfp:width=4"))
    made = target("onnx").export(packed, tmp_path / "model")
    assert made.notes == ("2 operands are stored as rounded floats: ONNX lacks their formats",)
    expected = packed.model(**given)[0]
    assert not torch.equal(expected, mg.model(**given)[0])
    assert torch.equal(target("onnx").read(made.path)(given)["output.0"], expected)


def test_activations_that_nothing_rounds_are_named(tmp_path):
    torch.manual_seed(0)
    mg = MaseGraph(nn.Sequential(nn.Linear(32, 8)).eval(), dummy_in={"input": torch.randn(4, 32)})
    eight = parse_format_string("mxint:width=8")
    made = target("onnx").export(pack_weights(mg, eight, eight), tmp_path / "model")
    assert made.notes == ("0.data_in (mxint(width=8)) are not rounded: ONNX lacks their formats",)
