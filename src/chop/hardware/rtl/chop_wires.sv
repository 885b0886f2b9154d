// Link without a register, ahead of a component with a short path from ready to ready.
//
// Input:   beats of W bits.
// Output:  the same beats.
// Timing:  latency zero cycles.
module chop_wires #(
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
  logic unused;

  assign data_out_0_o       = data_in_0_i;
  assign data_out_0_valid_o = data_in_0_valid_i;
  assign data_in_0_ready_o  = data_out_0_ready_i;
  assign unused             = &{1'b0, clk_i, rst_ni};
endmodule
