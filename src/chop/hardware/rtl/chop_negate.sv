// Negation on each lane: y = -x, or y = |x| if MAGNITUDE is 1.
//
// Input:   LANES codes of IN_W bits in any order.
// Output:  LANES codes of OUT_W bits in the same order.
// Timing:  one beat per cycle; one register.
module chop_negate #(
  parameter int LANES     = 1,
  parameter int IN_W      = 8,
  parameter int OUT_W     = 8,
  parameter int MAGNITUDE = 0
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
    logic signed [IN_W-1:0] x;
    logic unused;  // the highest bit, if -2^n is not an input code
    assign unused = &{1'b0, x};
    assign x = data_in_0_i[i*IN_W +: IN_W];
    always_ff @(posedge clk_i) begin
      if (data_in_0_ready_o)
        data_out_0_o[i*OUT_W +: OUT_W] <= MAGNITUDE != 0 && x >= 0 ? OUT_W'(x) : -(OUT_W'(x));
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
  end
endmodule
