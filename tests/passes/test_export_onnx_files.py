"""Inputs, outputs and arguments in ONNX files, and the run of a file before it gets its name."""

import sys
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput, SequenceClassifierOutput

from chop import passes
from chop.base.nested import tree_map
from chop.base.notices import forget_notices
from chop.errors import VerificationError
from chop.export.onnx import export
from chop.formats import Integer
from chop.models import get_model
from tests.networks import Made
from tests.onnx_runs import quantized, raised, run, session, translations_once

__all__ = ["translations_once"]

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


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


def list_tensors(answer):
    if isinstance(answer, Tensor):
        return [answer]
    parts = answer.values() if isinstance(answer, dict) else answer
    return (
        [] if isinstance(answer, str | int | None) else [t for x in parts for t in list_tensors(x)]
    )


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.filterwarnings("ignore:.*the output 'r' is a str, which files cannot store.*")
@pytest.mark.sampled(1)
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
    expected = list_tensors(answer)
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


@pytest.mark.parametrize("kind, rows", [("dict", 1), *((kind, 3) for kind in NESTED)])
@pytest.mark.sampled(1)
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


# by name: (model, example, whether it is quantized)
ARGUMENTS = {
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
    "float64 beside 8 bits": (
        Made(lambda m, x: x + torch.linspace(0, 1, 8, dtype=torch.float64)),
        (3, 8),
        True,
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.sampled(1)
def test_arguments_of_operators_are_honored(name, tmp_path):
    layer, shape, in_integers = ARGUMENTS[name]
    x = torch.randn(*shape)
    mg = raised(Made(lambda m, x: m.layer(x), layer=layer), x=x)
    if in_integers:
        kind = next(mg.operator(n).name for n in mg.nodes if mg.operator(n).is_quantizable)
        mg = quantized(mg, {kind: {"data_in": Integer(8, 4)}})
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "arguments"})
    assert len(info["quantized"]) == in_integers
    got = run(info["path"], x=x)
    torch.testing.assert_close(got, mg.model(x=x).detach(), atol=1e-4, rtol=1e-4)


def test_onnxruntime_fuses_gelu(tmp_path):
    mg = raised(nn.Sequential(nn.Linear(8, 8), nn.GELU()), input=torch.randn(2, 8))
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "gelu"})
    session(info["path"], tmp_path / "optimized.onnx")
    kinds = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert kinds & {"Gelu", "BiasGelu"} and "Erf" not in kinds


@pytest.mark.parametrize(
    "model, shape, reason",
    [
        (nn.LSTM(4, 6, proj_size=3), (5, 2, 4), "initial_c must have shape"),
        (nn.Linear(4, 3).bfloat16(), (2, 4), r"call mg.model.float\(\) first"),
        (lambda x: torch.fft.rfft(x), (3, 4), "instead of torch.complex64"),
    ],
    ids=["lstm", "bfloat16", "complex"],
)
@pytest.mark.sampled(1)
def test_files_that_do_not_compute_the_graph_are_refused(model, shape, reason, tmp_path):
    dtype = torch.bfloat16 if reason.startswith("call") else torch.float32
    mg = raised(Made(lambda m, x: m.inner(x), inner=model), x=torch.randn(*shape, dtype=dtype))
    with pytest.raises(VerificationError, match=reason):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "refused"})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_beyond_rounding_is_refused(monkeypatch, tmp_path):
    """A factor of 1.02 is found, also where 8-bit roundings change results by more."""
    mg = quantized(raised(get_model("mlp")), {"linear": {"data_in": Integer(4, 1)}})
    build_proto = export.build_proto

    def changed(*arguments):
        proto = build_proto(*arguments)
        for each in proto.graph.initializer:
            if each.name == "fc2.bias":
                values = onnx.numpy_helper.to_array(each) * 1.02 + 0.01
                each.CopyFrom(onnx.numpy_helper.from_array(values.astype("float32"), each.name))
        return proto

    monkeypatch.setattr(export, "build_proto", changed)
    with pytest.raises(VerificationError, match="computes another 'logits'.* rounding explains"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "changed"})
    assert list(tmp_path.iterdir()) == []


# What only looks like an error: ties, random numbers.
@pytest.mark.parametrize(
    "model",
    [
        Ends(lambda m, x: m.proj(x[:, :4]).relu().topk(3)),
        Ends(lambda m, x: m.proj(x[:, :4]) + torch.rand_like(x[:, :4])),
    ],
    ids=["ties", "random"],
)
@pytest.mark.sampled(1)
def test_right_files_are_not_refused(model, tmp_path):
    torch.manual_seed(0)
    for parameter in model.parameters():  # made as the file was imported, from any random state
        nn.init.normal_(parameter)
    x = torch.randn(2, 8).repeat(3, 1)
    state = torch.get_rng_state()
    mg = raised(model, x=x)
    before = {key: value.clone() for key, value in mg.model.state_dict().items()}
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "right"})
    assert info["size_bytes"] > 0 and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[key]) for key, x in mg.model.state_dict().items())


@pytest.mark.long
def test_without_onnxruntime_a_file_is_written_and_said_not_to_be_run_once(monkeypatch, tmp_path):
    forget_notices()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    mg = raised(nn.Linear(4, 2), input=torch.randn(3, 4))
    with pytest.warns(UserWarning, match="onnxruntime cannot be imported") as warned:
        for name in ("first", "second"):
            _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / name})
            assert info["path"].exists()
    assert len(warned) == 1
