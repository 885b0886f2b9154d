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
@pytest.mark.sampled(2)
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
