// Width converter to fewer lanes: splits a beat into IN_LANES / OUT_LANES beats, lowest lanes
// first.
//
// Input:   IN_LANES codes of W bits. IN_LANES is a multiple of OUT_LANES.
// Output:  OUT_LANES codes of W bits.
// Timing:  one output beat per cycle.
module chop_downsize #(
  parameter int W         = 8,
  parameter int IN_LANES  = 2,
  parameter int OUT_LANES = 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [IN_LANES*W-1:0]  data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [OUT_LANES*W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  localparam int RATIO   = IN_LANES / OUT_LANES;
  localparam int COUNT_W = $clog2(RATIO + 1);

  if (IN_LANES % OUT_LANES != 0) begin : g_refused
    initial $fatal(1, "chop_downsize: IN_LANES is a multiple of OUT_LANES");
  end

  logic [IN_LANES*W-1:0] rest_q;
  logic [COUNT_W-1:0] left_q;

  assign data_out_0_o       = rest_q[OUT_LANES*W-1:0];
  assign data_out_0_valid_o = (left_q != '0);
  // A new beat enters in the cycle in which the last part of the previous one leaves.
  assign data_in_0_ready_o  = (left_q == '0) || ((left_q == COUNT_W'(1)) && data_out_0_ready_i);

  always_ff @(posedge clk_i) begin
    if (data_in_0_ready_o) rest_q <= data_in_0_i;
    else if (data_out_0_ready_i) rest_q <= rest_q >> (OUT_LANES * W);
    if (!rst_ni) left_q <= '0;
    else if (data_in_0_ready_o) left_q <= data_in_0_valid_i ? COUNT_W'(RATIO) : '0;
    else if (data_out_0_ready_i) left_q <= left_q - COUNT_W'(1);
  end
endmodule
