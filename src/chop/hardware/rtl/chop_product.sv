// Product of two integers: y = a b, lowest OUT_W bits, from multipliers of at most 18 bits.
//
// Wider factors are split into parts of 17 bits. The highest part contains the sign.
//
// Timing:  latency 2 cycles while en_i is high. Pipeline: products of parts | their sum.
module chop_product #(
  parameter int A_W   = 8,
  parameter int B_W   = 8,
  parameter int OUT_W = 16
) (
  input  logic                    clk_i,
  input  logic                    en_i,
  input  logic signed [A_W-1:0]   a_i,
  input  logic signed [B_W-1:0]   b_i,
  output logic signed [OUT_W-1:0] y_o
);
  localparam int PART    = 17;
  localparam int A_PARTS = A_W > PART + 1 ? (A_W - 2) / PART + 1 : 1;
  localparam int B_PARTS = B_W > PART + 1 ? (B_W - 2) / PART + 1 : 1;
  localparam int PARTS   = A_PARTS * B_PARTS;

  logic [OUT_W-1:0] sum;
  logic [PARTS*OUT_W-1:0] terms;

  for (genvar i = 0; i < A_PARTS; i++) begin : g_a
    localparam int A_PART_W = i == A_PARTS - 1 ? A_W - i * PART : PART + 1;
    logic signed [A_PART_W-1:0] a;
    if (i == A_PARTS - 1) begin : g_highest
      assign a = a_i[A_W-1:i*PART];
    end else begin : g_lower
      assign a = {1'b0, a_i[i*PART +: PART]};
    end
    for (genvar j = 0; j < B_PARTS; j++) begin : g_b
      localparam int B_PART_W = j == B_PARTS - 1 ? B_W - j * PART : PART + 1;
      localparam int FULL_W   = A_PART_W + B_PART_W;
      logic signed [B_PART_W-1:0] b;
      logic signed [FULL_W-1:0] product_q;
      logic unused;  // bits beyond those of a narrow result
      assign unused = &{1'b0, product_q};
      if (j == B_PARTS - 1) begin : g_highest
        assign b = b_i[B_W-1:j*PART];
      end else begin : g_lower
        assign b = {1'b0, b_i[j*PART +: PART]};
      end
      always_ff @(posedge clk_i) if (en_i) product_q <= FULL_W'(a) * FULL_W'(b);
      assign terms[(i*B_PARTS+j)*OUT_W +: OUT_W] = OUT_W'(product_q) << ((i + j) * PART);
    end
  end

  always_comb begin
    sum = '0;
    for (int k = 0; k < PARTS; k++) sum = sum + terms[k*OUT_W +: OUT_W];
  end

  always_ff @(posedge clk_i) if (en_i) y_o <= sum;
endmodule
