"""Projects run from any folder: their files start in one, which is a parameter."""

import re
import subprocess

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.hardware.check import testbench as bench
from chop.hardware.design.plan import RTL
from chop.hardware.plans import constant_linear

pytestmark = pytest.mark.tools("iverilog", "yosys")
SIMULATION_ONLY = re.compile(r"chop_(stream_|stall)")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere") / "a"
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)), dummy_in={"input": torch.randn(3, 4)})
    fixed = {"config": {"name": "integer", "width": 4, "frac_width": 2}}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": fixed})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constant_linear, "MOST_WEIGHTS", 0)  # weights in files
        for name in ("verilog_top", "internal_rtl", "bram", "cocotb"):
            getattr(passes, f"emit_{name}_transform_pass")(quantized, {"project_dir": folder})
    return folder


def sources(folder):
    return sorted([*folder.glob("rtl/*.sv"), *folder.glob("testbench/*.sv")])


def test_a_testbench_of_another_folder_names_all_files_that_it_lacks(project, tmp_path):
    bench.compile_testbench(tmp_path, sources(project), "out")
    run = bench.run_testbench(tmp_path, "out")
    files = [*project.glob("memory/*.hex"), *project.glob("vectors/*.hex")]
    missing = {f"./{file.relative_to(project)}: not found" for file in files}
    assert not run.passed and len(missing) == 4 and missing <= set(run.log.splitlines())
    assert "give its path as FOLDER" in run.log


@pytest.mark.parametrize("path", ["{}", "../{0.name}"], ids=["whole", "relative"])
def test_the_folder_is_a_parameter(path, project, tmp_path):
    work = project.parent / tmp_path.name
    work.mkdir()
    given = f'-Ptestbench.FOLDER="{path.format(project)}"'
    bench.compile_testbench(work, [given, *sources(project)], "out")
    assert bench.run_testbench(work, "out", "uniform").passed


def test_yosys_reads_the_library_without_elaborating_a_design():
    files = [str(path) for path in RTL.glob("*.sv") if not SIMULATION_ONLY.match(path.name)]
    done = subprocess.run(
        ["yosys", "-q", "-p", f"read_verilog -sv {' '.join(files)}"], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr


def test_a_top_without_memories_has_no_parameter(tmp_path):
    mg = MaseGraph(nn.Sequential(nn.ReLU()), dummy_in={"input": torch.randn(3, 4)})
    fixed = {"config": {"name": "integer", "width": 4, "frac_width": 2}}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "relu": fixed})
    for name in ("verilog_top", "internal_rtl", "cocotb"):
        getattr(passes, f"emit_{name}_transform_pass")(quantized, {"project_dir": tmp_path})
    assert "FOLDER" not in (tmp_path / "rtl" / "top.sv").read_text()
    bench.compile_testbench(tmp_path, sources(tmp_path), "out")
    assert bench.run_testbench(tmp_path, "out").passed
