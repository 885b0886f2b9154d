// Product by a constant: y = x FACTOR on each lane.
//
// in    LANES codes of IN_W bits
// out   LANES codes of OUT_W bits, which hold every y
// time  one beat per cycle, one register
module chop_scale #(
  parameter int LANES  = 1,
  parameter int IN_W   = 8,
  parameter int OUT_W  = 16,
  parameter int FACTOR = 1
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
  localparam int PRODUCT_W = IN_W + 32;

  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_W-1:0] x;
    assign x = data_in_0_i[i*IN_W +: IN_W];
    always_ff @(posedge clk_i) begin
      if (data_in_0_ready_o)
        data_out_0_o[i*OUT_W +: OUT_W] <= OUT_W'(PRODUCT_W'(x) * PRODUCT_W'(FACTOR));
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
  end
endmodule
