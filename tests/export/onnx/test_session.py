"""Settings of onnxruntime for the processor at hand."""

import pytest
import torch
from torch import nn

from chop import passes
from chop.export.onnx import session
from chop.formats import Integer
from tests.onnx_runs import quantized, raised, translations_once

__all__ = ["translations_once"]


@pytest.mark.parametrize("has_vnni", [True, False])
def test_sums_are_widened_where_the_processor_needs_it(has_vnni, monkeypatch):
    monkeypatch.setattr(session, "has_int8_products", lambda: has_vnni)
    settings = session.onnxruntime_settings()
    assert (session.WIDER_SUMS in settings) == (not has_vnni)
    assert settings.keys() | session.SESSION_CONFIG.keys() == settings.keys() | {session.WIDER_SUMS}


def test_the_largest_codes_do_not_saturate(tmp_path):
    """Two products of 255 and 127 exceed 16 bits, in which some instructions add pairs."""
    x = torch.randint(-128, 128, (32, 64)).float()
    x[0] = 127
    net = nn.Sequential(nn.Linear(64, 16, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.randint(-128, 128, (16, 64)).float())
        net[0].weight[0] = 127
    spec = {"data_in": Integer(8, 0), "weight": Integer(8, 0)}
    mg = quantized(raised(net, input=x), {"linear": spec})
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "largest"})
    (got,) = session.opened(info["path"])({"input": x})
    assert torch.equal(got.double(), x.double() @ net[0].weight.detach().double().T)
