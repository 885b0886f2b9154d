// Requantizer without a multiplier: y = sat(round(x / 2^SHIFT)) of a whole sample in a beat.
//
// Input:   LANES codes x of IN_W bits.
// Output:  LANES codes y of OUT_W bits from LOW to HIGH.
// Timing:  one beat per cycle; latency one cycle. The reader's buffer registers saturated codes.
//
// SHIFT, LOW, HIGH and ROUNDING are parameters of chop_round_saturate.
module chop_round #(
  parameter int LANES    = 1,
  parameter int IN_W     = 16,
  parameter int OUT_W    = 8,
  parameter int SHIFT    = 0,
  parameter     LOW      = -128,
  parameter     HIGH     = 127,
  parameter int ROUNDING = 0
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
  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    chop_round_saturate #(
      .IN_W(IN_W), .SHIFT(SHIFT), .OUT_W(OUT_W), .LOW(LOW), .HIGH(HIGH), .ROUNDING(ROUNDING),
      .STAGES(1)
    ) u_round (
      .clk_i, .en_i(data_in_0_ready_o), .v_i(data_in_0_i[i*IN_W +: IN_W]),
      .y_o(data_out_0_o[i*OUT_W +: OUT_W]));
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
  end
endmodule
