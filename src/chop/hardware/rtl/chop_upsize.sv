// Width converter to more lanes: joins OUT_LANES / IN_LANES beats, the first one in the lowest
// lanes.
//
// Input:   IN_LANES codes of W bits.
// Output:  OUT_LANES codes of W bits. OUT_LANES is a multiple of IN_LANES.
// Timing:  one input beat per cycle.
module chop_upsize #(
  parameter int W         = 8,
  parameter int IN_LANES  = 1,
  parameter int OUT_LANES = 2
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
  localparam int RATIO   = OUT_LANES / IN_LANES;
  localparam int COUNT_W = (RATIO > 1) ? $clog2(RATIO) : 1;

  if (OUT_LANES % IN_LANES != 0) begin : g_refused
    initial $fatal(1, "chop_upsize: OUT_LANES is a multiple of IN_LANES");
  end

  logic [COUNT_W-1:0] count_q;
  logic takes, is_last;

  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;
  assign takes   = data_in_0_valid_i && data_in_0_ready_o;
  assign is_last = (count_q == COUNT_W'(RATIO - 1));

  always_ff @(posedge clk_i) begin
    // New codes enter at the top and move down, so the first beat ends up in the lowest lanes.
    if (takes)
      data_out_0_o <= (OUT_LANES * W)'({data_in_0_i, data_out_0_o} >> (IN_LANES * W));
    if (!rst_ni) begin
      count_q            <= '0;
      data_out_0_valid_o <= 1'b0;
    end else if (takes) begin
      count_q            <= is_last ? '0 : count_q + COUNT_W'(1);
      data_out_0_valid_o <= is_last;
    end else if (data_out_0_ready_i) begin
      data_out_0_valid_o <= 1'b0;
    end
  end
endmodule
