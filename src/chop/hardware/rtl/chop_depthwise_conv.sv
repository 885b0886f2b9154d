// Depthwise convolution: y[p, c] = (sum of the codes of channel c under the kernel at position p
// times w[c]) 2^SHIFT + b[c].
//
// Input:   images with channels last, the beats of chop_window, LANES codes of IN_W bits.
// Output:  for each window p, row by row, FOLDS beats of LANES results of OUT_W bits.
// Timing:  TAP_LANES window taps per cycle, plus the cycles in which chop_window waits for rows.
//          Pipeline: chop_window | multiply | register | chop_taps | chop_sum | bias.
// Memory:  the memory of chop_window. WEIGHT_FILE has a word of TAP_LANES * LANES weights of
//          WEIGHT_W bits for each beat of a pixel and each beat of taps, tap by tap. BIAS_FILE has a
//          word of LANES biases of BIAS_W bits for each beat of a pixel.
//
// IN_HEIGHT to PAD_CODE and TAP_LANES are parameters of chop_window.
//
// WEIGHT_BASE and BIAS_BASE are addresses for numbers that are written through load_i at run time
// (see chop_ram), or below zero for memories with the contents of the files.
module chop_depthwise_conv #(
  parameter int LANES = 1,
  parameter int IN_W = 8,
  parameter int FOLDS = 1,
  parameter int IN_HEIGHT = 4,
  parameter int IN_WIDTH = 4,
  parameter int OUT_HEIGHT = 2,
  parameter int OUT_WIDTH = 2,
  parameter int KERNEL_Y = 3,
  parameter int KERNEL_X = 3,
  parameter int STRIDE_Y = 1,
  parameter int STRIDE_X = 1,
  parameter int PADDING_Y = 0,
  parameter int PADDING_X = 0,
  parameter int DILATION_Y = 1,
  parameter int DILATION_X = 1,
  parameter int RING = 6,
  parameter     PAD_CODE = 0,
  parameter int TAP_LANES = 1,
  parameter int WEIGHT_W = 8,
  parameter int BIAS_W = 8,
  parameter int OUT_W = 21,
  parameter int SHIFT = 0,
  parameter     WEIGHT_FILE = "",
  parameter     BIAS_FILE = "",
  parameter int WEIGHT_BASE = -1,
  parameter int BIAS_BASE = -1
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic [56:0]                load_i,
  input  logic [LANES*IN_W-1:0]      data_in_0_i,
  input  logic                       data_in_0_valid_i,
  output logic                       data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0]     data_out_0_o,
  output logic                       data_out_0_valid_o,
  input  logic                       data_out_0_ready_i
);
  localparam int BEATS     = KERNEL_Y * KERNEL_X / TAP_LANES;
  localparam int PRODUCTS  = TAP_LANES * LANES;
  // Bits shifted beyond the result need no sum.
  localparam int SUM_W     = (OUT_W > SHIFT) ? OUT_W - SHIFT : 1;
  localparam int FULL_W    = IN_W + WEIGHT_W;
  localparam int PRODUCT_W = (FULL_W < SUM_W) ? FULL_W : SUM_W;

  logic [PRODUCTS*IN_W-1:0] codes, codes_q;
  logic [PRODUCTS*WEIGHT_W-1:0] weight, weight_q;
  logic [LANES*BIAS_W-1:0] bias;
  logic [PRODUCTS*PRODUCT_W-1:0] products_q, terms_q;
  logic [LANES*SUM_W-1:0] tree, sums;
  logic has_codes, has_weight, has_factors_q, has_products_q, has_terms_q, is_tree_ready;
  logic has_tree, is_sum_ready, has_sums, has_bias, moves, last_moves;

  chop_window #(
    .LANES(LANES), .IN_W(IN_W), .FOLDS(FOLDS), .IN_HEIGHT(IN_HEIGHT), .IN_WIDTH(IN_WIDTH),
    .OUT_HEIGHT(OUT_HEIGHT), .OUT_WIDTH(OUT_WIDTH), .KERNEL_Y(KERNEL_Y), .KERNEL_X(KERNEL_X),
    .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .PADDING_Y(PADDING_Y), .PADDING_X(PADDING_X),
    .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .RING(RING), .PAD_CODE(PAD_CODE),
    .TAP_LANES(TAP_LANES)
  ) u_window (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .data_out_0_o(codes), .data_out_0_valid_o(has_codes), .data_out_0_ready_i(moves && has_weight));

  chop_constant #(
    .W(PRODUCTS * WEIGHT_W), .BEATS(FOLDS * BEATS), .FILE(WEIGHT_FILE), .BASE(WEIGHT_BASE)
  ) u_weight (
    .clk_i, .rst_ni, .load_i, .data_out_0_o(weight), .data_out_0_valid_o(has_weight),
    .data_out_0_ready_i(moves && has_codes));

  assign moves = !has_terms_q || is_tree_ready;

  for (genvar i = 0; i < PRODUCTS; i++) begin : g_lane
    logic signed [IN_W-1:0] x;
    logic signed [WEIGHT_W-1:0] w;
    logic unused;  // bits beyond those of a narrow sum
    assign unused = &{1'b0, x, w};
    assign x = codes_q[i*IN_W +: IN_W];
    assign w = weight_q[i*WEIGHT_W +: WEIGHT_W];
    always_ff @(posedge clk_i) begin
      if (moves) products_q[i*PRODUCT_W +: PRODUCT_W] <= PRODUCT_W'(x) * PRODUCT_W'(w);
    end
  end

  always_ff @(posedge clk_i) begin
    if (moves) begin
      codes_q  <= codes;
      weight_q <= weight;
      terms_q  <= products_q;
    end
    if (!rst_ni) begin
      has_factors_q  <= 1'b0;
      has_products_q <= 1'b0;
      has_terms_q    <= 1'b0;
    end else if (moves) begin
      has_factors_q  <= has_codes && has_weight;
      has_products_q <= has_factors_q;
      has_terms_q    <= has_products_q;
    end
  end

  chop_taps #(.N(TAP_LANES), .LANES(LANES), .IN_W(PRODUCT_W), .OUT_W(SUM_W)) u_taps (
    .clk_i, .rst_ni, .data_in_0_i(terms_q), .data_in_0_valid_i(has_terms_q),
    .data_in_0_ready_o(is_tree_ready), .data_out_0_o(tree), .data_out_0_valid_o(has_tree),
    .data_out_0_ready_i(is_sum_ready));

  chop_sum #(.LANES(LANES), .IN_W(SUM_W), .OUT_W(SUM_W), .COUNT(BEATS)) u_sum (
    .clk_i, .rst_ni, .data_in_0_i(tree), .data_in_0_valid_i(has_tree),
    .data_in_0_ready_o(is_sum_ready), .data_out_0_o(sums), .data_out_0_valid_o(has_sums),
    .data_out_0_ready_i(last_moves && has_bias));

  chop_constant #(.W(LANES * BIAS_W), .BEATS(FOLDS), .FILE(BIAS_FILE), .BASE(BIAS_BASE)) u_bias (
    .clk_i, .rst_ni, .load_i, .data_out_0_o(bias), .data_out_0_valid_o(has_bias),
    .data_out_0_ready_i(last_moves && has_sums));

  assign last_moves = !data_out_0_valid_o || data_out_0_ready_i;

  for (genvar i = 0; i < LANES; i++) begin : g_out
    logic signed [SUM_W-1:0] s;
    logic signed [BIAS_W-1:0] b;
    assign s = sums[i*SUM_W +: SUM_W];
    assign b = bias[i*BIAS_W +: BIAS_W];
    always_ff @(posedge clk_i) begin
      if (last_moves) data_out_0_o[i*OUT_W +: OUT_W] <= (OUT_W'(s) << SHIFT) + OUT_W'(b);
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (last_moves) data_out_0_valid_o <= has_sums && has_bias;
  end
endmodule
