// Product by a constant on each lane: y = x FACTOR.
//
// Input:   LANES codes of IN_W bits.
// Output:  LANES codes of OUT_W bits, wide enough for every y.
// Timing:  one beat per cycle. Pipeline: register | multiply, two cycles | FIFO of chop_credits.
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
  localparam int FACTOR_W = $clog2((FACTOR < 0 ? -FACTOR : FACTOR) + 1) + 1;
  localparam int STAGES   = 3;

  logic [LANES*IN_W-1:0] x_q;
  logic [LANES*OUT_W-1:0] results;
  logic [STAGES-1:0] valid_q;
  logic enters;

  assign enters = data_in_0_valid_i && data_in_0_ready_o;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    chop_product #(.A_W(IN_W), .B_W(FACTOR_W), .OUT_W(OUT_W)) u_product (
      .clk_i, .en_i(1'b1), .a_i(x_q[i*IN_W +: IN_W]), .b_i(FACTOR_W'(FACTOR)),
      .y_o(results[i*OUT_W +: OUT_W]));
  end

  always_ff @(posedge clk_i) begin
    x_q     <= data_in_0_i;
    valid_q <= rst_ni ? {valid_q[STAGES-2:0], enters} : '0;
  end

  chop_credits #(.W(LANES * OUT_W), .LATENCY(STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(enters), .ready_o(data_in_0_ready_o), .data_i(results),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
