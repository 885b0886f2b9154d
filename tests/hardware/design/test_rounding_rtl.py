"""The rounding primitive, for every input."""

import pytest
import torch

from chop.hardware.design.port import Port
from chop.nn.integer import shift_and_saturate
from chop.nn.integer.edge import bit_width
from tests.hardware.bench import check_module, needs_tools

pytestmark = needs_tools
REGISTERED = """module chop_rounded #(
  parameter int IN_W = 8, parameter int SHIFT = 0, parameter int OUT_W = 8,
  parameter LOW = 0, parameter HIGH = 0, parameter int ROUNDING = 0
) (
  input logic clk_i, input logic rst_ni,
  input logic [IN_W-1:0] data_in_0_i, input logic data_in_0_valid_i,
  output logic data_in_0_ready_o,
  output logic [OUT_W-1:0] data_out_0_o, output logic data_out_0_valid_o,
  input logic data_out_0_ready_i
);
  logic signed [OUT_W-1:0] y;
  logic [2:0] valid_q;
  logic enters;
  assign enters = data_in_0_valid_i && data_in_0_ready_o;
  always_ff @(posedge clk_i) valid_q <= rst_ni ? {valid_q[1:0], enters} : '0;
  chop_round_saturate #(.IN_W(IN_W), .SHIFT(SHIFT), .OUT_W(OUT_W), .LOW(LOW), .HIGH(HIGH),
    .ROUNDING(ROUNDING)) u_round (.clk_i, .en_i(1'b1), .v_i(data_in_0_i), .y_o(y));
  chop_credits #(.W(OUT_W), .LATENCY(3)) u_results (
    .clk_i, .rst_ni, .starts_i(enters), .ready_o(data_in_0_ready_o), .data_i(y),
    .valid_i(valid_q[2]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
"""


def check_rounding(tmp_path, v, width, shift, low, high, rounding):
    (tmp_path / "chop_rounded.sv").write_text(REGISTERED)
    y = shift_and_saturate(v, shift, low, high, rounding)
    out_width = bit_width(low, high)
    parameters = {"IN_W": width, "SHIFT": shift, "OUT_W": out_width, "LOW": low, "HIGH": high}
    parameters["ROUNDING"] = int(rounding == "floor")
    ports = {
        Port("data_in_0", 1, width, 1, True): v[:, None],
        Port("data_out_0", 1, out_width, 1, False): y[:, None],
    }
    check_module("chop_rounded", parameters, ports, profiles=("none",), folder=tmp_path)


@pytest.mark.parametrize("rounding", ["nearest_even", "floor"])
@pytest.mark.parametrize(
    ("width", "shift", "low", "high"),
    [
        (11, 4, -128, 127),
        (11, 3, -8, 7),
        (10, 1, -511, 511),
        (9, 0, -100, 99),
        (9, 0, -1000, 1000),
        (8, 7, -2, 1),
        (8, 8, -1, 1),
        (8, 9, -5, 5),
        (8, 70, -5, 5),
        (7, -2, -100, 90),
        (7, -3, -1000, 1000),
        (7, -20, -100, 101),
        (7, -70, -3, 3),
        (1, 1, -1, 1),
        (1, 0, -1, 0),
        (9, 2, 5, 20),
        (9, 2, -20, -5),
        (9, -1, 3, 21),
    ],
)
@pytest.mark.sampled(1)
def test_every_input(width, shift, low, high, rounding, tmp_path):
    v = torch.arange(-(2 ** (width - 1)), 2 ** (width - 1))
    check_rounding(tmp_path, v, width, shift, low, high, rounding)


@pytest.mark.parametrize("rounding", ["nearest_even", "floor"])
@pytest.mark.parametrize(
    ("width", "shift", "low", "high"),
    [(62, 40, -(2**15), 2**15 - 1), (62, 1, -(2**60), 2**60), (40, -20, -(2**59), 2**59 - 1)],
)
@pytest.mark.sampled(1)
def test_wide_integers(width, shift, low, high, rounding, tmp_path):
    generator = torch.Generator().manual_seed(width)
    top = 2 ** (width - 1)
    v = torch.randint(-top, top, (200,), generator=generator)
    near = v >> max(shift, 1) << max(shift, 1)
    half = 1 << max(shift, 1) - 1
    ends = torch.tensor([-top, top - 1, 0, -1, 1])
    v = torch.cat((v, near, near | half, near | half - 1, (v >> 20), ends))
    v = torch.cat((v, (v >> 30)))
    check_rounding(tmp_path, v, width, shift, low, high, rounding)
