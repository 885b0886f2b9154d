"""Rounding in Verilator, for every input: version 5.006 miscompiles some sums of a single bit."""

import pytest
import torch

from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import Project
from chop.hardware.check.simulate import simulate
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import sources
from chop.nn.integer import shift_and_saturate

pytestmark = pytest.mark.tools("verilator")
IN_W, OUT_W = 9, 8
ROUNDINGS = ("nearest_even", "floor")
SETS = [
    (shift, low, high, rounding)
    for rounding in ROUNDINGS
    for shift in (-1, 0, 1, 2, 3, 7, 8, 9, 10)
    for low, high in ((-128, 127), (-64, 127), (-5, 6))
]
LANES = 16
TEXT = """module top (
  input logic clk_i, input logic rst_ni,
  input logic [{last_in}:0] v_i, input logic v_valid_i, output logic v_ready_o,
  output logic [{last_out}:0] y_o, output logic y_valid_o, input logic y_ready_i
);
  logic [{last_set}:0] valid, ready;
  assign v_ready_o = ready[0];
  assign y_valid_o = valid[0];
{instances}endmodule
"""
INSTANCE = """  chop_requantize #(.LANES({lanes}), .IN_W({in_w}), .OUT_W({out_w}), .SHIFT({shift}),
    .LOW({low}), .HIGH({high}), .ROUNDING({rounding})) u_{k} (
    .clk_i, .rst_ni, .data_in_0_i(v_i), .data_in_0_valid_i(v_valid_i),
    .data_in_0_ready_o(ready[{k}]), .data_out_0_o(y_o[{k}*{lanes}*{out_w} +: {lanes}*{out_w}]),
    .data_out_0_valid_o(valid[{k}]), .data_out_0_ready_i(y_ready_i));
"""


@pytest.mark.long
def test_every_input_is_rounded_as_the_primitive_rounds_it(tmp_path):
    instances = "".join(
        INSTANCE.format(
            k=k,
            lanes=LANES,
            in_w=IN_W,
            out_w=OUT_W,
            shift=shift,
            low=low,
            high=high,
            rounding=ROUNDINGS.index(rounding),
        )
        for k, (shift, low, high, rounding) in enumerate(SETS)
    )
    text = TEXT.format(
        last_in=LANES * IN_W - 1,
        last_out=LANES * OUT_W * len(SETS) - 1,
        last_set=len(SETS) - 1,
        instances=instances,
    )
    (tmp_path / "rtl").mkdir()
    (tmp_path / "rtl" / "top.sv").write_text(text)
    for name, path in sources(text).items():
        (tmp_path / "rtl" / name).write_text(path.read_text())
    ports = (
        Port("v", LANES, IN_W, 1, True),
        Port("y", LANES * len(SETS), OUT_W, 1, False),
    )
    v = torch.arange(-(2 ** (IN_W - 1)), 2 ** (IN_W - 1)).view(-1, LANES)
    rounded = torch.cat([shift_and_saturate(v, *given) for given in SETS], 1)
    project = Project("top", ports, (), 1, {})
    found = simulate(tmp_path, project, {"v": v}, {"y": rounded}, PROFILES[0])
    assert found.passed and found.codes == v.numel() * len(SETS)
