// Control of a pipeline that accumulates a sum for each row: its input, and flags at its end.
//
// Input:   rows of BEATS beats of W bits.
// Output:  data_o, two cycles after each cycle in which takes_o is high. Each row is read TIMES
//          times, see chop_repeat. The first beat of a row, marked by starts_o, is taken only if
//          ready_i is high (see chop_credits). The other beats are taken as they arrive.
// Flags:   adds_o is high STAGES cycles after a beat was taken, with is_first_o for the first beat
//          of its row. finishes_o is high one cycle before the last adds_o of a row, and
//          sum_valid_o one cycle after it. The pipeline never stalls.
// Timing:  one beat per cycle.
// Memory:  the memory of chop_repeat.
module chop_rows #(
  parameter int W      = 8,
  parameter int BEATS  = 1,
  parameter int TIMES  = 1,
  parameter int STAGES = 4
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [W-1:0] data_in_0_i,
  input  logic         data_in_0_valid_i,
  output logic         data_in_0_ready_o,
  input  logic         ready_i,
  output logic         takes_o,
  output logic         starts_o,
  output logic [W-1:0] data_o,
  output logic         adds_o,
  output logic         is_first_o,
  output logic         finishes_o,
  output logic         sum_valid_o
);
  localparam int COUNT_W = (BEATS > 1) ? $clog2(BEATS) : 1;

  logic [COUNT_W-1:0] count_q;
  logic [STAGES-1:0] valid_q, first_q, last_q;
  logic is_first_q, is_last, can_take, has_beat;

  chop_repeat #(.W(W), .BEATS(BEATS), .TIMES(TIMES)) u_repeat (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o, .can_take_i(can_take),
    .has_beat_o(has_beat), .takes_i(takes_o), .data_o);

  // Only the first beat of a sum needs a credit; the others must follow for the pipeline to drain.
  assign can_take   = ready_i || !is_first_q;
  assign takes_o    = can_take && has_beat;
  assign starts_o   = takes_o && is_first_q;
  assign is_last    = (count_q == COUNT_W'(BEATS - 1));
  assign adds_o     = valid_q[STAGES-1];
  assign is_first_o = first_q[STAGES-1];
  assign finishes_o = valid_q[STAGES-2] && last_q[STAGES-2];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      count_q     <= '0;
      is_first_q  <= 1'b1;
      valid_q     <= '0;
      sum_valid_o <= 1'b0;
    end else begin
      if (takes_o) begin
        count_q    <= is_last ? '0 : count_q + COUNT_W'(1);
        is_first_q <= is_last;
      end
      valid_q     <= {valid_q[STAGES-2:0], takes_o};
      sum_valid_o <= valid_q[STAGES-1] && last_q[STAGES-1];
    end
    first_q <= {first_q[STAGES-2:0], is_first_q};
    last_q  <= {last_q[STAGES-2:0], is_last};
  end
endmodule
