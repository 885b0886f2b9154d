// Pauses of a stream, in simulation only: go_o says whether the next beat may be offered or taken.
//
// profile_i 0: always. 1: in half of the cycles. 2: a reader in one cycle of eight, a writer
// always. 3: pauses of PAUSE to PAUSE + 31 cycles, which start in one cycle of 64.
// Random numbers: xorshift32, Marsaglia 2003, another sequence for each seed_i and STREAM.
module chop_stall #(
  parameter int STREAM    = 0,
  parameter bit IS_READER = 1'b0,
  parameter int PAUSE     = 64
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [31:0] profile_i,
  input  logic [31:0] seed_i,
  output logic        go_o
);
  logic [31:0] state_q, left, right, next;
  logic [31:0] pause_q;

  assign left  = state_q ^ (state_q << 13);
  assign right = left ^ (left >> 17);
  assign next  = right ^ (right << 5);

  assign go_o = (profile_i == 32'd0) ? 1'b1 :
                (profile_i == 32'd1) ? state_q[7] :
                (profile_i == 32'd2) ? !IS_READER || (state_q[9:7] == 3'd0) : (pause_q == 32'd0);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= (seed_i ^ (32'h9E3779B9 * (32'(STREAM) + 32'd1))) | 32'd1;
      pause_q <= 32'd0;
    end else begin
      state_q <= next;
      if (pause_q != 32'd0) pause_q <= pause_q - 32'd1;
      else if (state_q[12:7] == 6'd0) pause_q <= 32'(PAUSE) + 32'(state_q[20:16]);
    end
  end
endmodule
