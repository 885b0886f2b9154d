// Key-value cache: stores the row of each token, and sends those of its sequence.
//
// Input 0: a row of BEATS beats of W bits per token.
// Input 1: the position of the token, IN_W bits, from 0 to LENGTH - 1.
// Output:  LENGTH rows per token: the stored rows of lower positions, the row itself, and rows of
//          zeros. The row is stored while it passes.
// Timing:  LENGTH * BEATS cycles per token. Stored rows are sent before the row arrives. Pipeline:
//          memory | register | FIFO of chop_credits.
// Memory:  LENGTH * BEATS words of one beat.
module chop_cache #(
  parameter int W      = 8,
  parameter int BEATS  = 1,
  parameter int LENGTH = 8,
  parameter int IN_W   = 4
) (
  input  logic            clk_i,
  input  logic            rst_ni,
  input  logic [W-1:0]    data_in_0_i,
  input  logic            data_in_0_valid_i,
  output logic            data_in_0_ready_o,
  input  logic [IN_W-1:0] data_in_1_i,
  input  logic            data_in_1_valid_i,
  output logic            data_in_1_ready_o,
  output logic [W-1:0]    data_out_0_o,
  output logic            data_out_0_valid_o,
  input  logic            data_out_0_ready_i
);
  localparam int WORDS  = LENGTH * BEATS;
  localparam int ADDR_W = (WORDS > 1) ? $clog2(WORDS) : 1;
  localparam int BEAT_W = (BEATS > 1) ? $clog2(BEATS) : 1;

  logic [W-1:0] memory [0:WORDS-1];
  logic [W-1:0] stored, passed_q, word_q;
  logic [ADDR_W-1:0] addr_q;
  logic [BEAT_W-1:0] beat_q;
  logic [IN_W-1:0] row_q;
  logic [1:0] valid_q;
  logic can_send, sends, is_own, is_own_q, is_stored_q, is_row_end, is_last;

  assign is_own     = (row_q == data_in_1_i);
  assign is_row_end = (beat_q == BEAT_W'(BEATS - 1));
  assign is_last    = (addr_q == ADDR_W'(WORDS - 1));
  assign sends      = can_send && data_in_1_valid_i && (data_in_0_valid_i || !is_own);
  assign data_in_0_ready_o = can_send && data_in_1_valid_i && is_own;
  assign data_in_1_ready_o = sends && is_last;

  always_ff @(posedge clk_i) begin
    if (sends && is_own) memory[addr_q] <= data_in_0_i;
    stored      <= memory[addr_q];
    passed_q    <= data_in_0_i;
    is_own_q    <= is_own;
    is_stored_q <= (row_q < data_in_1_i);
    // Words behind the token's row are of another sequence, or have never been written.
    word_q      <= is_own_q ? passed_q : is_stored_q ? stored : '0;
    if (!rst_ni) begin
      addr_q  <= '0;
      beat_q  <= '0;
      row_q   <= '0;
      valid_q <= '0;
    end else begin
      valid_q <= {valid_q[0], sends};
      if (sends) begin
        addr_q <= is_last ? '0 : addr_q + ADDR_W'(1);
        beat_q <= is_row_end ? '0 : beat_q + BEAT_W'(1);
        if (is_row_end) row_q <= is_last ? '0 : row_q + IN_W'(1);
      end
    end
  end

  chop_credits #(.W(W), .LATENCY(2)) u_rows (
    .clk_i, .rst_ni, .starts_i(sends), .ready_o(can_send), .data_i(word_q), .valid_i(valid_q[1]),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
