// Average pooling: the sum of each window and channel. The reader of the sums divides them.
//
// Input:   images with channels last, the beats of chop_window.
// Output:  for each window, row by row, FOLDS beats of LANES sums of OUT_W bits.
// Timing:  TAP_LANES window taps per cycle, plus the cycles in which chop_window waits for rows.
//          Pipeline: chop_window | chop_taps | chop_sum.
// Memory:  the memory of chop_window.
//
// The parameters are those of chop_window, with PAD_CODE 0.
module chop_avg_pool #(
  parameter int LANES = 1,
  parameter int IN_W = 8,
  parameter int OUT_W = 10,
  parameter int FOLDS = 1,
  parameter int IN_HEIGHT = 4,
  parameter int IN_WIDTH = 4,
  parameter int OUT_HEIGHT = 2,
  parameter int OUT_WIDTH = 2,
  parameter int KERNEL_Y = 2,
  parameter int KERNEL_X = 2,
  parameter int STRIDE_Y = 2,
  parameter int STRIDE_X = 2,
  parameter int PADDING_Y = 0,
  parameter int PADDING_X = 0,
  parameter int DILATION_Y = 1,
  parameter int DILATION_X = 1,
  parameter int RING = 4,
  parameter     PAD_CODE = 0,
  parameter int TAP_LANES = 1
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
  logic [TAP_LANES*LANES*IN_W-1:0] codes;
  logic [LANES*OUT_W-1:0] terms;
  logic has_codes, is_ready, has_terms, is_sum_ready;

  chop_window #(
    .LANES(LANES), .IN_W(IN_W), .FOLDS(FOLDS), .IN_HEIGHT(IN_HEIGHT), .IN_WIDTH(IN_WIDTH),
    .OUT_HEIGHT(OUT_HEIGHT), .OUT_WIDTH(OUT_WIDTH), .KERNEL_Y(KERNEL_Y), .KERNEL_X(KERNEL_X),
    .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .PADDING_Y(PADDING_Y), .PADDING_X(PADDING_X),
    .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .RING(RING), .PAD_CODE(PAD_CODE),
    .TAP_LANES(TAP_LANES)
  ) u_window (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .data_out_0_o(codes), .data_out_0_valid_o(has_codes), .data_out_0_ready_i(is_ready));

  chop_taps #(.N(TAP_LANES), .LANES(LANES), .IN_W(IN_W), .OUT_W(OUT_W)) u_taps (
    .clk_i, .rst_ni, .data_in_0_i(codes), .data_in_0_valid_i(has_codes),
    .data_in_0_ready_o(is_ready), .data_out_0_o(terms), .data_out_0_valid_o(has_terms),
    .data_out_0_ready_i(is_sum_ready));

  chop_sum #(
    .LANES(LANES), .IN_W(OUT_W), .OUT_W(OUT_W), .COUNT(KERNEL_Y * KERNEL_X / TAP_LANES)
  ) u_sum (
    .clk_i, .rst_ni, .data_in_0_i(terms), .data_in_0_valid_i(has_terms),
    .data_in_0_ready_o(is_sum_ready), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
