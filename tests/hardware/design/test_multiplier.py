"""Products in multipliers and in lookup tables, against those of the simulator and of operators."""

import pytest
import torch

from chop.hardware.design.plan import RTL
from chop.hardware.design.products import soft_levels
from chop.hardware.tools import run, tool_path
from chop.nn.integer import IntegerMatmul
from tests.hardware.bench import CompiledBench, check, drawn, needs_tools
from tests.hardware.design.test_conv import convolution, image
from tests.hardware.design.test_linear import EDGE, layer
from tests.hardware.design.test_matmul import SOME, head_by_head

pytestmark = needs_tools
BENCH = """
module bench;
  localparam int A_W = {a}, B_W = {b}, OUT_W = {out}, SOFT = {soft}, LATENCY = SOFT > 1 ? SOFT : 1;
  localparam int PAIRS = 1 << (A_W + B_W > 14 ? 14 : A_W + B_W);
  logic clk = 0;
  logic signed [A_W-1:0] a;
  logic signed [B_W-1:0] b;
  logic signed [OUT_W-1:0] y, expected [LATENCY+1];
  chop_multiplier #(.A_W(A_W), .B_W(B_W), .OUT_W(OUT_W), .SOFT(SOFT)) dut (
    .clk_i(clk), .a_i(a), .b_i(b), .y_o(y));
  initial begin
    for (int n = 0; n < PAIRS + LATENCY; n++) begin
      if (A_W + B_W > 14) begin
        a = n % 7 == 0 ? {{1'b1, {{A_W{{1'b0}}}}}} >> 1 : A_W'($urandom);
        b = n % 5 == 0 ? {{1'b1, {{B_W{{1'b0}}}}}} >> 1 : B_W'($urandom);
      end else begin
        {{a, b}} = (A_W + B_W)'(n);
      end
      for (int k = LATENCY; k > 0; k--) expected[k] = expected[k-1];
      expected[0] = OUT_W'(a) * OUT_W'(b);
      #1 clk = 1;
      #1 clk = 0;
      if (n >= LATENCY && y !== expected[LATENCY-1])
        $fatal(1, "%0d: %0d, not %0d", n, y, expected[LATENCY-1]);
    end
    $display("all %0d pairs are equal", PAIRS);
    $finish;
  end
endmodule
"""


TOP = """
module top (
  input logic clk_i, input logic signed [{a}-1:0] a_i, input logic signed [{b}-1:0] b_i,
  output logic signed [{out}-1:0] y_o
);
  chop_multiplier #(.A_W({a}), .B_W({b}), .OUT_W({out}), .SOFT({soft})) u_product (
    .clk_i, .a_i, .b_i, .y_o);
endmodule
"""


@pytest.mark.parametrize(
    "widths", [(8, 8), (1, 1), (2, 1), (1, 3), (5, 3), (4, 7), (2, 2), (9, 5), (18, 17), (33, 6)]
)
@pytest.mark.parametrize("narrow", [0, 3])
@pytest.mark.parametrize("is_soft", [True, False])
@pytest.mark.sampled(1)
def test_a_product_is_that_of_the_simulator(widths, narrow, is_soft, tmp_path):
    """All pairs of narrow factors, random ones and the least numbers of wide ones."""
    a, b = widths
    soft, out = soft_levels(a, b) if is_soft else 0, max(a + b - narrow, 1)
    source = RTL / "chop_multiplier.sv"
    (tmp_path / "bench.sv").write_text(BENCH.format(a=a, b=b, out=out, soft=soft))
    compiler = [tool_path("iverilog"), "-g2012", "-o", "bench.vvp", str(source), "bench.sv"]
    assert run(compiler, tmp_path, 60).returncode == 0
    found = run([tool_path("vvp"), "-n", "bench.vvp"], tmp_path, 60)
    assert found.returncode == 0 and "pairs are equal" in found.stdout, found.stdout
    (tmp_path / "top.sv").write_text(TOP.format(a=a, b=b, out=out, soft=soft))
    assert not CompiledBench(tmp_path, [source, "top.sv"]).complaints()


@pytest.mark.parametrize(
    ("weights", "fold"),
    [((-128, 127), 3 * 6), ((-8, 7), 3 * 48), ((-2, 1), 3), ((0, 2**11), 3 * 12)],
)
@pytest.mark.long
def test_a_layer_with_products_of_lookup_tables(weights, fold):
    plan = check(layer(6, 8, weights=weights), drawn(EDGE, 3, 8), fold=fold, is_soft=True)
    assert plan.resources.is_soft and plan.parameters["SOFT"] > 0


@pytest.mark.long
@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_of_streams_in_lookup_tables(transposed):
    places = head_by_head(2, 5, 6)
    if transposed:
        places = head_by_head(2, 5, 6).transpose(1, 2)
        b = drawn(EDGE, 2, 6, 5, positions=places, seed=1)
        a = drawn(EDGE, 2, 3, 6, positions=head_by_head(2, 3, 6))
    else:
        b = drawn(EDGE, 2, 5, 6, positions=places, seed=1)
        a = drawn(EDGE, 2, 3, 5, positions=head_by_head(2, 3, 5))
    plan = check(IntegerMatmul(EDGE, EDGE, 6), a, b, fold=2 * 3 * 15, profiles=SOME, is_soft=True)
    assert plan.parameters["TRANSPOSED"] == transposed and plan.parameters["SOFT"] == 3


@pytest.mark.long
def test_a_convolution_with_products_of_lookup_tables():
    operator = convolution(torch.nn.Conv2d(4, 6, 3, padding=1, groups=2), shift=1)
    plan = check(operator, image(EDGE, 4, 4, 4), fold=600, profiles=SOME, is_soft=True)
    assert plan.resources.is_soft and "SOFT" in plan.parameters
