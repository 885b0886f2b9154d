// What the dot products are made of. Each is a module, so that its area can be told apart.
module signed_product #(
  parameter int W = 8
) (
  input  logic [W-1:0] a_i,
  input  logic [W-1:0] b_i,
  output logic [2*W-1:0] product_o
);
  assign product_o = $signed(a_i) * $signed(b_i);
endmodule

module mantissa_product #(
  parameter int W = 8
) (
  input  logic [W-1:0] a_i,
  input  logic [W-1:0] b_i,
  output logic [2*W-1:0] product_o
);
  assign product_o = a_i * b_i;
endmodule

// The sum of two exponents; a subnormal number has that of the smallest normal ones.
module exponent_sum #(
  parameter int E = 8
) (
  input  logic [E-1:0] a_i,
  input  logic [E-1:0] b_i,
  output logic [E:0] sum_o
);
  logic [E-1:0] a, b;
  assign a = {a_i[E-1:1], a_i[0] | ~(|a_i)};
  assign b = {b_i[E-1:1], b_i[0] | ~(|b_i)};
  assign sum_o = a + b;
endmodule

module float_product #(
  parameter int E = 8,
  parameter int M = 7
) (
  input  logic [E+M:0] a_i,
  input  logic [E+M:0] b_i,
  output logic sign_o,
  output logic [2*M+1:0] mantissa_o,
  output logic [E:0] exponent_o
);
  assign sign_o = a_i[E+M] ^ b_i[E+M];
  exponent_sum #(.E(E)) exponents (.a_i(a_i[M +: E]), .b_i(b_i[M +: E]), .sum_o(exponent_o));
  mantissa_product #(.W(M + 1)) mantissas (
    .a_i({|a_i[M +: E], a_i[M-1:0]}), .b_i({|b_i[M +: E], b_i[M-1:0]}), .product_o(mantissa_o)
  );
endmodule

module block_exponent #(
  parameter int W = 8
) (
  input  logic [W-1:0] a_i,
  input  logic [W-1:0] b_i,
  output logic [W:0] sum_o
);
  assign sum_o = a_i + b_i;
endmodule

module left_shift #(
  parameter int P = 8,
  parameter int E = 5,
  parameter int T = 37
) (
  input  logic sign_i,
  input  logic [P-1:0] mantissa_i,
  input  logic [E-1:0] exponent_i,
  output logic [T-1:0] term_o
);
  logic [E-1:0] places;
  logic [T-1:0] shifted;
  assign places = exponent_i - E'(2);
  assign shifted = T'(mantissa_i) << places;
  assign term_o = sign_i ? -shifted : shifted;
endmodule

module right_shift #(
  parameter int P = 16,
  parameter int E = 9,
  parameter int WINDOW = 24
) (
  input  logic sign_i,
  input  logic [P-1:0] mantissa_i,
  input  logic [E-1:0] exponent_i,
  input  logic [E-1:0] largest_i,
  output logic [WINDOW:0] term_o
);
  logic [E-1:0] places;
  logic [WINDOW-1:0] whole, shifted;
  assign places = largest_i - exponent_i;
  assign whole = {mantissa_i, {(WINDOW - P) {1'b0}}};
  assign shifted = whole >> places;
  assign term_o = sign_i ? -{1'b0, shifted} : {1'b0, shifted};
endmodule

module largest_exponent #(
  parameter int N = 32,
  parameter int W = 9
) (
  input  logic [N*W-1:0] exponents_i,
  output logic [W-1:0] largest_o
);
  // A tree: level by level the larger of two, in a heap of 2N - 1 places.
  logic [(2*N-1)*W-1:0] heap;
  assign heap[(N-1)*W +: N*W] = exponents_i;
  for (genvar k = 0; k < N - 1; k++) begin : gen_larger
    logic [W-1:0] left, right;
    assign left = heap[(2*k+1)*W +: W];
    assign right = heap[(2*k+2)*W +: W];
    assign heap[k*W +: W] = left > right ? left : right;
  end
  assign largest_o = heap[0 +: W];
endmodule

module adder_tree #(
  parameter int N = 32,
  parameter int W = 16,
  localparam int LEVELS = $clog2(N),
  localparam int SUM = W + LEVELS
) (
  input  logic [N*W-1:0] terms_i,
  output logic [SUM-1:0] sum_o
);
  for (genvar l = 0; l <= LEVELS; l++) begin : gen_level
    localparam int V = W + l;
    logic [(N>>l)*V-1:0] sums;
    if (l == 0) begin : gen_leaves
      assign sums = terms_i;
    end else begin : gen_sums
      for (genvar k = 0; k < (N >> l); k++) begin : gen_sum
        logic [V-1:0] left, right;
        assign left = V'($signed(gen_level[l-1].sums[2*k*(V-1) +: V-1]));
        assign right = V'($signed(gen_level[l-1].sums[(2*k+1)*(V-1) +: V-1]));
        assign sums[k*V +: V] = left + right;
      end
    end
  end
  assign sum_o = gen_level[LEVELS].sums;
endmodule
