"""The SoC of `examples/litex` in Verilator: its CPU prints the codes of the integer graph.

`CHOP_LITEX` names the Python of an environment of its own that has LiteX and zig's C compiler.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from chop import MaseGraph, passes
from chop.actions.emit.job import emit as emit_job
from chop.actions.emit.settings import EmitConfig
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.costs.board import write_board
from chop.hardware.design.axis import with_axi_ports
from chop.hardware.design.emit import emit
from chop.integer.golden import GOLDEN, golden_values

SOC = Path(__file__).resolve().parents[2] / "examples/litex/soc.py"
PYTHON = os.environ.get("CHOP_LITEX", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason="CHOP_LITEX names no Python with litex and ziglang"),
    pytest.mark.tools("verilator", "iverilog", "yosys", "c++"),
]
FORMAT = {"config": {"name": "integer", "width": 6, "frac_width": 3}}
LINE = re.compile(r"sample (\d+), (\w+): class (\d+), codes ([-\d ]+)")


class Two(nn.Module):
    """An image and a vector; two results, one with channels last in its stream."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 6, 3), nn.Linear(24, 5)

    def forward(self, x, y):
        features = self.conv(x)
        return features, self.last(features.relu().flatten(1)) + y


def test_the_page_shows_lines_that_the_cpu_prints():
    page = SOC.parents[2] / "docs/guide/circuit-soc.md"
    (block,) = re.findall(r"```text\n(.*?)\n```", page.read_text(), re.S)
    assert all(LINE.fullmatch(line) for line in block.splitlines())


def printed(folder, samples):
    """Runs the SoC; returns the classes and codes that its CPU prints, by port and sample."""
    command = [PYTHON, str(SOC), str(folder), "--samples", str(samples), "--out"]
    done = subprocess.run(
        [*command, str(folder / "soc")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, end, cycles = done.stdout.splitlines()
    assert end == "done" and re.fullmatch(r"\d+ cycles", cycles)
    found = [LINE.fullmatch(line).groups() for line in lines]
    return {
        (name, int(sample)): (int(label), [int(code) for code in codes.split()])
        for sample, name, label, codes in found
    }


def test_the_cpu_prints_the_classes_of_digits(tmp_path):
    settings = {"wrap": "axi-stream", "fold": 512, "icarus_samples": 0, "synthesis": False}
    out = tmp_path / "circuit"
    result = emit_job(EmitConfig(model="mlp", samples=12, out=out, **settings))
    golden = load_file(out / GOLDEN)
    (codes,) = [value for name, value in golden.items() if name.startswith("received.")]
    assert codes.shape == (12, 10) and result["accuracy"]["integer"] > 0.8
    rows = printed(out, 12)
    assert len(rows) == 12
    for (_, sample), (label, found) in rows.items():
        assert found == codes[sample].tolist() and label == int(codes[sample].argmax())


def test_several_ports_with_orders_of_their_own(tmp_path):
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 2, 4, 4), "y": torch.randn(4, 5)}
    mg = MaseGraph(Two(), dummy_in=batch)
    kinds = ("conv2d", "linear", "relu", "add")
    quantized, _ = passes.quantize_transform_pass(
        mg, {"by": "type", **dict.fromkeys(kinds, FORMAT)}
    )
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    design = with_axi_ports(emit(integer, 12), "axi-stream")
    project = describe_project(design)
    codes = get_codes(project, golden_values(integer, batch))
    write_circuit(design, codes, tmp_path)
    write_board(tmp_path, project, 50.0, "ecp5-85")
    assert "chop_order_" in (tmp_path / "board/chop_circuit.h").read_text()
    assert any(port.bits > 32 for port in project.ports)
    rows = printed(tmp_path, 4)
    outputs = [port.name for port in project.ports if not port.is_input]
    assert len(outputs) == 2 and len(rows) == 8
    for name in outputs:
        for sample in range(4):
            assert rows[name, sample][1] == codes[name][sample].flatten().tolist()


@pytest.mark.parametrize(
    "settings", [{"wrapper": ""}, {"wrapper": "top_axi_lite"}, {"loaded_words": 12}]
)
def test_circuits_with_other_ports_are_refused(tmp_path, settings):
    design = {"wrapper": "top_axis", "loaded_words": 0, "ports": [], **settings}
    (tmp_path / "design.json").write_text(json.dumps(design))
    command = [PYTHON, str(SOC), str(tmp_path), "--out", str(tmp_path / "soc")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "emit it with --wrap axi-stream and --weight-memory fixed" in done.stderr
