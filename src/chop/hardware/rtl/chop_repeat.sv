// Repetition: each row of BEATS beats is read TIMES times.
//
// Input:   rows of BEATS beats of W bits.
// Output:  data_o, two cycles after each cycle in which takes_i is high. Each row is read TIMES
//          times, the first time while it arrives. has_beat_o is high if a beat is available. The
//          user raises can_take_i if it could take a beat, regardless of has_beat_o.
// Timing:  BEATS * TIMES cycles per row; two registers.
// Memory:  BEATS words of one beat with synchronous read, or none if TIMES is 1.
module chop_repeat #(
  parameter int W     = 8,
  parameter int BEATS = 1,
  parameter int TIMES = 1
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [W-1:0] data_in_0_i,
  input  logic         data_in_0_valid_i,
  output logic         data_in_0_ready_o,
  input  logic         can_take_i,
  output logic         has_beat_o,
  input  logic         takes_i,
  output logic [W-1:0] data_o
);
  logic [W-1:0] new_q;

  if (TIMES == 1) begin : g_once
    logic unused;
    assign unused = &{1'b0, rst_ni, takes_i};
    assign data_in_0_ready_o = can_take_i;
    assign has_beat_o = data_in_0_valid_i;
    always_ff @(posedge clk_i) begin
      new_q  <= data_in_0_i;
      data_o <= new_q;
    end
  end else begin : g_again
    localparam int BEAT_W = (BEATS > 1) ? $clog2(BEATS) : 1;
    localparam int TIME_W = $clog2(TIMES);

    // A word that is being written is taken from new_q, so the memory needs no bypass.
    (* no_rw_check *) logic [W-1:0] memory [0:BEATS-1];
    logic [W-1:0] stored_q;
    logic [BEAT_W-1:0] beat_q;
    logic [TIME_W-1:0] time_q;
    logic is_new_q, was_new_q, is_last;

    assign is_last = (beat_q == BEAT_W'(BEATS - 1));
    assign data_in_0_ready_o = can_take_i && is_new_q;
    // Only the first pass over a row waits for the input; later passes read the memory.
    assign has_beat_o = !is_new_q || data_in_0_valid_i;

    always_ff @(posedge clk_i) begin
      if (takes_i && is_new_q) memory[beat_q] <= data_in_0_i;
      stored_q  <= memory[beat_q];
      new_q     <= data_in_0_i;
      was_new_q <= is_new_q;
      data_o    <= was_new_q ? new_q : stored_q;
      if (!rst_ni) begin
        beat_q   <= '0;
        time_q   <= '0;
        is_new_q <= 1'b1;
      end else if (takes_i) begin
        beat_q <= is_last ? '0 : beat_q + BEAT_W'(1);
        if (is_last) begin
          time_q   <= (time_q == TIME_W'(TIMES - 1)) ? '0 : time_q + TIME_W'(1);
          is_new_q <= (time_q == TIME_W'(TIMES - 1));
        end
      end
    end
  end
endmodule
