// Dot product of N pairs of floats: products are aligned to the largest exponent, and what falls
// out of the window below is cut off.
module dot_float #(
  parameter int N = 32,
  parameter int E = 8,
  parameter int M = 7,
  parameter int WINDOW = 24,
  localparam int W = 1 + E + M,
  localparam int PRODUCT = 2 * M + 2,
  localparam int TERM = WINDOW + 1,
  localparam int SUM = TERM + $clog2(N)
) (
  input  logic [N*W-1:0] a_i,
  input  logic [N*W-1:0] b_i,
  output logic [SUM-1:0] sum_o,
  output logic [E:0] exponent_o
);
  logic [N*(E+1)-1:0] exponents;
  logic [N*TERM-1:0] terms;
  largest_exponent #(.N(N), .W(E + 1)) largest (
    .exponents_i(exponents), .largest_o(exponent_o)
  );
  for (genvar k = 0; k < N; k++) begin : gen_lane
    logic sign;
    logic [PRODUCT-1:0] mantissa;
    float_product #(.E(E), .M(M)) product (
      .a_i(a_i[k*W +: W]), .b_i(b_i[k*W +: W]),
      .sign_o(sign), .mantissa_o(mantissa), .exponent_o(exponents[k*(E+1) +: E+1])
    );
    right_shift #(.P(PRODUCT), .E(E + 1), .WINDOW(WINDOW)) align (
      .sign_i(sign), .mantissa_i(mantissa), .exponent_i(exponents[k*(E+1) +: E+1]),
      .largest_i(exponent_o), .term_o(terms[k*TERM +: TERM])
    );
  end
  adder_tree #(.N(N), .W(TERM)) tree (.terms_i(terms), .sum_o(sum_o));
endmodule
