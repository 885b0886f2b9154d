// Convolution in groups of channels: each group's outputs are those of chop_conv over its channels.
//
// in      images, channels last: the beats of chop_window, of LANES codes of one group, IN_W bits
// out     for each window, row by row, for each of the GROUPS OUT_FEATURES results of OUT_W bits,
//         OUT_LANES per beat
// time    windows need max(window beats, GROUPS * (IN_FEATURES / IN_LANES) * (OUT_FEATURES /
//         OUT_LANES)) cycles each, and what chop_window waits for rows;
//           chop_window | IN_LANES codes at a time | FIFO of DEPTH beats | chop_matvec | bias |
//           FIFO of chop_credits
// memory  that of chop_window; the codes of a group under a window, where its outputs are computed
//         in several turns; WEIGHT_FILE and BIAS_FILE: the words of chop_linear of each group
//
// IN_FEATURES are the codes of a group under a window, OUT_FEATURES its results. IN_HEIGHT to
// PAD_CODE are parameters of chop_window; IN_LANES is a multiple of LANES.
module chop_group_conv #(
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
  parameter int DEPTH = 2,
  parameter int GROUPS = 2,
  parameter int IN_FEATURES = 9,
  parameter int IN_LANES = 1,
  parameter int OUT_LANES = 1,
  parameter int OUT_FEATURES = 1,
  parameter int WEIGHT_W = 8,
  parameter int BIAS_W = 8,
  parameter int OUT_W = 21,
  parameter int SHIFT = 0,
  parameter     WEIGHT_FILE = "",
  parameter     BIAS_FILE = ""
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic [LANES*IN_W-1:0]      data_in_0_i,
  input  logic                       data_in_0_valid_i,
  output logic                       data_in_0_ready_o,
  output logic [OUT_LANES*OUT_W-1:0] data_out_0_o,
  output logic                       data_out_0_valid_o,
  input  logic                       data_out_0_ready_i
);
  localparam int TURNS = OUT_FEATURES / OUT_LANES;
  localparam int BEATS = IN_FEATURES / IN_LANES;
  // What is shifted beyond the result needs no sum.
  localparam int SUM_W = (OUT_W > SHIFT) ? OUT_W - SHIFT : 1;

  logic [LANES*IN_W-1:0] codes;
  logic [IN_LANES*IN_W-1:0] beat, waiting;
  logic has_codes, is_codes_ready, has_beat, is_beat_ready, has_waiting, is_waiting_ready;
  logic [OUT_LANES*IN_LANES*WEIGHT_W-1:0] weight;
  logic [OUT_LANES*BIAS_W-1:0] bias;
  logic [OUT_LANES*SUM_W-1:0] sums;
  logic [OUT_LANES*OUT_W-1:0] results_q;
  logic takes, starts, is_ready, finishes, has_sums, has_results_q;

  chop_window #(
    .LANES(LANES), .IN_W(IN_W), .FOLDS(FOLDS), .IN_HEIGHT(IN_HEIGHT), .IN_WIDTH(IN_WIDTH),
    .OUT_HEIGHT(OUT_HEIGHT), .OUT_WIDTH(OUT_WIDTH), .KERNEL_Y(KERNEL_Y), .KERNEL_X(KERNEL_X),
    .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .PADDING_Y(PADDING_Y), .PADDING_X(PADDING_X),
    .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .RING(RING), .PAD_CODE(PAD_CODE)
  ) u_window (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .data_out_0_o(codes), .data_out_0_valid_o(has_codes), .data_out_0_ready_i(is_codes_ready));

  chop_upsize #(.W(IN_W), .IN_LANES(LANES), .OUT_LANES(IN_LANES)) u_upsize (
    .clk_i, .rst_ni, .data_in_0_i(codes), .data_in_0_valid_i(has_codes),
    .data_in_0_ready_o(is_codes_ready), .data_out_0_o(beat), .data_out_0_valid_o(has_beat),
    .data_out_0_ready_i(is_beat_ready));

  chop_fifo #(.W(IN_LANES * IN_W), .DEPTH(DEPTH)) u_fifo (
    .clk_i, .rst_ni, .data_in_0_i(beat), .data_in_0_valid_i(has_beat),
    .data_in_0_ready_o(is_beat_ready), .data_out_0_o(waiting), .data_out_0_valid_o(has_waiting),
    .data_out_0_ready_i(is_waiting_ready));

  chop_words #(
    .W(OUT_LANES * IN_LANES * WEIGHT_W), .BEATS(GROUPS * TURNS * BEATS), .FILE(WEIGHT_FILE)
  ) u_weight (.clk_i, .rst_ni, .takes_i(takes), .data_o(weight));

  chop_words #(.W(OUT_LANES * BIAS_W), .BEATS(GROUPS * TURNS), .FILE(BIAS_FILE)) u_bias (
    .clk_i, .rst_ni, .takes_i(finishes), .data_o(bias));

  chop_matvec #(
    .IN_LANES(IN_LANES), .OUT_LANES(OUT_LANES), .IN_FEATURES(IN_FEATURES),
    .OUT_FEATURES(OUT_FEATURES), .IN_W(IN_W), .WEIGHT_W(WEIGHT_W), .OUT_W(SUM_W)
  ) u_matvec (
    .clk_i, .rst_ni, .data_in_0_i(waiting), .data_in_0_valid_i(has_waiting),
    .data_in_0_ready_o(is_waiting_ready), .weight_i(weight), .weight_valid_i(1'b1),
    .takes_o(takes), .ready_i(is_ready), .starts_o(starts), .finishes_o(finishes), .sum_o(sums),
    .sum_valid_o(has_sums));

  for (genvar o = 0; o < OUT_LANES; o++) begin : g_out
    logic signed [SUM_W-1:0] s;
    logic signed [BIAS_W-1:0] b;
    assign s = sums[o*SUM_W +: SUM_W];
    assign b = bias[o*BIAS_W +: BIAS_W];
    always_ff @(posedge clk_i) results_q[o*OUT_W +: OUT_W] <= (OUT_W'(s) << SHIFT) + OUT_W'(b);
  end

  always_ff @(posedge clk_i) has_results_q <= rst_ni && has_sums;

  chop_credits #(
    .W(OUT_LANES * OUT_W), .LATENCY(BEATS + 5 + $clog2(IN_LANES)), .EVERY(BEATS)
  ) u_results (
    .clk_i, .rst_ni, .starts_i(starts), .ready_o(is_ready), .data_i(results_q),
    .valid_i(has_results_q), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
