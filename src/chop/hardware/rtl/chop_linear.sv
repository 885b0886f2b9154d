// Linear layer: y[o] = (sum over i of x[i] w[o, i]) 2^SHIFT + b[o] for each row of codes.
// Successive rows use SETS different sets of weights and biases in turn.
//
// Input:   IN_LANES codes of IN_W bits. A row has IN_FEATURES / IN_LANES beats.
// Output:  OUT_LANES codes of OUT_W bits, wide enough for every y. A row has OUT_FEATURES /
//          OUT_LANES beats.
// Timing:  (IN_FEATURES / IN_LANES) * (OUT_FEATURES / OUT_LANES) cycles per row. Pipeline:
//          chop_matvec, which documents SOFT | bias | FIFO of chop_credits.
// Memory:  WEIGHT_FILE has a word for each set, each group of OUT_LANES outputs and each beat of a
//          row: OUT_LANES * IN_LANES weights of WEIGHT_W bits, output o and input i in lane o *
//          IN_LANES + i. BIAS_FILE has a word of OUT_LANES biases of BIAS_W bits for each set and
//          group. A row of codes is stored if there are several groups.
//
// WEIGHT_BASE and BIAS_BASE are addresses for numbers that are written through load_i at run time
// (see chop_ram), or below zero for memories with the contents of the files.
module chop_linear #(
  parameter int IN_LANES     = 1,
  parameter int OUT_LANES    = 1,
  parameter int IN_FEATURES  = 1,
  parameter int OUT_FEATURES = 1,
  parameter int SETS         = 1,
  parameter int IN_W         = 8,
  parameter int WEIGHT_W     = 8,
  parameter int BIAS_W       = 8,
  parameter int OUT_W        = 17,
  parameter int SHIFT        = 0,
  parameter int SOFT         = 0,
  parameter     WEIGHT_FILE  = "",
  parameter     BIAS_FILE    = "",
  parameter int WEIGHT_BASE  = -1,
  parameter int BIAS_BASE    = -1
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic [56:0]                load_i,
  input  logic [IN_LANES*IN_W-1:0]   data_in_0_i,
  input  logic                       data_in_0_valid_i,
  output logic                       data_in_0_ready_o,
  output logic [OUT_LANES*OUT_W-1:0] data_out_0_o,
  output logic                       data_out_0_valid_o,
  input  logic                       data_out_0_ready_i
);
  localparam int BEATS  = IN_FEATURES / IN_LANES;
  localparam int GROUPS = OUT_FEATURES / OUT_LANES;
  // Bits shifted beyond the result need no sum.
  localparam int SUM_W  = (OUT_W > SHIFT) ? OUT_W - SHIFT : 1;

  logic [OUT_LANES*IN_LANES*WEIGHT_W-1:0] weight;
  logic [OUT_LANES*BIAS_W-1:0] bias;
  logic [OUT_LANES*SUM_W-1:0] sums;
  logic [OUT_LANES*OUT_W-1:0] results_q;
  logic takes, starts, is_ready, finishes, has_sums, has_results_q;

  chop_words #(
    .W(OUT_LANES * IN_LANES * WEIGHT_W), .BEATS(SETS * GROUPS * BEATS),
    .FILE(WEIGHT_FILE), .BASE(WEIGHT_BASE)
  ) u_weight (.clk_i, .rst_ni, .load_i, .takes_i(takes), .data_o(weight));

  chop_words #(
    .W(OUT_LANES * BIAS_W), .BEATS(SETS * GROUPS), .FILE(BIAS_FILE), .BASE(BIAS_BASE)
  ) u_bias (
    .clk_i, .rst_ni, .load_i, .takes_i(finishes), .data_o(bias));

  chop_matvec #(
    .IN_LANES(IN_LANES), .OUT_LANES(OUT_LANES), .IN_FEATURES(IN_FEATURES),
    .OUT_FEATURES(OUT_FEATURES), .IN_W(IN_W), .WEIGHT_W(WEIGHT_W), .OUT_W(SUM_W),
    .SOFT(SOFT)
  ) u_matvec (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .weight_i(weight), .weight_valid_i(1'b1), .takes_o(takes), .ready_i(is_ready),
    .starts_o(starts), .finishes_o(finishes), .sum_o(sums), .sum_valid_o(has_sums));

  for (genvar o = 0; o < OUT_LANES; o++) begin : g_out
    logic signed [SUM_W-1:0] s;
    logic signed [BIAS_W-1:0] b;
    assign s = sums[o*SUM_W +: SUM_W];
    assign b = bias[o*BIAS_W +: BIAS_W];
    always_ff @(posedge clk_i) results_q[o*OUT_W +: OUT_W] <= (OUT_W'(s) << SHIFT) + OUT_W'(b);
  end

  always_ff @(posedge clk_i) has_results_q <= rst_ni && has_sums;

  chop_credits #(
    .W(OUT_LANES * OUT_W), .LATENCY(BEATS + 4 + (SOFT > 1 ? SOFT : 1) + $clog2(IN_LANES)),
    .EVERY(BEATS)
  ) u_results (
    .clk_i, .rst_ni, .starts_i(starts), .ready_o(is_ready), .data_i(results_q),
    .valid_i(has_results_q), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
