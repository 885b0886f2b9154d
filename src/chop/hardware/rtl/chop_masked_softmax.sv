// Masked softmax along rows: chop_softmax of the visible codes. Results of hidden codes are 0.
//
// Input 0: rows of FEATURES codes of SCORE_W bits, one per beat, ROWS rows per sample.
// Input 1: FEATURES numbers of MASK_W bits per sample, one per beat. 0 hides that position in all
//          rows.
// Output:  for each row FEATURES results of OUT_W bits, one per beat, in the order of the codes.
// Timing:  as chop_softmax, with one additional register ahead of it and one behind it.
// Memory:  the memory of chop_softmax, the mask of a sample, a few of its bits in a FIFO, and a bit
//          for each code in the pipeline.
//
// If CAUSAL is 1, the positions after a row's query are hidden as well. INNER consecutive rows have
// the same query, and a sample starts with the first of QUERIES queries. A hidden code is replaced
// by HIDDEN. HIDDEN is so low that its distance from every visible code falls into the upper half
// of TABLE, which is 0. The maximum of a completely hidden row is HIDDEN, and all of its results
// are set to 0.
module chop_masked_softmax #(
  parameter int FEATURES    = 17,
  parameter int ROWS        = 4,
  parameter int INNER       = 1,
  parameter int QUERIES     = 4,
  parameter int CAUSAL      = 0,
  parameter int SCORE_W     = 8,
  parameter int MASK_W      = 2,
  parameter int IN_W        = 10,
  parameter     HIDDEN      = -384,
  parameter int TABLE_W     = 16,
  parameter int TABLE_DEPTH = 512,
  parameter int POWER       = 35,
  parameter int OUT_W       = 37,
  parameter int DEPTH       = 40,
  parameter     TABLE_FILE  = ""
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic [SCORE_W-1:0] data_in_0_i,
  input  logic               data_in_0_valid_i,
  output logic               data_in_0_ready_o,
  input  logic [MASK_W-1:0]  data_in_1_i,
  input  logic               data_in_1_valid_i,
  output logic               data_in_1_ready_o,
  output logic [OUT_W-1:0]   data_out_0_o,
  output logic               data_out_0_valid_o,
  input  logic               data_out_0_ready_i
);
  localparam int MOST    = (FEATURES > QUERIES) ? FEATURES : QUERIES;
  localparam int COUNT_W = (MOST > 1) ? $clog2(MOST) : 1;
  localparam int INNER_W = (INNER > 1) ? $clog2(INNER) : 1;
  // Codes in both FIFOs and the registers of chop_softmax, with a margin.
  localparam int IN_FLIGHT = FEATURES + DEPTH + 24;

  // ---- mask ----
  logic [1:0] mask_valid_q;
  logic mask, has_mask, is_mask_ready, takes_mask, is_seen, is_seen_valid, is_taken, is_first_free;

  chop_repeat #(.W(1), .BEATS(FEATURES), .TIMES(ROWS)) u_mask (
    .clk_i, .rst_ni, .data_in_0_i(data_in_1_i != '0), .data_in_0_valid_i(data_in_1_valid_i),
    .data_in_0_ready_o(data_in_1_ready_o), .can_take_i(is_mask_ready), .has_beat_o(has_mask),
    .takes_i(takes_mask), .data_o(mask));

  assign takes_mask = is_mask_ready && has_mask;

  always_ff @(posedge clk_i) mask_valid_q <= rst_ni ? {mask_valid_q[0], takes_mask} : '0;

  chop_credits #(.W(1), .LATENCY(2)) u_seen (
    .clk_i, .rst_ni, .starts_i(takes_mask), .ready_o(is_mask_ready), .data_i(mask),
    .valid_i(mask_valid_q[1]), .data_out_0_o(is_seen), .data_out_0_valid_o(is_seen_valid),
    .data_out_0_ready_i(is_first_free && data_in_0_valid_i));

  // ---- hide ----
  logic [COUNT_W-1:0] key_q, query_q;
  logic [INNER_W-1:0] inner_q;
  logic [IN_W-1:0] code_q;
  logic is_kept, is_kept_q, code_valid_q, softmax_ready, kept_ready, is_row_end, is_query_end;

  assign data_in_0_ready_o = is_first_free && is_seen_valid;
  assign is_taken = data_in_0_valid_i && data_in_0_ready_o;
  // A code enters the softmax and its mask bit the FIFO in the same cycle, so that both stay in
  // step.
  assign is_first_free = !code_valid_q || (softmax_ready && kept_ready);
  assign is_kept = is_seen && (CAUSAL == 0 || key_q <= query_q);
  assign is_row_end = (key_q == COUNT_W'(FEATURES - 1));
  assign is_query_end = is_row_end && (inner_q == INNER_W'(INNER - 1));

  always_ff @(posedge clk_i) begin
    if (is_first_free) begin
      code_q    <= is_kept ? IN_W'($signed(data_in_0_i)) : IN_W'(HIDDEN);
      is_kept_q <= is_kept;
    end
    if (!rst_ni) begin
      key_q        <= '0;
      inner_q      <= '0;
      query_q      <= '0;
      code_valid_q <= 1'b0;
    end else begin
      if (is_first_free) code_valid_q <= is_taken;
      if (is_taken) key_q <= is_row_end ? '0 : key_q + COUNT_W'(1);
      if (is_taken && is_row_end) inner_q <= is_query_end ? '0 : inner_q + INNER_W'(1);
      if (is_taken && is_query_end)
        query_q <= (query_q == COUNT_W'(QUERIES - 1)) ? '0 : query_q + COUNT_W'(1);
    end
  end

  // ---- softmax, and mask of its results ----
  logic [OUT_W-1:0] result;
  logic result_valid, kept, kept_valid, is_last_free;

  chop_softmax #(
    .FEATURES(FEATURES), .IN_W(IN_W), .TABLE_W(TABLE_W), .TABLE_DEPTH(TABLE_DEPTH), .POWER(POWER),
    .OUT_W(OUT_W), .DEPTH(DEPTH), .TABLE_FILE(TABLE_FILE)
  ) u_softmax (
    .clk_i(clk_i), .rst_ni(rst_ni),
    .data_in_0_i(code_q), .data_in_0_valid_i(code_valid_q && kept_ready),
    .data_in_0_ready_o(softmax_ready),
    .data_out_0_o(result), .data_out_0_valid_o(result_valid),
    .data_out_0_ready_i(is_last_free && kept_valid));

  chop_fifo #(.W(1), .DEPTH(IN_FLIGHT)) u_kept (
    .clk_i(clk_i), .rst_ni(rst_ni),
    .data_in_0_i(is_kept_q), .data_in_0_valid_i(code_valid_q && softmax_ready),
    .data_in_0_ready_o(kept_ready),
    .data_out_0_o(kept), .data_out_0_valid_o(kept_valid),
    .data_out_0_ready_i(is_last_free && result_valid));

  assign is_last_free = !data_out_0_valid_o || data_out_0_ready_i;

  always_ff @(posedge clk_i) begin
    if (is_last_free) data_out_0_o <= kept ? result : '0;
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (is_last_free) data_out_0_valid_o <= result_valid && kept_valid;
  end
endmodule
