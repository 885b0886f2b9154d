"""A new operator becomes a circuit by one `.sv` file and one row of the component table."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.actions import simulate
from chop.errors import ConfigError, VerificationError
from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.emit import emit
from chop.hardware.design.lanes import fewest_lanes
from chop.hardware.design.plan import Component, ComponentPlan
from chop.ir.ops import Kind
from chop.nn.integer import Decode, Edge, Encode, Grid, IntegerOperator
from tests.hardware.bench import check, drawn, needs_tools

GRID = Grid(0.25, -128, 127)
SOURCE = """\
// Clip: y = min(max(x, -LIMIT), LIMIT).
module chop_clip #(
  parameter int LANES = 1,
  parameter int IN_W  = 8,
  parameter int OUT_W = 8,
  parameter int LIMIT = 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [LANES*IN_W-1:0]  data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_W-1:0] x;
    assign x = data_in_0_i[i*IN_W +: IN_W];
    always_ff @(posedge clk_i) begin
      if (data_in_0_ready_o) begin
        data_out_0_o[i*OUT_W +: OUT_W] <= OUT_W'(x);
        if (x > IN_W'(LIMIT)) data_out_0_o[i*OUT_W +: OUT_W] <= OUT_W'(LIMIT);
        if (x < IN_W'(-LIMIT)) data_out_0_o[i*OUT_W +: OUT_W] <= OUT_W'(-LIMIT);
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
  end
endmodule
"""


class IntegerClip(IntegerOperator):
    """Clip: y = min(max(x, -limit), limit)."""

    def __init__(self, read, limit):
        super().__init__(Edge(read.step, read.axis, -limit, limit))
        self.limit = limit

    def forward(self, codes):
        return codes.clamp(-self.limit, self.limit)


def plan_clip(site):
    read, operator = site.inputs[0], site.operator
    lanes = fewest_lanes(read.size, site.fold)
    out = read.of(operator.out).with_lanes(lanes)
    widths = {"IN_W": read.width, "OUT_W": out.width}
    parameters = {"LANES": lanes, **widths, "LIMIT": operator.limit}
    return ComponentPlan(parameters, (lanes,), out, out.beats, holds=(0.0,), buffers=(0,))


@pytest.fixture
def clip_row(tmp_path, monkeypatch):
    """Writes the source and adds the row; returns the path of the source."""
    path = tmp_path / "library" / "chop_clip.sv"
    path.parent.mkdir()
    path.write_text(SOURCE)
    row = Component(IntegerClip, "chop_clip", plan_clip, path.parent, kind=Kind.ACTIVATION)
    monkeypatch.setitem(COMPONENTS, "IntegerClip", row)
    return path


def clipping_graph(limit=37):
    """Encode, clip, decode; samples of 3 rows of 10 features."""
    clip = IntegerClip(GRID.edge, limit)
    model = nn.Sequential(Encode(GRID), clip, Decode(clip.out)).eval()
    x = torch.linspace(-40, 40, 60).view(2, 3, 10)
    leaves = {"modules": {kind: {} for kind in (Encode, IntegerClip, Decode)}}
    mg = MaseGraph(model, custom_ops=leaves, dummy_in={"input": x})
    return passes.add_common_metadata_analysis_pass(mg)[0], x


def written(folder):
    mg, x = clipping_graph()
    settings = {"project_dir": folder, "fold": 15, "top_name": "clipping"}
    _, info = passes.emit_verilog_top_transform_pass(mg, settings)
    assert info["components"] == 1 and info["interval"] == 15
    _, info = passes.emit_internal_rtl_transform_pass(mg, settings)
    assert {"chop_clip.sv", "chop_skid.sv"} <= set(info["modules"])
    passes.emit_cocotb_transform_pass(mg, {**settings, "batches": [{"input": x}]})
    return folder


@pytest.mark.sampled(1)
@needs_tools
@pytest.mark.parametrize(("shape", "limit", "fold"), [((17, 12), 100, 51), ((10,), 1, 1)], ids=str)
def test_its_module_is_checked_by_itself(clip_row, shape, limit, fold):
    plan = check(IntegerClip(GRID.edge, limit), drawn(GRID.edge, *shape), fold=fold)
    assert plan.cycles <= fold and plan.parameters["LIMIT"] == limit


@needs_tools
def test_a_graph_with_it_becomes_a_project_that_simulates(clip_row, tmp_path):
    folder = written(tmp_path / "project")
    assert (folder / "rtl" / "chop_clip.sv").read_text() == SOURCE
    found = simulate(project_dir=folder, simulator="icarus")["simulations"]
    assert [(row["profile"], row["equal"]) for row in found] == [("none", 60), ("uniform", 60)]


@needs_tools
@pytest.mark.long
def test_a_fault_in_its_module_is_found(clip_row, tmp_path):
    assert SOURCE.count("OUT_W'(-LIMIT)") == 1
    clip_row.write_text(SOURCE.replace("OUT_W'(-LIMIT)", "OUT_W'(1 - LIMIT)"))
    folder = written(tmp_path / "project")
    with pytest.raises(VerificationError, match=r"sample 0 .*-37.*-36"):
        simulate(project_dir=folder, simulator="icarus")


def test_without_a_row_it_is_refused_by_name():
    mg, _ = clipping_graph()
    with pytest.raises(ConfigError, match=r"no circuit for '.*' \(IntegerClip\)"):
        emit(mg)
