// Softmax along rows: y = e R with e = TABLE[max - x] and R = floor(2^POWER / sum of e).
//
// in      rows of FEATURES codes of IN_W bits, one per beat
// out     for each row FEATURES results of OUT_W bits, one per beat, in the order of the codes
// time    max(FEATURES, ceil((POWER - TABLE_W + 1) / 2) + 1) cycles between two rows: while the
//         results of one leave, the next one is divided or summed, and one more loaded. A stage
//         takes a row only when the stage after it has a place for what it finds of the row.
//           load    codes into a FIFO, and their maximum
//           sum     distance to the maximum | TABLE | register | exponentials into a FIFO, and
//                   their sum
//           divide  chop_reciprocal
//           send    exponential times reciprocal, two cycles
// memory  FIFOs of FEATURES + 12 codes and of DEPTH exponentials: more than a row, and those that
//         come while a row is divided
//
// TABLE has TABLE_DEPTH entries of TABLE_W bits, unsigned, one for each distance of two codes;
// the first one is 2^TABLE_W - 1. OUT_W is at least POWER + 2.
module chop_softmax #(
  parameter int FEATURES = 17,
  parameter int IN_W = 8,
  parameter int TABLE_W = 16,
  parameter int TABLE_DEPTH = 256,
  parameter int POWER = 35,
  parameter int OUT_W = 37,
  parameter int DEPTH = 40,
  parameter     TABLE_FILE = ""
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic [IN_W-1:0]  data_in_0_i,
  input  logic             data_in_0_valid_i,
  output logic             data_in_0_ready_o,
  output logic [OUT_W-1:0] data_out_0_o,
  output logic             data_out_0_valid_o,
  input  logic             data_out_0_ready_i
);
  localparam int COUNT_W = FEATURES > 1 ? $clog2(FEATURES) : 1;
  localparam int ADDRESS_W = TABLE_DEPTH > 1 ? $clog2(TABLE_DEPTH) : 1;
  localparam int SUM_W = TABLE_W + $clog2(FEATURES);
  localparam int RECIPROCAL_W = POWER - TABLE_W + 1;
  localparam logic [COUNT_W-1:0] LAST = COUNT_W'(FEATURES - 1);

  initial if (DEPTH < FEATURES + 2)
    $fatal(1, "chop_softmax: a row of %0d exponentials does not fit %0d", FEATURES, DEPTH);

  // ---- load ----
  logic [COUNT_W-1:0] load_q;
  logic signed [IN_W-1:0] largest_q, largest, maximum_q;
  logic is_loaded, is_load_last, codes_ready, is_maximum_free, has_maximum_q;

  assign is_load_last = load_q == LAST;
  assign data_in_0_ready_o = codes_ready && (!is_load_last || is_maximum_free);
  assign is_loaded = data_in_0_valid_i && data_in_0_ready_o;
  assign largest =
    load_q == '0 || $signed(data_in_0_i) > largest_q ? $signed(data_in_0_i) : largest_q;

  always_ff @(posedge clk_i) begin
    if (is_loaded) largest_q <= largest;
    if (is_loaded && is_load_last) maximum_q <= largest;
    if (!rst_ni) begin
      load_q <= '0;
      has_maximum_q <= 1'b0;
    end else begin
      if (is_loaded) load_q <= is_load_last ? '0 : load_q + 1'b1;
      if (is_loaded && is_load_last) has_maximum_q <= 1'b1;
      else if (is_maximum_free) has_maximum_q <= 1'b0;
    end
  end

  // ---- sum ----
  logic [COUNT_W-1:0] read_q, sum_count_q;
  logic [IN_W-1:0] code;
  logic [ADDRESS_W-1:0] distance_q;
  logic [TABLE_W-1:0] word, exponential;
  logic [SUM_W-1:0] partial_q, partial, sum_q;
  logic has_code, is_read, is_pipe_moving, has_distance_q, has_word_q, has_exponential_q;
  logic is_summed, is_sum_last, exponentials_ready, is_sum_free, has_sum_q, reciprocal_ready;

  chop_fifo #(.W(IN_W), .DEPTH(FEATURES + 12)) u_codes (
    .clk_i, .rst_ni, .data_in_0_i(data_in_0_i), .data_in_0_valid_i(is_loaded),
    .data_in_0_ready_o(codes_ready), .data_out_0_o(code), .data_out_0_valid_o(has_code),
    .data_out_0_ready_i(is_read));

  assign is_read = has_code && has_maximum_q && is_pipe_moving;
  assign is_maximum_free = !has_maximum_q || (is_read && read_q == LAST);

  chop_rom #(.W(TABLE_W), .DEPTH(TABLE_DEPTH), .FILE(TABLE_FILE)) u_table (
    .clk_i, .en_i(is_pipe_moving), .addr_i(distance_q), .data_o(word));

  assign is_sum_last = sum_count_q == LAST;
  assign is_sum_free = !has_sum_q || reciprocal_ready;
  assign is_summed = has_exponential_q && exponentials_ready && (!is_sum_last || is_sum_free);
  assign is_pipe_moving = !has_exponential_q || is_summed;
  assign partial = (sum_count_q == '0 ? '0 : partial_q) + SUM_W'(exponential);

  always_ff @(posedge clk_i) begin
    if (is_pipe_moving) exponential <= word;
    if (is_read) distance_q <= ADDRESS_W'(maximum_q - $signed(code));
    if (is_summed) partial_q <= partial;
    if (is_summed && is_sum_last) sum_q <= partial;
    if (!rst_ni) begin
      read_q <= '0;
      sum_count_q <= '0;
      has_distance_q <= 1'b0;
      has_word_q <= 1'b0;
      has_exponential_q <= 1'b0;
      has_sum_q <= 1'b0;
    end else begin
      if (is_read) read_q <= read_q == LAST ? '0 : read_q + 1'b1;
      if (is_summed) sum_count_q <= is_sum_last ? '0 : sum_count_q + 1'b1;
      if (is_pipe_moving) begin
        has_distance_q <= is_read;
        has_word_q <= has_distance_q;
        has_exponential_q <= has_word_q;
      end
      if (is_summed && is_sum_last) has_sum_q <= 1'b1;
      else if (reciprocal_ready) has_sum_q <= 1'b0;
    end
  end

  // ---- divide ----
  logic [RECIPROCAL_W-1:0] quotient, reciprocal_q;
  logic has_quotient, is_reciprocal_free, has_reciprocal_q;

  chop_reciprocal #(.POWER(POWER), .IN_W(SUM_W), .OUT_W(RECIPROCAL_W)) u_reciprocal (
    .clk_i, .rst_ni, .data_in_0_i(sum_q), .data_in_0_valid_i(has_sum_q),
    .data_in_0_ready_o(reciprocal_ready), .data_out_0_o(quotient),
    .data_out_0_valid_o(has_quotient), .data_out_0_ready_i(is_reciprocal_free));

  // ---- send ----
  logic [COUNT_W-1:0] send_q;
  logic [TABLE_W-1:0] kept;
  logic has_kept, has_terms_q, is_out_moving, is_sent;

  chop_fifo #(.W(TABLE_W), .DEPTH(DEPTH)) u_exponentials (
    .clk_i, .rst_ni, .data_in_0_i(exponential), .data_in_0_valid_i(is_summed),
    .data_in_0_ready_o(exponentials_ready), .data_out_0_o(kept), .data_out_0_valid_o(has_kept),
    .data_out_0_ready_i(is_sent));

  assign is_out_moving = !data_out_0_valid_o || data_out_0_ready_i;
  assign is_sent = has_kept && has_reciprocal_q && is_out_moving;
  assign is_reciprocal_free = !has_reciprocal_q || (is_sent && send_q == LAST);

  chop_product #(.A_W(TABLE_W + 1), .B_W(RECIPROCAL_W + 1), .OUT_W(OUT_W)) u_product (
    .clk_i, .en_i(is_out_moving), .a_i({1'b0, kept}), .b_i({1'b0, reciprocal_q}),
    .y_o(data_out_0_o));

  always_ff @(posedge clk_i) begin
    if (is_reciprocal_free) reciprocal_q <= quotient;
    if (!rst_ni) begin
      send_q <= '0;
      has_reciprocal_q <= 1'b0;
      has_terms_q <= 1'b0;
      data_out_0_valid_o <= 1'b0;
    end else begin
      if (is_sent) send_q <= send_q == LAST ? '0 : send_q + 1'b1;
      if (is_reciprocal_free) has_reciprocal_q <= has_quotient;
      if (is_out_moving) begin
        has_terms_q <= is_sent;
        data_out_0_valid_o <= has_terms_q;
      end
    end
  end
endmodule
