// Position counter of a decoder that reads one token at a time.
//
// Input:   flags of IN_W bits, one per token. A flag that is not 0 marks the first token of a
//          sequence.
// Output:  the position of each token, OUT_W bits: 0 after a reset or a flag, and one more than
//          before otherwise. After LENGTH - 1 comes 0.
// Timing:  one beat per cycle; one register.
module chop_position #(
  parameter int LENGTH = 8,
  parameter int IN_W   = 2,
  parameter int OUT_W  = 4
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic [IN_W-1:0]  data_in_0_i,
  input  logic             data_in_0_valid_i,
  output logic             data_in_0_ready_o,
  output logic [OUT_W-1:0] data_out_0_o,
  output logic             data_out_0_valid_o,
  input  logic             data_out_0_ready_i
);
  logic [OUT_W-1:0] next_q, position;

  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;
  assign position = (data_in_0_i == '0) ? next_q : '0;

  always_ff @(posedge clk_i) begin
    if (data_in_0_ready_o) data_out_0_o <= position;
    if (!rst_ni) begin
      next_q             <= '0;
      data_out_0_valid_o <= 1'b0;
    end else if (data_in_0_ready_o) begin
      data_out_0_valid_o <= data_in_0_valid_i;
      if (data_in_0_valid_i)
        next_q <= (position == OUT_W'(LENGTH - 1)) ? '0 : position + OUT_W'(1);
    end
  end
endmodule
