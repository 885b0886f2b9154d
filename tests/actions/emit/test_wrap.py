"""Circuits with AXI4-Stream ports: report, folder and repeated checks."""

import json
import shutil

import pytest

from chop.actions.emit.check import check_again
from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.config import parse
from chop.errors import ConfigError, VerificationError
from tests.actions.emit.circuits import SETTINGS, workload


def test_other_wrappers_are_refused_with_the_choices():
    with pytest.raises(ConfigError, match="got 'axi': choose from: axi-lite, axi-stream, none"):
        parse(EmitConfig, {"wrap": "axi"})
    assert parse(EmitConfig, {"wrap": "axi-stream"}).wrap == "axi-stream"


@pytest.mark.long
@pytest.mark.tools("verilator", "iverilog", "yosys")
def test_a_wrapped_circuit_is_verified_reported_and_checked_again(tmp_path):
    out = tmp_path / "out"
    settings = SETTINGS | {"samples": 4, "wrap": "axi-stream", "shrink_fifos": True}
    result = emit(EmitConfig(out=out, **settings), workload())
    assert json.loads((out / "design.json").read_text())["wrapper"] == "top_axis"
    (port, *_) = json.loads((out / "design.json").read_text())["ports"]
    report = (out / "report.md").read_text()
    bits = port["lanes"] * port["width"]
    row = f"| x | s_axis_x_* | {-(-bits // 8) * 8} | {-bits % 8} | {port['beats']} |"
    assert "rtl/top_axis.sv has the same ports" in report and row in report
    assert len(check_again(EmitConfig(out=out, check_only=True))["verification"]) == len(
        result["verification"]
    )
    copy = shutil.copytree(out, tmp_path / "copy")
    # Results of synthesis tools in the folder are no part of the circuit; other files are refused.
    (copy / "board" / "build").mkdir()
    (copy / "board" / "build" / "top_axis.json").write_text("{}")
    (copy / "board" / "own.tcl").write_text("")
    with pytest.raises(VerificationError, match="own.tcl' is not in the manifest"):
        check_again(EmitConfig(out=copy, check_only=True))
    (copy / "board" / "own.tcl").unlink()
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"wrap": "axi-stream"', '"wrap": "none"'))
    with pytest.raises(VerificationError, match="top_axis"):
        check_again(EmitConfig(out=copy, check_only=True))
