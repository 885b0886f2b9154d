// Embedding: sends the table row of each index.
//
// Input:   indices of IN_W bits from 0 to ROWS - 1, one per beat.
// Output:  BEATS beats of LANES codes of OUT_W bits for each index.
// Timing:  BEATS cycles per index. Pipeline: address of the row | address of the word | memory |
//          register | register | FIFO of chop_credits. A large memory is several block memories and
//          a multiplexer. Synthesis can move the first register into the block memories, and the
//          second one follows the multiplexer.
// Memory:  TABLE_FILE with ROWS * BEATS words of LANES codes, row by row. TABLE_BASE and load_i are
//          BASE and load_i of chop_memory.
module chop_embedding #(
  parameter int LANES      = 1,
  parameter int ROWS       = 16,
  parameter int BEATS      = 4,
  parameter int IN_W       = 5,
  parameter int OUT_W      = 8,
  parameter     TABLE_FILE = "",
  parameter int TABLE_BASE = -1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [56:0]            load_i,
  input  logic [IN_W-1:0]        data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  localparam int WORDS  = ROWS * BEATS;
  localparam int ADDR_W = (WORDS > 1) ? $clog2(WORDS) : 1;
  localparam int BEAT_W = (BEATS > 1) ? $clog2(BEATS) : 1;
  localparam int STAGES = 4;

  logic [ADDR_W-1:0] row_q, addr_q;
  logic [BEAT_W-1:0] beat_q;
  logic [LANES*OUT_W-1:0] word, word_1_q, word_2_q;
  logic [STAGES-1:0] valid_q;
  logic row_valid_q, starts, is_ready, is_last, unused;

  assign unused = &{1'b0, data_in_0_i};  // the sign
  assign is_last = (beat_q == BEAT_W'(BEATS - 1));
  assign starts = row_valid_q && is_ready;
  assign data_in_0_ready_o = !row_valid_q || (is_ready && is_last);

  chop_memory #(
    .W(LANES * OUT_W), .DEPTH(WORDS), .FILE(TABLE_FILE), .BASE(TABLE_BASE)
  ) u_table (.clk_i, .load_i, .addr_i(addr_q), .data_o(word));

  always_ff @(posedge clk_i) begin
    if (data_in_0_ready_o) row_q <= ADDR_W'(data_in_0_i) * ADDR_W'(BEATS);
    addr_q <= row_q + ADDR_W'(beat_q);
    word_1_q <= word;
    word_2_q <= word_1_q;
    if (!rst_ni) begin
      beat_q      <= '0;
      row_valid_q <= 1'b0;
      valid_q     <= '0;
    end else begin
      if (data_in_0_ready_o) row_valid_q <= data_in_0_valid_i;
      if (starts) beat_q <= is_last ? '0 : beat_q + BEAT_W'(1);
      valid_q <= {valid_q[STAGES-2:0], starts};
    end
  end

  chop_credits #(.W(LANES * OUT_W), .LATENCY(STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(starts), .ready_o(is_ready), .data_i(word_2_q),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
