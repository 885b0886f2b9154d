// Product on each lane: y = a b.
//
// Input 0: LANES codes a of IN_0_W bits.
// Input 1: LANES codes b of IN_1_W bits, in the same order.
// Output:  LANES codes y of OUT_W bits, wide enough for every result.
// Timing:  one beat per cycle; one register.
module chop_mul #(
  parameter int LANES  = 1,
  parameter int IN_0_W = 8,
  parameter int IN_1_W = 8,
  parameter int OUT_W  = 16
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
    localparam int PRODUCT_W = IN_0_W + IN_1_W;
    logic signed [IN_0_W-1:0] a;
    logic signed [IN_1_W-1:0] b;
    assign a = data_in_0_i[i*IN_0_W +: IN_0_W];
    assign b = data_in_1_i[i*IN_1_W +: IN_1_W];
    always_ff @(posedge clk_i) begin
      if (moves) data_out_0_o[i*OUT_W +: OUT_W] <= OUT_W'(PRODUCT_W'(a) * PRODUCT_W'(b));
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (moves) data_out_0_valid_o <= data_in_0_valid_i && data_in_1_valid_i;
  end
endmodule
