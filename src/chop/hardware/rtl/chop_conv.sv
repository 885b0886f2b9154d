// Convolution: y[p, o] = (sum of the codes under the kernel at position p times w[o]) 2^SHIFT +
// b[o]. Each of GROUPS groups of channels has its own outputs o.
//
// Input:   images with channels last, the beats of chop_window. A beat has LANES codes of IN_W bits
//          of one group.
// Output:  for each window p, row by row, and each group: OUT_FEATURES results o of OUT_W bits,
//          OUT_LANES per beat.
// Timing:  a window takes max(window beats, (window codes / IN_LANES) * (OUT_FEATURES / OUT_LANES))
//          cycles and has FOLDS * KERNEL_Y * KERNEL_X / TAP_LANES beats. The cycles in which
//          chop_window waits for rows are added. Pipeline: chop_window | conversion to IN_LANES
//          codes | FIFO of DEPTH beats | chop_linear, which documents SOFT.
// Memory:  the memory of chop_window; the codes of a group under a window, if its outputs are
//          computed in several steps; WEIGHT_FILE and BIAS_FILE of chop_linear, one set per group.
//          Weight inputs have the order of chop_window: beat of the pixel, kernel row, kernel
//          column, lane.
//
// IN_HEIGHT to PAD_CODE and TAP_LANES are parameters of chop_window. IN_LANES is a multiple of
// TAP_LANES * LANES.
//
// WEIGHT_BASE and BIAS_BASE are addresses for numbers that are written through load_i at run time
// (see chop_ram), or below zero for memories with the contents of the files.
module chop_conv #(
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
  parameter int DEPTH = 2,
  parameter int GROUPS = 1,
  parameter int IN_LANES = 1,
  parameter int OUT_LANES = 1,
  parameter int OUT_FEATURES = 1,
  parameter int WEIGHT_W = 8,
  parameter int BIAS_W = 8,
  parameter int OUT_W = 21,
  parameter int SHIFT = 0,
  parameter int SOFT = 0,
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
  output logic [OUT_LANES*OUT_W-1:0] data_out_0_o,
  output logic                       data_out_0_valid_o,
  input  logic                       data_out_0_ready_i
);
  logic [TAP_LANES*LANES*IN_W-1:0] codes;
  logic [IN_LANES*IN_W-1:0] beat, waiting;
  logic has_codes, is_codes_ready, has_beat, is_beat_ready, has_waiting, is_waiting_ready;

  chop_window #(
    .LANES(LANES), .IN_W(IN_W), .FOLDS(FOLDS), .IN_HEIGHT(IN_HEIGHT), .IN_WIDTH(IN_WIDTH),
    .OUT_HEIGHT(OUT_HEIGHT), .OUT_WIDTH(OUT_WIDTH), .KERNEL_Y(KERNEL_Y), .KERNEL_X(KERNEL_X),
    .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .PADDING_Y(PADDING_Y), .PADDING_X(PADDING_X),
    .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .RING(RING), .PAD_CODE(PAD_CODE),
    .TAP_LANES(TAP_LANES)
  ) u_window (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .data_out_0_o(codes), .data_out_0_valid_o(has_codes), .data_out_0_ready_i(is_codes_ready));

  chop_upsize #(.W(IN_W), .IN_LANES(TAP_LANES * LANES), .OUT_LANES(IN_LANES)) u_upsize (
    .clk_i, .rst_ni, .data_in_0_i(codes), .data_in_0_valid_i(has_codes),
    .data_in_0_ready_o(is_codes_ready), .data_out_0_o(beat), .data_out_0_valid_o(has_beat),
    .data_out_0_ready_i(is_beat_ready));

  chop_fifo #(.W(IN_LANES * IN_W), .DEPTH(DEPTH)) u_fifo (
    .clk_i, .rst_ni, .data_in_0_i(beat), .data_in_0_valid_i(has_beat),
    .data_in_0_ready_o(is_beat_ready), .data_out_0_o(waiting), .data_out_0_valid_o(has_waiting),
    .data_out_0_ready_i(is_waiting_ready));

  chop_linear #(
    .IN_LANES(IN_LANES), .OUT_LANES(OUT_LANES),
    .IN_FEATURES(FOLDS * KERNEL_Y * KERNEL_X * LANES / GROUPS), .OUT_FEATURES(OUT_FEATURES),
    .SETS(GROUPS), .IN_W(IN_W), .WEIGHT_W(WEIGHT_W), .BIAS_W(BIAS_W), .OUT_W(OUT_W),
    .SHIFT(SHIFT), .SOFT(SOFT), .WEIGHT_FILE(WEIGHT_FILE), .BIAS_FILE(BIAS_FILE),
    .WEIGHT_BASE(WEIGHT_BASE), .BIAS_BASE(BIAS_BASE)
  ) u_linear (
    .clk_i, .rst_ni, .load_i, .data_in_0_i(waiting), .data_in_0_valid_i(has_waiting),
    .data_in_0_ready_o(is_waiting_ready), .data_out_0_o, .data_out_0_valid_o,
    .data_out_0_ready_i);
endmodule
