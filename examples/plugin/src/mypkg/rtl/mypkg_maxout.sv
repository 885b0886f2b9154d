// Maxout: y[i] = max(x[2i], x[2i + 1]).
//
// in    2 * LANES codes of W bits
// out   LANES codes of W bits
// time  one beat per cycle, one register
module mypkg_maxout #(
  parameter int LANES = 1,
  parameter int W     = 8
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic [2*LANES*W-1:0] data_in_0_i,
  input  logic                 data_in_0_valid_i,
  output logic                 data_in_0_ready_o,
  output logic [LANES*W-1:0]   data_out_0_o,
  output logic                 data_out_0_valid_o,
  input  logic                 data_out_0_ready_i
);
  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [W-1:0] a, b;
    assign a = data_in_0_i[2*i*W +: W];
    assign b = data_in_0_i[(2*i+1)*W +: W];
    always_ff @(posedge clk_i) begin
      if (data_in_0_ready_o) data_out_0_o[i*W +: W] <= (a > b) ? a : b;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
  end
endmodule
