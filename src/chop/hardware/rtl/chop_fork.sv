// Fork: sends one stream to N streams. Each of them takes every beat once, in its own cycle.
//
// Input:   beats of W bits.
// Output:  the same beats. All outputs share data; valid and ready have one bit per output.
// Timing:  one beat per cycle. The paths from input to output and from ready to ready are
//          combinational.
module chop_fork #(
  parameter int W = 8,
  parameter int N = 2
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [W-1:0] data_in_0_i,
  input  logic         data_in_0_valid_i,
  output logic         data_in_0_ready_o,
  output logic [W-1:0] data_out_o,
  output logic [N-1:0] data_out_valid_o,
  input  logic [N-1:0] data_out_ready_i
);
  logic [N-1:0] taken_q;

  assign data_out_o        = data_in_0_i;
  assign data_out_valid_o  = {N{data_in_0_valid_i}} & ~taken_q;
  // A beat ends when every stream has taken it, now or earlier.
  assign data_in_0_ready_o = &(taken_q | data_out_ready_i);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) taken_q <= '0;
    else if (data_in_0_valid_i) taken_q <= data_in_0_ready_o ? '0 : taken_q | data_out_ready_i;
  end
endmodule
