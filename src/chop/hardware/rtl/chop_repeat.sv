// Repetition: each row of BEATS beats leaves TIMES times.
//
// in      rows of BEATS beats of W bits
// out     each row TIMES times, one after another; the first time while it comes
// time    BEATS * TIMES cycles for a row; one register
// memory  BEATS words of a beat with synchronous read; none for TIMES 1
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
  output logic [W-1:0] data_out_0_o,
  output logic         data_out_0_valid_o,
  input  logic         data_out_0_ready_i
);
  logic moves;

  assign moves = !data_out_0_valid_o || data_out_0_ready_i;

  if (TIMES == 1) begin : g_once
    assign data_in_0_ready_o = moves;
    always_ff @(posedge clk_i) begin
      if (moves) data_out_0_o <= data_in_0_i;
      if (!rst_ni) data_out_0_valid_o <= 1'b0;
      else if (moves) data_out_0_valid_o <= data_in_0_valid_i;
    end
  end else begin : g_again
    localparam int BEAT_W = (BEATS > 1) ? $clog2(BEATS) : 1;
    localparam int TIME_W = $clog2(TIMES);

    logic [W-1:0] memory [0:BEATS-1];
    logic [W-1:0] new_q, stored_q;
    logic [BEAT_W-1:0] beat_q;
    logic [TIME_W-1:0] time_q;
    logic is_new, is_new_q, is_last, sends;

    assign is_new  = (time_q == '0);
    assign is_last = (beat_q == BEAT_W'(BEATS - 1));
    assign sends   = moves && (!is_new || data_in_0_valid_i);
    assign data_in_0_ready_o = moves && is_new;
    assign data_out_0_o = is_new_q ? new_q : stored_q;

    always_ff @(posedge clk_i) begin
      if (sends && is_new) memory[beat_q] <= data_in_0_i;
      if (moves) begin
        stored_q <= memory[beat_q];
        new_q    <= data_in_0_i;
        is_new_q <= is_new;
      end
      if (!rst_ni) begin
        beat_q             <= '0;
        time_q             <= '0;
        data_out_0_valid_o <= 1'b0;
      end else if (moves) begin
        data_out_0_valid_o <= sends;
        if (sends) beat_q <= is_last ? '0 : beat_q + BEAT_W'(1);
        if (sends && is_last) time_q <= (time_q == TIME_W'(TIMES - 1)) ? '0 : time_q + TIME_W'(1);
      end
    end
  end
endmodule
