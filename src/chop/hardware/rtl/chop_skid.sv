// Skid buffer: two registers that cut the combinational paths of valid, data and ready.
//
// Input:   beats of W bits.
// Output:  the same beats.
// Timing:  one beat per cycle; latency one cycle. The buffer stores two beats.
module chop_skid #(
  parameter int W = 8
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [W-1:0] data_in_0_i,
  input  logic         data_in_0_valid_i,
  output logic         data_in_0_ready_o,
  output logic [W-1:0] data_out_0_o,
  output logic         data_out_0_valid_o,
  input  logic         data_out_0_ready_i
);
  logic [W-1:0] skid_q;
  logic skid_valid_q, moves;

  assign moves = !data_out_0_valid_o || data_out_0_ready_i;
  assign data_in_0_ready_o = !skid_valid_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      data_out_0_valid_o <= 1'b0;
      skid_valid_q       <= 1'b0;
    end else if (moves) begin
      data_out_0_valid_o <= skid_valid_q || data_in_0_valid_i;
      skid_valid_q       <= 1'b0;
    end else if (data_in_0_valid_i) begin
      skid_valid_q <= 1'b1;
    end
    if (moves) data_out_0_o <= skid_valid_q ? skid_q : data_in_0_i;
    // ready was announced a cycle ago, so a beat may arrive although the output has just stalled.
    // It is stored here.
    if (!skid_valid_q) skid_q <= data_in_0_i;
  end
endmodule
