// Maximum pooling: the largest code of each window and channel.
//
// Input:   images with channels last, the beats of chop_window.
// Output:  for each window, row by row, FOLDS beats of LANES channels.
// Timing:  TAP_LANES window taps per cycle, plus the cycles in which chop_window waits for rows.
//          Pipeline: chop_window | chop_taps | maximum.
// Memory:  the memory of chop_window.
//
// The parameters are those of chop_window. PAD_CODE is the lowest code.
module chop_max_pool #(
  parameter int LANES = 1,
  parameter int IN_W = 8,
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
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [LANES*IN_W-1:0] data_in_0_i,
  input  logic                  data_in_0_valid_i,
  output logic                  data_in_0_ready_o,
  output logic [LANES*IN_W-1:0] data_out_0_o,
  output logic                  data_out_0_valid_o,
  input  logic                  data_out_0_ready_i
);
  localparam int BEATS = KERNEL_Y * KERNEL_X / TAP_LANES;
  localparam int BEAT_W = BEATS > 1 ? $clog2(BEATS) : 1;

  logic [TAP_LANES*LANES*IN_W-1:0] taps;
  logic [LANES*IN_W-1:0] codes, largest, largest_q;
  logic [BEAT_W-1:0] beat_q;
  logic has_taps, is_taps_ready, has_codes, is_taken, is_ready, is_last;

  chop_window #(
    .LANES(LANES), .IN_W(IN_W), .FOLDS(FOLDS), .IN_HEIGHT(IN_HEIGHT), .IN_WIDTH(IN_WIDTH),
    .OUT_HEIGHT(OUT_HEIGHT), .OUT_WIDTH(OUT_WIDTH), .KERNEL_Y(KERNEL_Y), .KERNEL_X(KERNEL_X),
    .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .PADDING_Y(PADDING_Y), .PADDING_X(PADDING_X),
    .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .RING(RING), .PAD_CODE(PAD_CODE),
    .TAP_LANES(TAP_LANES)
  ) u_window (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .data_out_0_o(taps), .data_out_0_valid_o(has_taps), .data_out_0_ready_i(is_taps_ready));

  chop_taps #(.N(TAP_LANES), .LANES(LANES), .IN_W(IN_W), .OUT_W(IN_W), .MAXIMUM(1)) u_taps (
    .clk_i, .rst_ni, .data_in_0_i(taps), .data_in_0_valid_i(has_taps),
    .data_in_0_ready_o(is_taps_ready), .data_out_0_o(codes), .data_out_0_valid_o(has_codes),
    .data_out_0_ready_i(is_ready));

  assign is_last = beat_q == BEAT_W'(BEATS - 1);
  assign is_ready = !is_last || !data_out_0_valid_o || data_out_0_ready_i;
  assign is_taken = has_codes && is_ready;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [IN_W-1:0] code, best;
    assign code = codes[lane*IN_W +: IN_W];
    assign best = largest_q[lane*IN_W +: IN_W];
    assign largest[lane*IN_W +: IN_W] = beat_q == '0 || code > best ? code : best;
  end

  always_ff @(posedge clk_i) begin
    if (is_taken) largest_q <= largest;
    if (is_taken && is_last) data_out_0_o <= largest;
    if (!rst_ni) begin
      beat_q <= '0;
      data_out_0_valid_o <= 1'b0;
    end else begin
      if (is_taken) beat_q <= is_last ? '0 : beat_q + 1'b1;
      if (is_taken && is_last) data_out_0_valid_o <= 1'b1;
      else if (data_out_0_ready_i) data_out_0_valid_o <= 1'b0;
    end
  end
endmodule
