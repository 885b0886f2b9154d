// Sum or difference on each lane: y = a 2^SHIFT_0 + b 2^SHIFT_1, or a 2^SHIFT_0 - b 2^SHIFT_1 if
// NEGATE is 1.
//
// Input 0: LANES codes a of IN_0_W bits.
// Input 1: LANES codes b of IN_1_W bits, in the same order.
// Output:  LANES codes y of OUT_W bits, wide enough for every result.
// Timing:  one beat per cycle; one register.
module chop_add #(
  parameter int LANES  = 1,
  parameter int IN_0_W = 8,
  parameter int IN_1_W = 8,
  parameter int OUT_W  = 9,
  parameter int SHIFT_0 = 0,
  parameter int SHIFT_1 = 0,
  parameter bit NEGATE  = 1'b0
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [LANES*IN_0_W-1:0] data_in_0_i,
  input  logic                    data_in_0_valid_i,
  output logic                    data_in_0_ready_o,
  input  logic [LANES*IN_1_W-1:0] data_in_1_i,
  input  logic                    data_in_1_valid_i,
  output logic                    data_in_1_ready_o,
  output logic [LANES*OUT_W-1:0]  data_out_0_o,
  output logic                    data_out_0_valid_o,
  input  logic                    data_out_0_ready_i
);
  logic moves;

  assign moves = !data_out_0_valid_o || data_out_0_ready_i;
  assign data_in_0_ready_o = moves && data_in_1_valid_i;
  assign data_in_1_ready_o = moves && data_in_0_valid_i;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_0_W-1:0] a;
    logic signed [IN_1_W-1:0] b;
    logic [OUT_W-1:0] shifted_a, shifted_b;
    assign a = data_in_0_i[i*IN_0_W +: IN_0_W];
    assign b = data_in_1_i[i*IN_1_W +: IN_1_W];
    assign shifted_a = OUT_W'(a) << SHIFT_0;
    assign shifted_b = OUT_W'(b) << SHIFT_1;
    always_ff @(posedge clk_i) begin
      if (moves)
        data_out_0_o[i*OUT_W +: OUT_W] <= NEGATE ? shifted_a - shifted_b : shifted_a + shifted_b;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (moves) data_out_0_valid_o <= data_in_0_valid_i && data_in_1_valid_i;
  end
endmodule
