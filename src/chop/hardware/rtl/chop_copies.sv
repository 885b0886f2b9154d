// Copies: sends each run of BEATS beats TIMES times.
//
// Input:   beats of W bits.
// Output:  TIMES copies of each run, run by run. The first copy is sent while the run arrives.
// Timing:  one output beat per cycle. Pipeline: chop_repeat, two cycles | FIFO of chop_credits.
// Memory:  BEATS words of one beat.
module chop_copies #(
  parameter int W     = 8,
  parameter int BEATS = 1,
  parameter int TIMES = 2
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
  logic [W-1:0] beat;
  logic [1:0] valid_q;
  logic can_take, has_beat, takes;

  assign takes = can_take && has_beat;

  chop_repeat #(.W(W), .BEATS(BEATS), .TIMES(TIMES)) u_repeat (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o, .can_take_i(can_take),
    .has_beat_o(has_beat), .takes_i(takes), .data_o(beat));

  always_ff @(posedge clk_i) valid_q <= rst_ni ? {valid_q[0], takes} : '0;

  chop_credits #(.W(W), .LATENCY(2)) u_beats (
    .clk_i, .rst_ni, .starts_i(takes), .ready_o(can_take), .data_i(beat), .valid_i(valid_q[1]),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
