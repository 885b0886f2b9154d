"""Tokens that see no other: files give what torch gives, zeros in place of means."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from chop import MaseGraph, passes
from chop.export.targets import target
from chop.formats import parse_format_string
from chop.pipelines.packed_weights import pack_weights
from tests.export.decoders import HEADS, SIZES
from tests.onnx_runs import run, session, translations_once

__all__ = ["translations_once"]

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")


class Attention(nn.Module):
    """Two calls with one mask, whose lowest numbers the model writes too where `beside`."""

    def __init__(self, beside):
        super().__init__()
        self.beside = beside

    def forward(self, x, mask):
        once = F.scaled_dot_product_attention(x, x, x, mask)
        twice = F.scaled_dot_product_attention(once, x, x, mask)
        if not self.beside:
            return twice
        lowest = torch.finfo(x.dtype).min
        return twice + torch.softmax(x @ x.mT + torch.where(mask, 0.0, lowest), -1) @ x


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 5, 5), (5, 5)])
@pytest.mark.sampled(1)
def test_what_sees_nothing_is_zeros(beside, shape, tmp_path):
    """A mask of the model's own, by the lowest number, keeps the mean that it gives."""
    mask = torch.ones(shape, dtype=torch.bool).tril()
    mask[..., :2, :] = False
    x = torch.randn(2, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    model = Attention(beside)
    mg = MaseGraph(model.eval(), dummy_in={"x": x, "mask": mask})
    passes.export_onnx_interface_pass(mg, {"path": tmp_path / "a.onnx"})
    found = run(tmp_path / "a.onnx", x=x, mask=mask)
    torch.testing.assert_close(found, model(x, mask), rtol=1e-5, atol=1e-5)
    assert bool(found[:, :, :2].any()) == beside
    assert bool(found[:, :, 2:].all())


@pytest.mark.long
def test_a_decoder_of_a_text_padded_on_the_left(tmp_path):
    """Captured with padding, as of test rows, without a cache; padding has the logits of torch."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, **HEADS)
    ids = torch.randint(3, 90, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    model = transformers.LlamaForCausalLM(config).eval()
    mg = MaseGraph(model, dummy_in=given)
    mg = pack_weights(mg, parse_format_string("scale_integer:width=8"))
    path = tmp_path / "a.onnx"
    passes.export_onnx_interface_pass(mg, {"path": path, "cache": False, "float_fallback": True})
    assert [each.name for each in session(path).get_inputs()] == [*given]
    expected = mg.model(**given)["logits"]
    torch.testing.assert_close(run(path, **given), expected, rtol=1e-4, atol=1e-4)
    stored = [each.name for each in onnx.load(path).graph.initializer]
    read = {name for node in onnx.load(path).graph.node for name in node.input}
    assert read.issuperset(stored)


def test_openvino_hides_too(tmp_path):
    pytest.importorskip("openvino", reason="OpenVINO reads the file")
    x = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    mask[..., 0, :] = False
    model = Attention(False)
    mg = MaseGraph(model.eval(), dummy_in={"x": x, "mask": mask})
    kind = target("openvino")
    found = kind.read(kind.export(mg, tmp_path / "a").path)({"x": x, "mask": mask})
    torch.testing.assert_close(found["output"], model(x, mask), rtol=1e-4, atol=1e-4)


class Written(nn.Module):
    """Attention written out, whose scores a mask is filled into or added to."""

    def __init__(self, adds, fill):
        super().__init__()
        torch.manual_seed(0)
        self.adds, self.fill, self.qkv = adds, fill, nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 8)).unbind(-2)
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        scores = q @ k.mT
        if self.adds:
            scores = scores + torch.zeros_like(scores).masked_fill(later, self.fill)
        else:
            scores = scores.masked_fill(later, self.fill)
        return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("fill", [-torch.inf, torch.finfo(torch.float32).min])
@pytest.mark.long
def test_formats_do_not_see_hidden_scores_in_a_file_either(adds, fill, tmp_path):
    """Scale for a whole tensor, which would follow the mask, and be 0 or infinite."""
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    mg = MaseGraph(Written(adds, fill).eval(), dummy_in={"x": x})
    names = ("softmax", "add") if adds else ("softmax",)
    config = {"config": {"data_in": {"name": "scale_integer", "width": 8}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(names, config)})
    passes.export_onnx_interface_pass(mg, {"path": tmp_path / "a.onnx"})
    found = run(tmp_path / "a.onnx", x=x)
    torch.testing.assert_close(found, mg.model(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, Written(adds, fill)(x), rtol=0, atol=0.05)


def test_scores_that_nothing_masks_cost_nothing_more(tmp_path):
    class Plain(nn.Module):
        def forward(self, x):
            return torch.softmax(x @ x.mT, -1)

    x = torch.randn(2, 6, 8)
    mg = MaseGraph(Plain(), dummy_in={"x": x})
    config = {"config": {"data_in": {"name": "integer", "width": 8, "frac_width": 4}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "softmax": config})
    passes.export_onnx_interface_pass(mg, {"path": tmp_path / "a.onnx"})
    kinds = {node.op_type for node in onnx.load(tmp_path / "a.onnx").graph.node}
    assert "Softmax" in kinds and "Where" not in kinds
