// Dot product of N pairs of small floats, exact: each product is shifted to its place in a fixed
// grid. With the exponent of each side's block it is that of MXFP8.
module dot_small_float #(
  parameter int N = 32,
  parameter int E = 4,
  parameter int M = 3,
  localparam int W = 1 + E + M,
  localparam int PRODUCT = 2 * M + 2,
  localparam int TERM = PRODUCT + 2 * ((1 << E) - 2) + 1,
  localparam int SUM = TERM + $clog2(N)
) (
  input  logic [N*W-1:0] a_i,
  input  logic [N*W-1:0] b_i,
  input  logic [7:0] a_exponent_i,
  input  logic [7:0] b_exponent_i,
  output logic [SUM-1:0] sum_o,
  output logic [8:0] exponent_o
);
  logic [N*TERM-1:0] terms;
  for (genvar k = 0; k < N; k++) begin : gen_lane
    logic sign;
    logic [PRODUCT-1:0] mantissa;
    logic [E:0] exponent;
    float_product #(.E(E), .M(M)) product (
      .a_i(a_i[k*W +: W]), .b_i(b_i[k*W +: W]),
      .sign_o(sign), .mantissa_o(mantissa), .exponent_o(exponent)
    );
    left_shift #(.P(PRODUCT), .E(E + 1), .T(TERM)) place (
      .sign_i(sign), .mantissa_i(mantissa), .exponent_i(exponent), .term_o(terms[k*TERM +: TERM])
    );
  end
  adder_tree #(.N(N), .W(TERM)) tree (.terms_i(terms), .sum_o(sum_o));
  block_exponent #(.W(8)) scale (.a_i(a_exponent_i), .b_i(b_exponent_i), .sum_o(exponent_o));
endmodule
