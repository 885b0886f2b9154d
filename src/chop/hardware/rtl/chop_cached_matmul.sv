// Product of a row for each head with the keys or values of a sequence, which it stores in place.
//
// Input 0: codes of IN_0_W bits for HEADS * GROUPS heads: FEATURES of a query if TRANSPOSED is 1,
//          LANES in a beat, and otherwise a weight for each of LENGTH positions, one in a beat.
// Input 1: the key or value of the token, HEADS * FEATURES codes of IN_1_W bits, LANES in a beat.
// Input 2: the position of the token, IN_2_W bits: 0, or one more than that of the token before.
// Output:  for each head exact sums of OUT_W bits: one for each position, one in a beat, if
//          TRANSPOSED is 1, and otherwise one for each feature, LANES in a beat. GROUPS successive
//          heads read the same head of the memory. Rows behind the position are zeros.
// Timing:  HEADS * FEATURES / LANES * (1 + GROUPS * LENGTH) cycles per token. The row is stored
//          when the products of the token before are computed, then chop_matvec, which documents
//          SOFT, computes LANES products per cycle.
// Memory:  LENGTH * HEADS * FEATURES / LANES beats of input 1, and a row of input 0 in chop_matvec.
module chop_cached_matmul #(
  parameter int LANES = 1,
  parameter int LENGTH = 4,
  parameter int HEADS = 1,
  parameter int GROUPS = 1,
  parameter int FEATURES = 4,
  parameter int TRANSPOSED = 1,
  parameter int IN_0_W = 8,
  parameter int IN_1_W = 8,
  parameter int IN_2_W = 3,
  parameter int OUT_W = 18,
  parameter int SOFT = 0,
  localparam int IN_LANES = TRANSPOSED != 0 ? LANES : 1,
  localparam int OUT_LANES = TRANSPOSED != 0 ? 1 : LANES
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic [IN_LANES*IN_0_W-1:0] data_in_0_i,
  input  logic                       data_in_0_valid_i,
  output logic                       data_in_0_ready_o,
  input  logic [LANES*IN_1_W-1:0]    data_in_1_i,
  input  logic                       data_in_1_valid_i,
  output logic                       data_in_1_ready_o,
  input  logic [IN_2_W-1:0]          data_in_2_i,
  input  logic                       data_in_2_valid_i,
  output logic                       data_in_2_ready_o,
  output logic [OUT_LANES*OUT_W-1:0] data_out_0_o,
  output logic                       data_out_0_valid_o,
  input  logic                       data_out_0_ready_i
);
  localparam int FOLDS = FEATURES / LANES;
  localparam int ROW_WORDS = HEADS * FOLDS;
  localparam int WORDS = LENGTH * ROW_WORDS;
  localparam int ADDRESS_W = WORDS > 1 ? $clog2(WORDS) : 1;
  localparam int ROW_W = ROW_WORDS > 1 ? $clog2(ROW_WORDS) : 1;
  // For each head, words are read INNER at a time, OUTER times: all words of a position, or the
  // same word of all positions.
  localparam int INNER = TRANSPOSED != 0 ? FOLDS : LENGTH;
  localparam int OUTER = TRANSPOSED != 0 ? LENGTH : FOLDS;
  localparam int INNER_STEP = TRANSPOSED != 0 ? 1 : ROW_WORDS;
  localparam int OUTER_STEP = (TRANSPOSED != 0 ? ROW_WORDS : 1) - (INNER - 1) * INNER_STEP;
  localparam int INNER_W = INNER > 1 ? $clog2(INNER) : 1;
  localparam int OUTER_W = OUTER > 1 ? $clog2(OUTER) : 1;
  localparam int GROUP_W = GROUPS > 1 ? $clog2(GROUPS) : 1;
  localparam int IN_FEATURES = TRANSPOSED != 0 ? FEATURES : LENGTH;
  localparam int IN_FOLDS = IN_FEATURES / IN_LANES;

  // ---- store ----
  // Nothing is read while a row is stored.
  (* no_rw_check *) logic [LANES*IN_1_W-1:0] memory [WORDS];
  logic [ADDRESS_W-1:0] write_q, write;
  logic [ROW_W-1:0] beat_q;
  logic [IN_2_W-1:0] position_q;
  logic reads_q, is_written, is_stored, is_read, is_end;

  assign data_in_1_ready_o = !reads_q && data_in_2_valid_i;
  assign is_written = data_in_1_valid_i && data_in_1_ready_o;
  assign is_stored = is_written && beat_q == ROW_W'(ROW_WORDS - 1);
  assign data_in_2_ready_o = is_stored;
  // Rows follow one another in the memory, the first one of a sequence at its start.
  assign write = (data_in_2_i == '0 && beat_q == '0) ? '0 : write_q;

  always_ff @(posedge clk_i) begin
    if (is_written) memory[write] <= data_in_1_i;
    if (is_stored) position_q <= data_in_2_i;
    if (!rst_ni) begin
      write_q <= '0;
      beat_q  <= '0;
      reads_q <= 1'b0;
    end else begin
      if (is_written) begin
        write_q <= write + 1'b1;
        beat_q  <= is_stored ? '0 : beat_q + 1'b1;
      end
      reads_q <= is_stored || (reads_q && !(is_read && is_end));
    end
  end

  // ---- read ----
  logic [LANES*IN_1_W-1:0] word, word_q;
  logic [OUT_LANES*OUT_W-1:0] sums;
  logic [ADDRESS_W-1:0] read_q, head_q;
  logic [INNER_W-1:0] inner_q;
  logic [OUTER_W-1:0] outer_q;
  logic [GROUP_W-1:0] group_q;
  logic [1:0] visible_q;
  logic is_inner_end, is_head_end, is_group_end, is_visible;
  logic starts, is_ready, has_sums, unused;

  assign is_inner_end = inner_q == INNER_W'(INNER - 1);
  assign is_head_end  = is_inner_end && outer_q == OUTER_W'(OUTER - 1);
  assign is_group_end = is_head_end && group_q == GROUP_W'(GROUPS - 1);
  assign is_end       = is_group_end && head_q == ADDRESS_W'(ROW_WORDS - FOLDS);
  if (TRANSPOSED != 0) begin : g_keys
    assign is_visible = IN_2_W'(outer_q) <= position_q;
  end else begin : g_values
    assign is_visible = IN_2_W'(inner_q) <= position_q;
  end

  always_ff @(posedge clk_i) begin
    word      <= memory[read_q];
    word_q    <= word;
    visible_q <= {visible_q[0], is_visible};
    if (!rst_ni) begin
      read_q  <= '0;
      head_q  <= '0;
      inner_q <= '0;
      outer_q <= '0;
      group_q <= '0;
    end else if (is_read) begin
      inner_q <= is_inner_end ? '0 : inner_q + 1'b1;
      if (is_inner_end) outer_q <= is_head_end ? '0 : outer_q + 1'b1;
      if (is_head_end) group_q <= is_group_end ? '0 : group_q + 1'b1;
      if (is_group_end) head_q <= is_end ? '0 : head_q + ADDRESS_W'(FOLDS);
      if (is_end) read_q <= '0;
      else if (is_group_end) read_q <= head_q + ADDRESS_W'(FOLDS);
      else if (is_head_end) read_q <= head_q;
      else read_q <= read_q + (is_inner_end ? ADDRESS_W'(OUTER_STEP) : ADDRESS_W'(INNER_STEP));
    end
  end

  // Words behind the position are of another sequence, or have never been written.
  chop_matvec #(
    .IN_LANES(IN_LANES), .OUT_LANES(OUT_LANES), .IN_FEATURES(IN_FEATURES),
    .OUT_FEATURES(TRANSPOSED != 0 ? LENGTH : FEATURES), .IN_W(IN_0_W), .WEIGHT_W(IN_1_W),
    .OUT_W(OUT_W), .SOFT(SOFT)
  ) u_matvec (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .weight_i(visible_q[1] ? word_q : '0), .weight_valid_i(reads_q), .takes_o(is_read),
    .ready_i(is_ready), .starts_o(starts), .finishes_o(unused), .sum_o(sums),
    .sum_valid_o(has_sums));

  chop_credits #(
    .W(OUT_LANES * OUT_W), .LATENCY(IN_FOLDS + 3 + (SOFT > 1 ? SOFT : 1) + $clog2(IN_LANES)),
    .EVERY(IN_FOLDS)
  ) u_results (
    .clk_i, .rst_ni, .starts_i(starts), .ready_o(is_ready), .data_i(sums), .valid_i(has_sums),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
