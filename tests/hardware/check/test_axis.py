"""AXI4-Stream ports of a circuit: widths, tlast, tkeep, padding and stalls in both simulators."""

import shutil

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import VerificationError
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import describe_project
from chop.hardware.check.testbench import compile_testbench, run_testbench
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Check, check_sources, run_check
from chop.hardware.design.axis import with_axi_ports
from chop.hardware.design.emit import emit
from chop.integer.golden import golden_values

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys", "c++")
SAMPLES = 6
SIMULATORS = ["icarus", pytest.param("verilator", marks=pytest.mark.long)]
FORMAT = {"config": {"name": "integer", "width": 6, "frac_width": 3}}


class Two(nn.Module):
    """Two inputs and two outputs of different widths and beats."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x, y):
        hidden = self.first(x) + y
        return hidden, self.last(hidden.relu())


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """A folder with a wrapped circuit, its project and its codes; not to be changed."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(SAMPLES, 6), "y": torch.randn(SAMPLES, 4)}
    mg = MaseGraph(Two(), dummy_in=batch)
    quantized, _ = passes.quantize_transform_pass(
        mg, {"by": "type", "linear": FORMAT, "relu": FORMAT, "add": FORMAT}
    )
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    design = with_axi_ports(emit(integer, 12), "axi-stream")
    folder, project = tmp_path_factory.mktemp("axis"), describe_project(design)
    codes = get_codes(project, golden_values(integer, batch))
    write_circuit(design, codes, folder)
    return folder, project, codes


def test_data_have_whole_bytes_and_outputs_have_tlast_and_tkeep(wrapped):
    folder, project, _ = wrapped
    text = (folder / "rtl" / "top_axis.sv").read_text()
    assert {port.is_input for port in project.ports} == {True, False}
    assert any(port.bits % 8 for port in project.ports) and len(project.ports) == 4
    for port in project.ports:
        name, ahead = (f"{'s' if port.is_input else 'm'}_axis_{port.name}"), port.is_input
        width = -(-port.lanes * port.width // 8) * 8
        way, back = ("input ", "output") if ahead else ("output", "input ")
        assert f"{way} logic [{width - 1}:0] {name}_tdata,\n" in text
        assert f"{way} logic {name}_tvalid,\n" in text and f"{back} logic {name}_tready,\n" in text
        assert f"{way} logic {name}_tlast,\n" in text
        assert (f"output logic [{width // 8 - 1}:0] {name}_tkeep,\n" in text) == (not ahead)


def test_no_tool_complains_about_the_wrapper(wrapped):
    folder, project, _ = wrapped
    assert project.wrapper == "top_axis"
    check_sources(folder, project)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.sampled(1)
def test_every_output_is_equal_through_the_wrapper(wrapped, simulator, profile):
    folder, project, codes = wrapped
    result = run_check(folder, project, codes, Check(simulator, profile, SAMPLES, 3))
    sizes = [port.beats * port.lanes for port in project.ports if not port.is_input]
    assert result.equal == SAMPLES * sum(sizes)


def test_the_written_testbench_tests_the_wrapper(wrapped, tmp_path):
    folder, _, _ = wrapped
    copy = shutil.copytree(folder, tmp_path / "copy")
    files = sorted([*copy.glob("rtl/*.sv"), *copy.glob("testbench/*.sv")])
    compile_testbench(copy, files, "out")
    assert run_testbench(copy, "out", "uniform").passed
    assert "top_axis" in (copy / "testbench" / "testbench.sv").read_text()


FAULTS = {
    "early_tlast": ("chop_axis_beats", "COUNT_W'(BEATS - 1)", "COUNT_W'(BEATS - 2)"),
    "padding": ("chop_axis_out", "TDATA_W'(data_i)", "TDATA_W'($signed(data_i))"),
    "tkeep": ("chop_axis_out", "tkeep_o  = '1", "tkeep_o  = '0"),
    "ignored_tlast": ("chop_axis_in", "(tlast_i != last)", "(tlast_i == last)"),
}


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize(("module", "old", "new"), FAULTS.values(), ids=FAULTS)
@pytest.mark.sampled(1)
def test_a_planted_fault_is_found(wrapped, tmp_path, simulator, module, old, new):
    folder, project, codes = wrapped
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "rtl" / f"{module}.sv"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(VerificationError, match="broke the rules of AXI4-Stream"):
        run_check(copy, project, codes, Check(simulator, PROFILES[1], SAMPLES, 1))
