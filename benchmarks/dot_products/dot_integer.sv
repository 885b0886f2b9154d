// Dot product of N pairs of W-bit integers: INT8, and MXINT8 with one exponent for each side.
module dot_integer #(
  parameter int N = 32,
  parameter int W = 8,
  parameter int EXPONENT = 8,  // bits of a block's exponent; 0: integers without a scale
  localparam int SUM = 2 * W + $clog2(N),
  localparam int E = EXPONENT > 0 ? EXPONENT : 1
) (
  input  logic [N*W-1:0] a_i,
  input  logic [N*W-1:0] b_i,
  input  logic [E-1:0] a_exponent_i,
  input  logic [E-1:0] b_exponent_i,
  output logic [SUM-1:0] sum_o,
  output logic [E:0] exponent_o
);
  logic [N*2*W-1:0] products;
  for (genvar k = 0; k < N; k++) begin : gen_lane
    signed_product #(.W(W)) product (
      .a_i(a_i[k*W +: W]), .b_i(b_i[k*W +: W]), .product_o(products[k*2*W +: 2*W])
    );
  end
  adder_tree #(.N(N), .W(2 * W)) tree (.terms_i(products), .sum_o(sum_o));
  if (EXPONENT > 0) begin : gen_scale
    block_exponent #(.W(E)) scale (
      .a_i(a_exponent_i), .b_i(b_exponent_i), .sum_o(exponent_o)
    );
  end else begin : gen_no_scale
    assign exponent_o = '0;
  end
endmodule
