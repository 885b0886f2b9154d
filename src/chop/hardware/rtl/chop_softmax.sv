// Softmax along rows: y = e R with e = TABLE[max - x] and R = floor(2^POWER / sum of e).
//
// Input:   rows of FEATURES codes of IN_W bits, one per beat.
// Output:  for each row FEATURES results of OUT_W bits, one per beat, in the order of the codes.
// Timing:  max(FEATURES, POWER - TABLE_W + 2) cycles between two rows. The stages below work on
//          different rows at the same time. A stage accepts a row only if the next stage has room
//          for its result.
//            load    codes into a FIFO, and their maximum | register | chop_skid
//            sum     distance to the maximum | TABLE | register | exponentials into the FIFO of
//                    chop_credits, and their sum
//            divide  chop_reciprocal
//            send    exponential | times reciprocal, two cycles | FIFO of chop_credits
// Memory:  FIFOs of FEATURES + 12 codes and of DEPTH exponentials. They hold a row and the codes
//          that arrive while a row is divided.
//
// TABLE has TABLE_DEPTH unsigned entries of TABLE_W bits, one for each distance between two codes.
// The first one is 2^TABLE_W - 1. OUT_W is at least POWER + 2.
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
  localparam int SUM_STAGES = 3;
  localparam int SEND_STAGES = 3;
  localparam logic [COUNT_W-1:0] LAST = COUNT_W'(FEATURES - 1);

  initial if (DEPTH < FEATURES + 2)
    $fatal(1, "chop_softmax: a row of %0d exponentials does not fit %0d", FEATURES, DEPTH);

  // ---- load ----
  logic [COUNT_W-1:0] load_q;
  logic signed [IN_W-1:0] largest_q, largest, maximum;
  logic is_loaded, is_load_last, is_complete_q, codes_ready, maxima_ready, has_maximum;
  logic is_read_last;

  assign is_load_last = load_q == LAST;
  // Only the last code of a row needs a place for the row's maximum.
  assign data_in_0_ready_o = codes_ready && (!is_load_last || (maxima_ready && !is_complete_q));
  assign is_loaded = data_in_0_valid_i && data_in_0_ready_o;
  assign largest =
    load_q == '0 || $signed(data_in_0_i) > largest_q ? $signed(data_in_0_i) : largest_q;

  always_ff @(posedge clk_i) begin
    if (is_loaded) largest_q <= largest;
    is_complete_q <= rst_ni && is_loaded && is_load_last;
    if (!rst_ni) load_q <= '0;
    else if (is_loaded) load_q <= is_load_last ? '0 : load_q + 1'b1;
  end

  chop_skid #(.W(IN_W)) u_maxima (
    .clk_i, .rst_ni, .data_in_0_i(largest_q), .data_in_0_valid_i(is_complete_q),
    .data_in_0_ready_o(maxima_ready), .data_out_0_o(maximum), .data_out_0_valid_o(has_maximum),
    .data_out_0_ready_i(is_read_last));

  // ---- sum ----
  // The pipeline never stalls: a row's last code is read when the row before has left sum_q.
  logic [COUNT_W-1:0] read_q;
  logic [IN_W-1:0] code;
  logic [ADDRESS_W-1:0] distance_q;
  logic [TABLE_W-1:0] word, exponential_q;
  logic [SUM_W-1:0] partial_q, partial, sum_q;
  logic [SUM_STAGES-1:0] summed_q, last_q;
  logic has_code, is_read, is_last, exponentials_ready, reciprocal_ready;
  logic is_first_q, is_row_taken_q, has_sum_q;

  chop_fifo #(.W(IN_W), .DEPTH(FEATURES + 12)) u_codes (
    .clk_i, .rst_ni, .data_in_0_i(data_in_0_i), .data_in_0_valid_i(is_loaded),
    .data_in_0_ready_o(codes_ready), .data_out_0_o(code), .data_out_0_valid_o(has_code),
    .data_out_0_ready_i(is_read));

  assign is_last = read_q == LAST;
  // Distances need the maximum of the row, so no code is read before the whole row has arrived.
  assign is_read =
    has_code && has_maximum && exponentials_ready && !(is_last && is_row_taken_q);
  assign is_read_last = is_read && is_last;

  chop_rom #(.W(TABLE_W), .DEPTH(TABLE_DEPTH), .FILE(TABLE_FILE)) u_table (
    .clk_i, .en_i(1'b1), .addr_i(distance_q), .data_o(word));

  assign partial = (is_first_q ? '0 : partial_q) + SUM_W'(exponential_q);

  always_ff @(posedge clk_i) begin
    distance_q    <= ADDRESS_W'(maximum - $signed(code));
    exponential_q <= word;
    last_q        <= {last_q[SUM_STAGES-2:0], is_last};
    if (summed_q[SUM_STAGES-1]) begin
      partial_q <= partial;
      if (last_q[SUM_STAGES-1]) sum_q <= partial;
    end
    if (!rst_ni) begin
      read_q         <= '0;
      summed_q       <= '0;
      is_first_q     <= 1'b1;
      is_row_taken_q <= 1'b0;
      has_sum_q      <= 1'b0;
    end else begin
      if (is_read) read_q <= is_last ? '0 : read_q + 1'b1;
      summed_q <= {summed_q[SUM_STAGES-2:0], is_read};
      if (summed_q[SUM_STAGES-1]) is_first_q <= last_q[SUM_STAGES-1];
      if (is_read_last) is_row_taken_q <= 1'b1;
      else if (has_sum_q && reciprocal_ready) is_row_taken_q <= 1'b0;
      if (summed_q[SUM_STAGES-1] && last_q[SUM_STAGES-1]) has_sum_q <= 1'b1;
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
  logic [TABLE_W-1:0] kept, kept_q;
  logic [RECIPROCAL_W-1:0] reciprocal_1_q;
  logic [OUT_W-1:0] result;
  logic [SEND_STAGES-1:0] sent_q;
  logic has_kept, is_ready, is_sent;

  chop_credits #(.W(TABLE_W), .LATENCY(SUM_STAGES), .PLACES(DEPTH)) u_exponentials (
    .clk_i, .rst_ni, .starts_i(is_read), .ready_o(exponentials_ready), .data_i(exponential_q),
    .valid_i(summed_q[SUM_STAGES-1]), .data_out_0_o(kept), .data_out_0_valid_o(has_kept),
    .data_out_0_ready_i(has_reciprocal_q && is_ready));

  assign is_sent = has_kept && has_reciprocal_q && is_ready;
  assign is_reciprocal_free = !has_reciprocal_q || (is_sent && send_q == LAST);

  chop_product #(.A_W(TABLE_W + 1), .B_W(RECIPROCAL_W + 1), .OUT_W(OUT_W)) u_product (
    .clk_i, .en_i(1'b1), .a_i({1'b0, kept_q}), .b_i({1'b0, reciprocal_1_q}), .y_o(result));

  always_ff @(posedge clk_i) begin
    if (is_reciprocal_free) reciprocal_q <= quotient;
    // The product takes two cycles; this register is the first stage of the three.
    kept_q         <= kept;
    reciprocal_1_q <= reciprocal_q;
    if (!rst_ni) begin
      send_q <= '0;
      has_reciprocal_q <= 1'b0;
      sent_q <= '0;
    end else begin
      if (is_sent) send_q <= send_q == LAST ? '0 : send_q + 1'b1;
      if (is_reciprocal_free) has_reciprocal_q <= has_quotient;
      sent_q <= {sent_q[SEND_STAGES-2:0], is_sent};
    end
  end

  chop_credits #(.W(OUT_W), .LATENCY(SEND_STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(is_sent), .ready_o(is_ready), .data_i(result),
    .valid_i(sent_q[SEND_STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
