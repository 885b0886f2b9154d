// Stalls of a stream, for simulation only. go_o allows the next beat to be offered or taken.
//
// A pause of pause_cycles_i cycles starts at random, on average once in pause_every_i cycles; 0
// means no pauses. In the other cycles go_o is high with probability share_i / 65536. Random
// numbers come from xorshift32 (Marsaglia 2003), with a different sequence for each seed_i and
// STREAM.
module chop_stall #(
  parameter int STREAM = 0
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [31:0] seed_i,
  input  logic [31:0] share_i,
  input  logic [31:0] pause_every_i,
  input  logic [31:0] pause_cycles_i,
  output logic        go_o
);
  logic [31:0] state_q, left, right, pause_q;
  logic pauses;

  assign left   = state_q ^ (state_q << 13);
  assign right  = left ^ (left >> 17);
  assign pauses = (pause_every_i != 32'd0) && (right % pause_every_i == 32'd0);
  assign go_o   = (pause_q == 32'd0) && (32'(state_q[15:0]) < share_i);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      // The state of xorshift must not be zero, hence the lowest bit. 9E3779B9 spreads neighboring
      // stream numbers over all bits.
      state_q <= (seed_i ^ (32'h9E3779B9 * (32'(STREAM) + 32'd1))) | 32'd1;
      pause_q <= 32'd0;
    end else begin
      state_q <= right ^ (right << 5);
      if (pause_q != 32'd0) pause_q <= pause_q - 32'd1;
      else if (pauses) pause_q <= pause_cycles_i;
    end
  end
endmodule
