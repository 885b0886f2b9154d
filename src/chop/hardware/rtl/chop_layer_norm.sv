// Layer normalization along rows: y = (u G) 2^SCALE_SHIFT + B, with C = FEATURES and
//   S = sum of x, or 0 where CENTERED is 0 (RMSNorm); Q = sum of x^2; V = C Q - S^2;
//   D = floor(sqrt(V 2^(2 ROOT) + EPS)); R = floor(2^POWER / max(D, 2^ROOT));
//   u = (C x - S) R / 2^(POWER - ROOT - FRACTION), rounded to nearest even, within LIMIT.
//
// in      rows of FEATURES codes of IN_W bits, LANES per beat
// out     for each row FEATURES results of OUT_W bits, LANES per beat, in the order of the codes
// time    max(FEATURES / LANES, ceil(ceil(RADICAND_W / 2) / 2) + 1,
//         ceil((POWER - ROOT + 1) / 2) + 1) cycles between two rows: while the results of one
//         leave, others are in the root and in the reciprocal, and one is loaded. A stage takes
//         a row only when the stage after it has a place for what it finds of the row.
//           load    beats into a FIFO; squares | sums of a beat | sums of the row
//           root    C Q and S^2 | V 2^(2 ROOT) + EPS | chop_isqrt; S waits in a FIFO
//           divide  chop_reciprocal
//           send    C x | C x - S | times R | round and saturate | times G | plus B
// memory  a FIFO of DEPTH beats: more than a row, and those that come until a row has its
//         reciprocal; WEIGHT_FILE and BIAS_FILE, for each beat of a row a word of LANES numbers
//         of WEIGHT_W and of BIAS_W bits
//
// RADICAND_W is the width of the largest V 2^(2 ROOT) + EPS, LIMIT_W that of u, signed.
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
  parameter     BIAS_FILE = ""
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
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
  // V is smaller than C Q and S^2, whose upper bits cancel: all three are computed in its bits.
  localparam int V_W = RADICAND_W > 2 * ROOT ? RADICAND_W - 2 * ROOT : 1;
  localparam int SQUARE_W = 2 * IN_W < V_W ? 2 * IN_W : V_W;
  localparam int SQUARES_W =
    SQUARE_W + $clog2(FEATURES) < V_W ? SQUARE_W + $clog2(FEATURES) : V_W;
  localparam int ROOT_W = (RADICAND_W + 1) / 2;
  localparam int DIVISOR_W = ROOT_W > ROOT + 1 ? ROOT_W : ROOT + 1;
  localparam int RECIPROCAL_W = POWER - ROOT + 1;
  localparam int CENTERED_W = SUM_W + 1;
  localparam int PRODUCT_W = CENTERED_W + RECIPROCAL_W + 1;
  localparam int ROWS = 4;

  initial if (DEPTH < BEATS + 2)
    $fatal(1, "chop_layer_norm: a row of %0d beats does not fit %0d", BEATS, DEPTH);

  // ---- load ----
  logic is_loaded, is_load_moving, beats_ready;
  logic [LANES*IN_W-1:0] codes_q;
  logic [LANES*SQUARE_W-1:0] squares_q;
  logic signed [SUM_W-1:0] beat_sum, beat_sum_q, row_sum, partial_sum_q, sum_q;
  logic [SQUARES_W-1:0] beat_squares, beat_squares_q, row_squares, partial_squares_q, total_q;
  logic [COUNT_W-1:0] load_q;
  logic has_codes_q, has_beat_q, is_load_last, has_row_q, is_row_free;

  assign is_load_last = load_q == LAST;
  assign is_load_moving = !has_beat_q || !is_load_last || is_row_free;
  assign data_in_0_ready_o = is_load_moving && beats_ready;
  assign is_loaded = data_in_0_valid_i && data_in_0_ready_o;
  assign row_sum = (load_q == '0 ? '0 : partial_sum_q) + beat_sum_q;
  assign row_squares = (load_q == '0 ? '0 : partial_squares_q) + beat_squares_q;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_square
    logic signed [SQUARE_W-1:0] code;
    assign code = SQUARE_W'($signed(data_in_0_i[lane*IN_W +: IN_W]));
    always_ff @(posedge clk_i)
      if (is_load_moving) squares_q[lane*SQUARE_W +: SQUARE_W] <= code * code;
  end

  always_comb begin
    beat_sum = '0;
    beat_squares = '0;
    for (int lane = 0; lane < LANES; lane++) begin
      if (CENTERED != 0) beat_sum = beat_sum + SUM_W'($signed(codes_q[lane*IN_W +: IN_W]));
      beat_squares = beat_squares + SQUARES_W'(squares_q[lane*SQUARE_W +: SQUARE_W]);
    end
  end

  always_ff @(posedge clk_i) begin
    if (is_load_moving) begin
      codes_q <= data_in_0_i;
      beat_sum_q <= beat_sum;
      beat_squares_q <= beat_squares;
      if (has_beat_q) begin
        partial_sum_q <= row_sum;
        partial_squares_q <= row_squares;
      end
    end
    if (is_row_free) begin
      sum_q <= row_sum;
      total_q <= row_squares;
    end
    if (!rst_ni) begin
      load_q <= '0;
      has_codes_q <= 1'b0;
      has_beat_q <= 1'b0;
      has_row_q <= 1'b0;
    end else begin
      if (is_load_moving) begin
        has_codes_q <= is_loaded;
        has_beat_q <= has_codes_q;
        if (has_beat_q) load_q <= is_load_last ? '0 : load_q + 1'b1;
      end
      if (is_row_free) has_row_q <= has_beat_q && is_load_last;
    end
  end

  // ---- root ----
  logic signed [V_W-1:0] wide_sum;
  logic [V_W-1:0] squared_sum_q, scaled_squares_q, variance;
  logic [RADICAND_W-1:0] radicand_q;
  logic [ROOT_W-1:0] root;
  logic has_products_q, is_products_free, has_radicand_q, is_radicand_free, root_in_ready, has_root;
  logic sums_ready;

  assign is_radicand_free = !has_radicand_q || root_in_ready;
  assign is_products_free = !has_products_q || is_radicand_free;
  assign is_row_free = !has_row_q || (is_products_free && sums_ready);
  assign wide_sum = V_W'(sum_q);
  assign variance = scaled_squares_q - squared_sum_q;

  always_ff @(posedge clk_i) begin
    if (is_products_free) begin
      scaled_squares_q <= V_W'(total_q) * V_W'(FEATURES);
      squared_sum_q <= wide_sum * wide_sum;
    end
    if (is_radicand_free)
      radicand_q <= (RADICAND_W'(variance) << 2 * ROOT) + RADICAND_W'(EPS);
    if (!rst_ni) begin
      has_products_q <= 1'b0;
      has_radicand_q <= 1'b0;
    end else begin
      if (is_products_free) has_products_q <= has_row_q && sums_ready;
      if (is_radicand_free) has_radicand_q <= has_products_q;
    end
  end

  chop_isqrt #(.IN_W(RADICAND_W)) u_root (
    .clk_i, .rst_ni, .data_in_0_i(radicand_q), .data_in_0_valid_i(has_radicand_q),
    .data_in_0_ready_o(root_in_ready), .data_out_0_o(root), .data_out_0_valid_o(has_root),
    .data_out_0_ready_i(divisor_ready));

  // ---- divide ----
  logic [DIVISOR_W-1:0] divisor;
  logic [RECIPROCAL_W-1:0] quotient, reciprocal_q;
  logic signed [SUM_W-1:0] waiting_sum, subtrahend_q;
  logic divisor_ready, has_quotient, is_reciprocal_free, has_reciprocal_q, has_sum;

  assign divisor = DIVISOR_W'(root) >> ROOT == '0 ? DIVISOR_W'(1) << ROOT : DIVISOR_W'(root);

  chop_reciprocal #(.POWER(POWER), .IN_W(DIVISOR_W), .OUT_W(RECIPROCAL_W)) u_reciprocal (
    .clk_i, .rst_ni, .data_in_0_i(divisor), .data_in_0_valid_i(has_root),
    .data_in_0_ready_o(divisor_ready), .data_out_0_o(quotient),
    .data_out_0_valid_o(has_quotient), .data_out_0_ready_i(is_reciprocal_free && has_sum));

  chop_fifo #(.W(SUM_W), .DEPTH(ROWS)) u_sums (
    .clk_i, .rst_ni, .data_in_0_i(sum_q), .data_in_0_valid_i(has_row_q && is_products_free),
    .data_in_0_ready_o(sums_ready), .data_out_0_o(waiting_sum), .data_out_0_valid_o(has_sum),
    .data_out_0_ready_i(is_reciprocal_free && has_quotient));

  // ---- send ----
  logic [COUNT_W-1:0] send_q, parameter_q;
  logic [LANES*IN_W-1:0] beat;
  logic [LANES*WEIGHT_W-1:0] weights;
  logic [LANES*BIAS_W-1:0] biases, biases_q;
  logic [RECIPROCAL_W-1:0] reciprocal_1_q, reciprocal_2_q;
  logic signed [SUM_W-1:0] subtrahend_1_q;
  logic [7:0] has_stage_q;
  logic has_beat, is_sent, is_moving;

  chop_fifo #(.W(LANES * IN_W), .DEPTH(DEPTH)) u_beats (
    .clk_i, .rst_ni, .data_in_0_i(data_in_0_i), .data_in_0_valid_i(is_loaded),
    .data_in_0_ready_o(beats_ready), .data_out_0_o(beat), .data_out_0_valid_o(has_beat),
    .data_out_0_ready_i(is_sent));

  assign is_moving = !data_out_0_valid_o || data_out_0_ready_i;
  assign is_sent = has_beat && has_reciprocal_q && is_moving;
  assign is_reciprocal_free = !has_reciprocal_q || (is_sent && send_q == LAST);
  assign data_out_0_valid_o = has_stage_q[7];

  // Weights are read in the cycle in which a number is saturated, biases with them.
  chop_rom #(.W(LANES * WEIGHT_W), .DEPTH(BEATS), .FILE(WEIGHT_FILE)) u_weights (
    .clk_i, .en_i(is_moving), .addr_i(parameter_q), .data_o(weights));
  chop_rom #(.W(LANES * BIAS_W), .DEPTH(BEATS), .FILE(BIAS_FILE)) u_biases (
    .clk_i, .en_i(is_moving), .addr_i(parameter_q), .data_o(biases));

  always_ff @(posedge clk_i) begin
    if (is_reciprocal_free) begin
      reciprocal_q <= quotient;
      subtrahend_q <= waiting_sum;
    end
    if (is_moving) begin
      reciprocal_1_q <= reciprocal_q;
      reciprocal_2_q <= reciprocal_1_q;
      subtrahend_1_q <= subtrahend_q;
      biases_q <= biases;
    end
    if (!rst_ni) begin
      send_q <= '0;
      parameter_q <= '0;
      has_reciprocal_q <= 1'b0;
      has_stage_q <= '0;
    end else begin
      if (is_sent) send_q <= send_q == LAST ? '0 : send_q + 1'b1;
      if (is_reciprocal_free) has_reciprocal_q <= has_quotient && has_sum;
      if (is_moving) begin
        has_stage_q <= {has_stage_q[6:0], is_sent};
        if (has_stage_q[4]) parameter_q <= parameter_q == LAST ? '0 : parameter_q + 1'b1;
      end
    end
  end

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [SUM_W-1:0] multiple_q;
    logic signed [CENTERED_W-1:0] centered_q;
    logic signed [PRODUCT_W-1:0] product_q;
    logic signed [LIMIT_W-1:0] normalized;
    logic signed [OUT_W-1:0] scaled_q;

    chop_round_saturate #(
      .IN_W(PRODUCT_W), .SHIFT(POWER - ROOT - FRACTION), .OUT_W(LIMIT_W),
      .LOW(-$signed(LIMIT)), .HIGH($signed(LIMIT))
    ) u_round (.clk_i, .en_i(is_moving), .v_i(product_q), .y_o(normalized));

    always_ff @(posedge clk_i) begin
      if (is_moving) begin
        multiple_q <= SUM_W'($signed(beat[lane*IN_W +: IN_W])) * SUM_W'(FEATURES);
        centered_q <= CENTERED_W'(multiple_q) - CENTERED_W'(subtrahend_1_q);
        product_q <= PRODUCT_W'(centered_q) * $signed({{(PRODUCT_W - RECIPROCAL_W){1'b0}}, reciprocal_2_q});
        scaled_q <= OUT_W'(normalized) * OUT_W'($signed(weights[lane*WEIGHT_W +: WEIGHT_W]));
        data_out_0_o[lane*OUT_W +: OUT_W] <=
          (scaled_q <<< SCALE_SHIFT) + OUT_W'($signed(biases_q[lane*BIAS_W +: BIAS_W]));
      end
    end
  end
endmodule
