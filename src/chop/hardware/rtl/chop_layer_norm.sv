// Layer normalization along rows: y = (u G) 2^SCALE_SHIFT + B, with C = FEATURES and
//   S = sum of x, or 0 if CENTERED is 0 (RMSNorm); Q = sum of x^2; V = C Q - S^2;
//   D = floor(sqrt(V 2^(2 ROOT) + EPS)); R = floor(2^POWER / max(D, 2^ROOT));
//   u = (C x - S) R / 2^(POWER - ROOT - FRACTION), rounded to nearest even and limited to LIMIT.
//
// Input:   rows of FEATURES codes of IN_W bits, LANES per beat.
// Output:  rows of FEATURES results of OUT_W bits, LANES per beat, in the order of the codes.
// Timing:  max(FEATURES / LANES, ceil(RADICAND_W / 2) + 1, POWER - ROOT + 2) cycles between two
//          rows. The stages below work on different rows at the same time. A stage accepts a row
//          only if the next stage has room for its result.
//            load    beats into a FIFO; codes | squares | sums of a beat | sums of the row
//            root    sums | C Q and S^2, two cycles | V | V 2^(2 ROOT) + EPS | FIFO of
//                    chop_credits | chop_isqrt; S waits in a FIFO
//            divide  max(D, 2^ROOT) in chop_skid | chop_reciprocal
//            send    x | C x | C x - S | factors | times R, two cycles | round and saturate, three
//                    cycles | factors | times G, two cycles | plus B | FIFO of chop_credits
// Memory:  a FIFO of DEPTH beats for a row and the beats that arrive until its reciprocal is known.
//          WEIGHT_FILE and BIAS_FILE have a word of LANES numbers of WEIGHT_W and BIAS_W bits for
//          each beat of a row. WEIGHT_BASE, BIAS_BASE and load_i are BASE and load_i of chop_words.
//
// RADICAND_W is the width of the largest V 2^(2 ROOT) + EPS. LIMIT_W is the width of u, signed.
module chop_layer_norm #(
  parameter int LANES = 4,
  parameter int FEATURES = 48,
  parameter int IN_W = 8,
  parameter int OUT_W = 40,
  parameter int CENTERED = 1,
  parameter int RADICAND_W = 58,
  parameter int ROOT = 16,
  parameter int POWER = 45,
  parameter int FRACTION = 16,
  parameter logic [63:0] EPS = 64'd1,
  parameter logic [63:0] LIMIT = 64'd458752,
  parameter int LIMIT_W = 20,
  parameter int SCALE_SHIFT = 0,
  parameter int WEIGHT_W = 8,
  parameter int BIAS_W = 32,
  parameter int DEPTH = 60,
  parameter     WEIGHT_FILE = "",
  parameter     BIAS_FILE = "",
  parameter int WEIGHT_BASE = -1,
  parameter int BIAS_BASE = -1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [56:0]            load_i,
  input  logic [LANES*IN_W-1:0]  data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  localparam int BEATS = FEATURES / LANES;
  localparam int COUNT_W = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam logic [COUNT_W-1:0] LAST = COUNT_W'(BEATS - 1);
  localparam int SUM_W = IN_W + $clog2(FEATURES);
  // V is smaller than C Q and S^2, whose upper bits cancel, so V's width suffices for all three.
  localparam int V_W = RADICAND_W > 2 * ROOT ? RADICAND_W - 2 * ROOT : 1;
  localparam int SQUARE_W = 2 * IN_W < V_W ? 2 * IN_W : V_W;
  localparam int SQUARES_W =
    SQUARE_W + $clog2(FEATURES) < V_W ? SQUARE_W + $clog2(FEATURES) : V_W;
  localparam int ROOT_W = (RADICAND_W + 1) / 2;
  localparam int DIVISOR_W = ROOT_W > ROOT + 1 ? ROOT_W : ROOT + 1;
  localparam int RECIPROCAL_W = POWER - ROOT + 1;
  localparam int CENTERED_W = SUM_W + 1;
  localparam int PRODUCT_W = CENTERED_W + RECIPROCAL_W + 1;
  localparam int COUNT_BITS = $clog2(FEATURES + 1);
  localparam int ROOT_CYCLES = ROOT_W + 1;
  localparam int LOAD_STAGES = 3;
  localparam int ROOT_STAGES = 5;
  localparam int STAGES = 13;
  localparam int ROWS = 8;

  initial if (DEPTH < BEATS + 2)
    $fatal(1, "chop_layer_norm: a row of %0d beats does not fit %0d", BEATS, DEPTH);

  // ---- load ----
  // The pipeline never stalls: a row's last beat is taken when the row before has left sum_q.
  logic is_loaded, is_last_in, beats_ready;
  logic [LANES*IN_W-1:0] codes_q, codes_1_q;
  logic [LANES*SQUARE_W-1:0] squares_q;
  logic signed [SUM_W-1:0] beat_sum, beat_sum_q, row_sum, partial_sum_q, sum_q;
  logic [SQUARES_W-1:0] beat_squares, beat_squares_q, row_squares, partial_squares_q, total_q;
  logic [COUNT_W-1:0] load_q;
  logic [LOAD_STAGES-1:0] loaded_q, last_q;
  logic is_first_q, is_row_taken_q, has_row_q, starts_root;

  assign is_last_in = load_q == LAST;
  assign data_in_0_ready_o = beats_ready && !(is_last_in && is_row_taken_q);
  assign is_loaded = data_in_0_valid_i && data_in_0_ready_o;
  assign row_sum = (is_first_q ? '0 : partial_sum_q) + beat_sum_q;
  assign row_squares = (is_first_q ? '0 : partial_squares_q) + beat_squares_q;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_square
    logic signed [SQUARE_W-1:0] code;
    assign code = SQUARE_W'($signed(codes_q[lane*IN_W +: IN_W]));
    always_ff @(posedge clk_i) squares_q[lane*SQUARE_W +: SQUARE_W] <= code * code;
  end

  always_comb begin
    beat_sum = '0;
    beat_squares = '0;
    for (int lane = 0; lane < LANES; lane++) begin
      if (CENTERED != 0) beat_sum = beat_sum + SUM_W'($signed(codes_1_q[lane*IN_W +: IN_W]));
      beat_squares = beat_squares + SQUARES_W'(squares_q[lane*SQUARE_W +: SQUARE_W]);
    end
  end

  always_ff @(posedge clk_i) begin
    codes_q        <= data_in_0_i;
    codes_1_q      <= codes_q;
    beat_sum_q     <= beat_sum;
    beat_squares_q <= beat_squares;
    last_q         <= {last_q[LOAD_STAGES-2:0], is_last_in};
    if (loaded_q[LOAD_STAGES-1]) begin
      partial_sum_q     <= row_sum;
      partial_squares_q <= row_squares;
      if (last_q[LOAD_STAGES-1]) begin
        sum_q   <= row_sum;
        total_q <= row_squares;
      end
    end
    if (!rst_ni) begin
      load_q         <= '0;
      loaded_q       <= '0;
      is_first_q     <= 1'b1;
      is_row_taken_q <= 1'b0;
      has_row_q      <= 1'b0;
    end else begin
      if (is_loaded) load_q <= is_last_in ? '0 : load_q + 1'b1;
      loaded_q <= {loaded_q[LOAD_STAGES-2:0], is_loaded};
      if (loaded_q[LOAD_STAGES-1]) is_first_q <= last_q[LOAD_STAGES-1];
      if (is_loaded && is_last_in) is_row_taken_q <= 1'b1;
      else if (starts_root) is_row_taken_q <= 1'b0;
      if (loaded_q[LOAD_STAGES-1] && last_q[LOAD_STAGES-1]) has_row_q <= 1'b1;
      else if (starts_root) has_row_q <= 1'b0;
    end
  end

  // ---- root ----
  logic signed [SUM_W-1:0] sum_1_q;
  logic [SQUARES_W-1:0] total_1_q;
  logic [V_W-1:0] squared_sum, scaled_squares, variance_q;
  logic [RADICAND_W-1:0] radicand_q, radicand;
  logic [ROOT_W-1:0] root;
  logic [ROOT_STAGES-1:0] has_root_stage_q;
  logic is_radicand_ready, root_in_ready, has_radicand, has_root, root_ready;
  logic sums_ready;

  assign starts_root = has_row_q && is_radicand_ready && sums_ready;

  chop_product #(.A_W(SQUARES_W + 1), .B_W(COUNT_BITS + 1), .OUT_W(V_W)) u_scaled (
    .clk_i, .en_i(1'b1), .a_i({1'b0, total_1_q}), .b_i((COUNT_BITS + 1)'(FEATURES)),
    .y_o(scaled_squares));
  chop_product #(.A_W(SUM_W), .B_W(SUM_W), .OUT_W(V_W)) u_squared (
    .clk_i, .en_i(1'b1), .a_i(sum_1_q), .b_i(sum_1_q), .y_o(squared_sum));

  always_ff @(posedge clk_i) begin
    sum_1_q    <= sum_q;
    total_1_q  <= total_q;
    variance_q <= scaled_squares - squared_sum;
    radicand_q <= (RADICAND_W'(variance_q) << 2 * ROOT) + RADICAND_W'(EPS);
    has_root_stage_q <=
      rst_ni ? {has_root_stage_q[ROOT_STAGES-2:0], starts_root} : '0;
  end

  chop_credits #(.W(RADICAND_W), .LATENCY(ROOT_STAGES), .EVERY(ROOT_CYCLES)) u_radicands (
    .clk_i, .rst_ni, .starts_i(starts_root), .ready_o(is_radicand_ready), .data_i(radicand_q),
    .valid_i(has_root_stage_q[ROOT_STAGES-1]), .data_out_0_o(radicand),
    .data_out_0_valid_o(has_radicand), .data_out_0_ready_i(root_in_ready));

  chop_isqrt #(.IN_W(RADICAND_W)) u_root (
    .clk_i, .rst_ni, .data_in_0_i(radicand), .data_in_0_valid_i(has_radicand),
    .data_in_0_ready_o(root_in_ready), .data_out_0_o(root), .data_out_0_valid_o(has_root),
    .data_out_0_ready_i(root_ready));

  // ---- divide ----
  logic [DIVISOR_W-1:0] least_divisor, divisor;
  logic [RECIPROCAL_W-1:0] quotient, reciprocal_q;
  logic signed [SUM_W-1:0] waiting_sum, subtrahend_q;
  logic has_divisor, divisor_ready, has_quotient, is_reciprocal_free;
  logic has_reciprocal_q, has_sum;

  // A divisor of at least 2^ROOT bounds the reciprocal to RECIPROCAL_W bits.
  assign least_divisor =
    DIVISOR_W'(root) >> ROOT == '0 ? DIVISOR_W'(1) << ROOT : DIVISOR_W'(root);

  chop_skid #(.W(DIVISOR_W)) u_divisor (
    .clk_i, .rst_ni, .data_in_0_i(least_divisor), .data_in_0_valid_i(has_root),
    .data_in_0_ready_o(root_ready), .data_out_0_o(divisor), .data_out_0_valid_o(has_divisor),
    .data_out_0_ready_i(divisor_ready));

  chop_reciprocal #(.POWER(POWER), .IN_W(DIVISOR_W), .OUT_W(RECIPROCAL_W)) u_reciprocal (
    .clk_i, .rst_ni, .data_in_0_i(divisor), .data_in_0_valid_i(has_divisor),
    .data_in_0_ready_o(divisor_ready), .data_out_0_o(quotient),
    .data_out_0_valid_o(has_quotient), .data_out_0_ready_i(is_reciprocal_free && has_sum));

  chop_fifo #(.W(SUM_W), .DEPTH(ROWS)) u_sums (
    .clk_i, .rst_ni, .data_in_0_i(sum_q), .data_in_0_valid_i(starts_root),
    .data_in_0_ready_o(sums_ready), .data_out_0_o(waiting_sum), .data_out_0_valid_o(has_sum),
    .data_out_0_ready_i(is_reciprocal_free && has_quotient));

  // ---- send ----
  logic [COUNT_W-1:0] send_q;
  logic [LANES*IN_W-1:0] beat;
  logic [LANES*WEIGHT_W-1:0] weights;
  logic [LANES*BIAS_W-1:0] biases;
  logic [RECIPROCAL_W-1:0] reciprocal_1_q, reciprocal_2_q, reciprocal_3_q, reciprocal_4_q;
  logic signed [SUM_W-1:0] subtrahend_1_q, subtrahend_2_q;
  logic [LANES*IN_W-1:0] beat_q;
  logic [LANES*OUT_W-1:0] results_q;
  logic [STAGES-1:0] valid_q;
  logic has_beat, is_sent, is_ready;

  chop_fifo #(.W(LANES * IN_W), .DEPTH(DEPTH)) u_beats (
    .clk_i, .rst_ni, .data_in_0_i(data_in_0_i), .data_in_0_valid_i(is_loaded),
    .data_in_0_ready_o(beats_ready), .data_out_0_o(beat), .data_out_0_valid_o(has_beat),
    .data_out_0_ready_i(has_reciprocal_q && is_ready));

  assign is_sent = has_beat && has_reciprocal_q && is_ready;
  // The reciprocal of the next row can be loaded in the cycle in which the last beat of this row
  // leaves.
  assign is_reciprocal_free = !has_reciprocal_q || (is_sent && send_q == LAST);

  chop_words #(
    .W(LANES * WEIGHT_W), .BEATS(BEATS), .FILE(WEIGHT_FILE), .BASE(WEIGHT_BASE)
  ) u_weights (.clk_i, .rst_ni, .load_i, .takes_i(valid_q[7]), .data_o(weights));
  chop_words #(.W(LANES * BIAS_W), .BEATS(BEATS), .FILE(BIAS_FILE), .BASE(BIAS_BASE)) u_biases (
    .clk_i, .rst_ni, .load_i, .takes_i(valid_q[9]), .data_o(biases));

  always_ff @(posedge clk_i) begin
    if (is_reciprocal_free) begin
      reciprocal_q <= quotient;
      subtrahend_q <= waiting_sum;
    end
    reciprocal_1_q <= reciprocal_q;
    reciprocal_2_q <= reciprocal_1_q;
    reciprocal_3_q <= reciprocal_2_q;
    reciprocal_4_q <= reciprocal_3_q;
    subtrahend_1_q <= subtrahend_q;
    subtrahend_2_q <= subtrahend_1_q;
    beat_q <= beat;
    if (!rst_ni) begin
      send_q <= '0;
      has_reciprocal_q <= 1'b0;
      valid_q <= '0;
    end else begin
      if (is_sent) send_q <= send_q == LAST ? '0 : send_q + 1'b1;
      if (is_reciprocal_free) has_reciprocal_q <= has_quotient && has_sum;
      valid_q <= {valid_q[STAGES-2:0], is_sent};
    end
  end

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [SUM_W-1:0] multiple_q;
    logic signed [CENTERED_W-1:0] centered_q, centered_1_q;
    logic signed [PRODUCT_W-1:0] product;
    logic signed [LIMIT_W-1:0] normalized, normalized_q;
    logic signed [OUT_W-1:0] scaled;

    always_ff @(posedge clk_i) begin
      multiple_q <= SUM_W'($signed(beat_q[lane*IN_W +: IN_W])) * SUM_W'(FEATURES);
      centered_q <= CENTERED_W'(multiple_q) - CENTERED_W'(subtrahend_2_q);
      centered_1_q <= centered_q;
      normalized_q <= normalized;
      results_q[lane*OUT_W +: OUT_W] <=
        (scaled <<< SCALE_SHIFT) + OUT_W'($signed(biases[lane*BIAS_W +: BIAS_W]));
    end

    chop_product #(.A_W(CENTERED_W), .B_W(RECIPROCAL_W + 1), .OUT_W(PRODUCT_W)) u_product (
      .clk_i, .en_i(1'b1), .a_i(centered_1_q), .b_i({1'b0, reciprocal_4_q}), .y_o(product));

    chop_round_saturate #(
      .IN_W(PRODUCT_W), .SHIFT(POWER - ROOT - FRACTION), .OUT_W(LIMIT_W),
      .LOW(-$signed(LIMIT)), .HIGH($signed(LIMIT))
    ) u_round (.clk_i, .en_i(1'b1), .v_i(product), .y_o(normalized));

    chop_product #(.A_W(LIMIT_W), .B_W(WEIGHT_W), .OUT_W(OUT_W)) u_scaled (
      .clk_i, .en_i(1'b1), .a_i(normalized_q), .b_i(weights[lane*WEIGHT_W +: WEIGHT_W]),
      .y_o(scaled));
  end

  chop_credits #(.W(LANES * OUT_W), .LATENCY(STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(is_sent), .ready_o(is_ready), .data_i(results_q),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
