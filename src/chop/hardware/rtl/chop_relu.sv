// ReLU on each lane: y = max(x, 0).
//
// Input:   LANES codes of IN_W bits in any order.
// Output:  LANES codes of OUT_W bits in the same order.
// Timing:  one beat per cycle; one register, or none if REGISTERED is 0.
module chop_relu #(
  parameter int LANES = 1,
  parameter int IN_W  = 8,
  parameter int OUT_W = 8,
  parameter bit REGISTERED = 1'b1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [LANES*IN_W-1:0]  data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  logic [LANES*OUT_W-1:0] y;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_W-1:0] x;
    assign x = data_in_0_i[i*IN_W +: IN_W];
    assign y[i*OUT_W +: OUT_W] = x[IN_W-1] ? '0 : OUT_W'(x);
  end

  if (REGISTERED) begin : g_register
    assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;
    always_ff @(posedge clk_i) begin
      if (data_in_0_ready_o) data_out_0_o <= y;
      if (!rst_ni) data_out_0_valid_o <= 1'b0;
      else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
    end
  end else begin : g_wires
    logic unused;
    assign data_out_0_o       = y;
    assign data_out_0_valid_o = data_in_0_valid_i;
    assign data_in_0_ready_o  = data_out_0_ready_i;
    assign unused             = &{1'b0, clk_i, rst_ni};
  end
endmodule
