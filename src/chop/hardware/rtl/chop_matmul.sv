// Product of two streams: y[n, h, m] = sum over k of a[n, h, k] b[h, k, m], for HEADS products h.
//
// Input 0: a, IN_FEATURES codes k of IN_0_W bits for each of ROWS rows n and each head h. A beat
//          has LANES codes if TRANSPOSED is 1, and otherwise one.
// Input 1: b, LANES codes of IN_1_W bits per beat. The order is m, h, k with k fastest if
//          TRANSPOSED is 1, and otherwise k, h, m with m fastest.
// Output:  OUT_FEATURES exact sums m of OUT_W bits for each n and h. A beat has one sum if
//          TRANSPOSED is 1, and otherwise LANES.
// Timing:  ROWS * HEADS * IN_FEATURES * OUT_FEATURES / LANES cycles between two samples.
//          chop_matvec, which documents SOFT, computes LANES products per cycle. b of the next
//          sample is stored at the same time.
// Memory:  two banks of HEADS * IN_FEATURES * OUT_FEATURES / LANES beats of b, one for reading and
//          one for writing, and a row of a in chop_matvec.
module chop_matmul #(
  parameter int LANES = 1,
  parameter int ROWS = 4,
  parameter int HEADS = 1,
  parameter int IN_FEATURES = 4,
  parameter int OUT_FEATURES = 4,
  parameter int TRANSPOSED = 1,
  parameter int IN_0_W = 8,
  parameter int IN_1_W = 8,
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
  output logic [OUT_LANES*OUT_W-1:0] data_out_0_o,
  output logic                       data_out_0_valid_o,
  input  logic                       data_out_0_ready_i
);
  localparam int IN_FOLDS = IN_FEATURES / IN_LANES;
  localparam int OUT_FOLDS = OUT_FEATURES / OUT_LANES;
  localparam int HEAD_WORDS = IN_FOLDS * OUT_FOLDS;
  localparam int BANK_WORDS = HEADS * HEAD_WORDS;
  localparam int BEFORE_LAST = BANK_WORDS > 1 ? BANK_WORDS - 2 : 0;
  localparam int ADDRESS_W = $clog2(2 * BANK_WORDS);
  // In a bank the words of each head lie in the order in which they are read: for each beat of
  // results, for each beat of a. They come OUTER times for each head, INNER at a time.
  localparam int OUTER = TRANSPOSED != 0 ? OUT_FOLDS : IN_FOLDS;
  localparam int INNER = TRANSPOSED != 0 ? IN_FOLDS : OUT_FOLDS;
  localparam int INNER_STEP = TRANSPOSED != 0 ? 1 : IN_FOLDS;
  localparam int HEAD_STEP = HEAD_WORDS - (INNER - 1) * INNER_STEP;
  localparam int OUTER_STEP =
    (TRANSPOSED != 0 ? IN_FOLDS : 1) - (HEADS - 1) * HEAD_WORDS - (INNER - 1) * INNER_STEP;
  localparam int OUTER_W = OUTER > 1 ? $clog2(OUTER) : 1;
  localparam int INNER_W = INNER > 1 ? $clog2(INNER) : 1;
  localparam int HEAD_W = HEADS > 1 ? $clog2(HEADS) : 1;
  localparam int ROW_W = ROWS > 1 ? $clog2(ROWS) : 1;

  // ---- store ----
  // Words of the bank that is read are never written.
  (* no_rw_check *) logic [LANES*IN_1_W-1:0] banks [2*BANK_WORDS];
  logic [1:0] full_q;
  logic [ADDRESS_W-1:0] write_q, next_write;
  logic [INNER_W-1:0] inner_q;
  logic [HEAD_W-1:0] head_q;
  logic [OUTER_W-1:0] outer_q;
  logic write_bank_q, is_written, is_inner_end, is_head_end, is_bank_full;

  assign data_in_1_ready_o = !full_q[write_bank_q];
  assign is_written = data_in_1_valid_i && data_in_1_ready_o;
  assign is_inner_end = inner_q == INNER_W'(INNER - 1);
  assign is_head_end = is_inner_end && head_q == HEAD_W'(HEADS - 1);
  assign is_bank_full = is_head_end && outer_q == OUTER_W'(OUTER - 1);

  always_comb begin
    if (is_bank_full) next_write = write_bank_q ? '0 : ADDRESS_W'(BANK_WORDS);
    else if (is_head_end) next_write = write_q + ADDRESS_W'(OUTER_STEP);
    else if (is_inner_end) next_write = write_q + ADDRESS_W'(HEAD_STEP);
    else next_write = write_q + ADDRESS_W'(INNER_STEP);
  end

  always_ff @(posedge clk_i) begin
    if (is_written) banks[write_q] <= data_in_1_i;
    if (!rst_ni) begin
      write_q <= '0;
      inner_q <= '0;
      head_q <= '0;
      outer_q <= '0;
      write_bank_q <= 1'b0;
    end else if (is_written) begin
      write_q <= next_write;
      inner_q <= is_inner_end ? '0 : inner_q + 1'b1;
      if (is_inner_end) head_q <= is_head_end ? '0 : head_q + 1'b1;
      if (is_head_end) outer_q <= is_bank_full ? '0 : outer_q + 1'b1;
      if (is_bank_full) write_bank_q <= !write_bank_q;
    end
  end

  // ---- read ----
  logic [LANES*IN_1_W-1:0] word, word_q;
  logic [OUT_LANES*OUT_W-1:0] sums;
  logic [ADDRESS_W-1:0] read_q, before_last;
  logic [ROW_W-1:0] row_q;
  logic [1:0] filled, emptied;
  logic read_bank_q, is_read, is_row_end_q, is_bank_end, starts, is_ready, has_sums, unused;

  assign is_bank_end = is_row_end_q && row_q == ROW_W'(ROWS - 1);
  assign filled  = {write_bank_q, !write_bank_q} & {2{is_written && is_bank_full}};
  assign emptied = {read_bank_q, !read_bank_q} & {2{is_read && is_bank_end}};

  assign before_last =
    read_bank_q ? ADDRESS_W'(BANK_WORDS + BEFORE_LAST) : ADDRESS_W'(BEFORE_LAST);

  always_ff @(posedge clk_i) begin
    word   <= banks[read_q];
    word_q <= word;
    if (!rst_ni) begin
      read_q <= '0;
      row_q <= '0;
      read_bank_q <= 1'b0;
      is_row_end_q <= BANK_WORDS == 1;
      full_q <= '0;
    end else begin
      if (is_read) begin
        if (is_row_end_q) row_q <= is_bank_end ? '0 : row_q + 1'b1;
        if (is_bank_end) read_bank_q <= !read_bank_q;
        // All rows of a sample read the same bank.
        if (!is_row_end_q) read_q <= read_q + 1'b1;
        else read_q <= read_bank_q == is_bank_end ? '0 : ADDRESS_W'(BANK_WORDS);
        is_row_end_q <= BANK_WORDS == 1 || (!is_row_end_q && read_q == before_last);
      end
      // A bank cannot be filled and emptied in the same cycle, because only full banks are read and
      // only empty ones are written.
      full_q <= (full_q | filled) & ~emptied;
    end
  end

  chop_matvec #(
    .IN_LANES(IN_LANES), .OUT_LANES(OUT_LANES), .IN_FEATURES(IN_FEATURES),
    .OUT_FEATURES(OUT_FEATURES), .IN_W(IN_0_W), .WEIGHT_W(IN_1_W), .OUT_W(OUT_W),
    .SOFT(SOFT)
  ) u_matvec (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .weight_i(word_q), .weight_valid_i(full_q[read_bank_q]), .takes_o(is_read),
    .ready_i(is_ready), .starts_o(starts), .finishes_o(unused), .sum_o(sums),
    .sum_valid_o(has_sums));

  chop_credits #(
    .W(OUT_LANES * OUT_W), .LATENCY(IN_FOLDS + 3 + (SOFT > 1 ? SOFT : 1) + $clog2(IN_LANES)),
    .EVERY(IN_FOLDS)
  ) u_results (
    .clk_i, .rst_ni, .starts_i(starts), .ready_o(is_ready), .data_i(sums), .valid_i(has_sums),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
