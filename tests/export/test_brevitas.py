"""QONNX files of brevitas: read back, they compute what brevitas does.

`CHOP_BREVITAS` names the Python of an environment of its own that has brevitas and onnxoptimizer.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from chop import passes
from chop.export.qonnx.reader import read_graph, read_module

PYTHON = os.environ.get("CHOP_BREVITAS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason="CHOP_BREVITAS names no Python with brevitas"),
]
CLIENT = """
import json, sys, torch
from torch import nn
import brevitas.nn as qnn
from brevitas.export import export_qonnx
from brevitas.quant import Int32Bias
from brevitas_examples.bnn_pynq.models import model_with_cfg

name, shape = json.loads(sys.argv[1])
torch.manual_seed(0)
if name == "convolutions":
    relus = [qnn.QuantReLU(bit_width=4, return_quant_tensor=True) for _ in range(2)]
    model = nn.Sequential(
        qnn.QuantIdentity(bit_width=8, return_quant_tensor=True),
        qnn.QuantConv2d(1, 8, 3, bias=True, weight_bit_width=4, bias_quant=Int32Bias),
        nn.BatchNorm2d(8), relus[0], nn.MaxPool2d(2), nn.Flatten(),
        qnn.QuantLinear(72, 16, bias=True, weight_bit_width=4), relus[1],
        qnn.QuantLinear(16, 10, bias=False, weight_bit_width=8),
    )
else:
    model, _ = model_with_cfg(name, False)
model.train()
for _ in range(5):
    model(torch.rand(16, *shape))
model.eval()
x = torch.rand(9, *shape)
export_qonnx(model, x[:1], export_path="model.onnx", dynamo=False)
with torch.no_grad():
    y = model(x)
torch.save((x, getattr(y, "value", y)), "expected.pt")
"""
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "export-qonnx.md"
DIGITS, PICTURES = (1, 28, 28), (3, 32, 32)
MODELS = {
    "convolutions": (1, 8, 8),
    **dict.fromkeys(("TFC_1W1A", "TFC_1W2A", "TFC_2W2A", "LFC_1W1A"), DIGITS),
    **dict.fromkeys(("CNV_1W1A", "CNV_2W2A"), PICTURES),
}


def test_the_guide_writes_a_file_that_is_read(tmp_path):
    (program,) = re.findall(
        r"```py\n(import torch\nfrom brevitas.*?)```", PAGE.read_text(), re.DOTALL
    )
    subprocess.run([PYTHON, "-c", program], cwd=tmp_path, check=True, capture_output=True)
    mg = read_graph(tmp_path / "tfc.onnx")
    (name,) = (str(node.target) for node in mg.nodes if node.op == "placeholder")
    assert mg.model(**{name: torch.rand(2, 1, 28, 28)}).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_files_compute_the_model(name, tmp_path):
    settings = json.dumps([name, MODELS[name]])
    done = subprocess.run(
        [PYTHON, "-c", CLIENT, settings], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    x, y = torch.load(tmp_path / "expected.pt")
    mg = read_graph(tmp_path / "model.onnx")
    with torch.no_grad():
        torch.testing.assert_close(mg.model(x), y, rtol=1e-5, atol=1e-5)
    (name,) = (str(node.target) for node in mg.nodes if node.op == "placeholder")
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    integer, info = passes.lower_to_integer_transform_pass(mg, {"batches": [{name: x}]})
    *inner, last = info["operators"]
    assert {row["name"]: row["different"] for row in inner if row["different"]} == {}
    assert last["codes"] == y.numel()  # floats, whose scales are rounded
    torch.testing.assert_close(integer.model(x), y, rtol=1e-4, atol=1e-4)
    assert len(list(read_module(tmp_path / "model.onnx").children())) >= 6
