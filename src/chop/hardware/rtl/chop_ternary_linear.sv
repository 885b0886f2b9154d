// Linear layer without multipliers: y[o] = (sum over i of t[o, i]) 2^SHIFT + b[o] for each row of
// codes x, with the terms t:
//   BINARY 0   x[i], -x[i] or 0 for a weight of 1, -1 or 0 (ternary).
//   BINARY 1   1 if x[i] and the weight have the same sign, otherwise 0 (XNOR, so the sum is a
//              popcount). With codes and weights of 1 and -1, the sum of the layer is twice the
//              popcount minus IN_FEATURES. SHIFT and the biases account for this.
//
// Input:   IN_LANES codes of IN_W bits. A row has IN_FEATURES / IN_LANES beats.
// Output:  OUT_LANES codes of OUT_W bits, wide enough for every y. A row has OUT_FEATURES /
//          OUT_LANES beats.
// Timing:  (IN_FEATURES / IN_LANES) * (OUT_FEATURES / OUT_LANES) cycles per row. Pipeline: fetch,
//          two cycles | terms | one cycle per level of the adder tree | accumulate | bias | FIFO of
//          chop_credits.
// Memory:  WEIGHT_FILE has a word for each group of OUT_LANES outputs and each beat of a row:
//          OUT_LANES * IN_LANES weights of WEIGHT_W bits, output o and input i in lane o * IN_LANES
//          + i, in two's complement. If BINARY is 1, a weight has one bit, which is 1 for negative
//          weights. BIAS_FILE has a word of OUT_LANES biases of BIAS_W bits for each group. A row
//          of codes is stored if there are several groups.
//
// WEIGHT_BASE and BIAS_BASE are addresses for numbers that are written through load_i at run time
// (see chop_ram), or below zero for memories with the contents of the files.
module chop_ternary_linear #(
  parameter int IN_LANES     = 1,
  parameter int OUT_LANES    = 1,
  parameter int IN_FEATURES  = 1,
  parameter int OUT_FEATURES = 1,
  parameter int BINARY       = 0,
  parameter int IN_W         = 8,
  parameter int BIAS_W       = 8,
  parameter int OUT_W        = 16,
  parameter int SHIFT        = 0,
  parameter     WEIGHT_FILE  = "",
  parameter     BIAS_FILE    = "",
  parameter int WEIGHT_BASE  = -1,
  parameter int BIAS_BASE    = -1,
  localparam int WEIGHT_W    = (BINARY != 0) ? 1 : 2
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
  localparam int BEATS   = IN_FEATURES / IN_LANES;
  localparam int GROUPS  = OUT_FEATURES / OUT_LANES;
  localparam int LEVELS  = $clog2(IN_LANES);
  localparam int STAGES  = LEVELS + 3;  // fetch, terms, levels of the tree
  localparam int TERM_W  = (BINARY != 0) ? 2 : IN_W + 1;
  localparam int TREE_W  = TERM_W + LEVELS;
  localparam int WORD_W  = OUT_LANES * IN_LANES * WEIGHT_W;
  // Bits shifted beyond the result need no sum.
  localparam int SUM_W   = (OUT_W > SHIFT) ? OUT_W - SHIFT : 1;

  if (IN_FEATURES % IN_LANES != 0 || OUT_FEATURES % OUT_LANES != 0) begin : g_refused
    initial $fatal(1, "chop_ternary_linear: lanes divide features");
  end

  logic [IN_LANES*IN_W-1:0] row;
  logic [WORD_W-1:0] word;
  logic [OUT_LANES*BIAS_W-1:0] bias;
  logic [OUT_LANES*OUT_W-1:0] results_q;
  logic is_ready, takes, starts, adds, is_first, finishes, has_sums, has_results_q;

  chop_rows #(
    .W(IN_LANES * IN_W), .BEATS(BEATS), .TIMES(GROUPS), .STAGES(STAGES)
  ) u_rows (
    .clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i, .data_in_0_ready_o,
    .ready_i(is_ready), .takes_o(takes), .starts_o(starts), .data_o(row), .adds_o(adds),
    .is_first_o(is_first), .finishes_o(finishes), .sum_valid_o(has_sums));

  chop_words #(
    .W(WORD_W), .BEATS(GROUPS * BEATS), .FILE(WEIGHT_FILE), .BASE(WEIGHT_BASE)
  ) u_weight (
    .clk_i, .rst_ni, .load_i, .takes_i(takes), .data_o(word));

  chop_words #(.W(OUT_LANES * BIAS_W), .BEATS(GROUPS), .FILE(BIAS_FILE), .BASE(BIAS_BASE)) u_bias (
    .clk_i, .rst_ni, .load_i, .takes_i(finishes), .data_o(bias));

  always_ff @(posedge clk_i) has_results_q <= rst_ni && has_sums;

  for (genvar o = 0; o < OUT_LANES; o++) begin : g_out
    logic [IN_LANES*TREE_W-1:0] terms_q;
    logic signed [TREE_W-1:0] tree;
    logic signed [SUM_W-1:0] sum_q;
    logic signed [BIAS_W-1:0] b;
    logic unused_tree;  // bits beyond those of a narrow sum
    assign unused_tree = &{1'b0, tree};
    assign b = bias[o*BIAS_W +: BIAS_W];

    for (genvar n = 0; n < IN_LANES; n++) begin : g_term
      logic signed [IN_W-1:0] x;
      logic [WEIGHT_W-1:0] w;
      logic signed [TREE_W-1:0] term;
      assign x = row[n*IN_W +: IN_W];
      assign w = word[(o*IN_LANES+n)*WEIGHT_W +: WEIGHT_W];
      if (BINARY != 0) begin : g_xnor
        logic unused;
        assign unused = &{1'b0, x};
        // 1 for equal signs, so that the adder tree counts them.
        assign term = TREE_W'({1'b0, ~(x[IN_W-1] ^ w[0])});
      end else begin : g_add
        logic signed [TREE_W-1:0] wide;
        assign wide = TREE_W'(x);
        assign term = (w == '0) ? '0 : w[WEIGHT_W-1] ? -wide : wide;
      end
      always_ff @(posedge clk_i) terms_q[n*TREE_W +: TREE_W] <= term;
    end

    chop_adder_tree #(.N(IN_LANES), .W(TREE_W)) u_tree (
      .clk_i, .terms_i(terms_q), .sum_o(tree));

    always_ff @(posedge clk_i) begin
      if (adds) sum_q <= (is_first ? '0 : sum_q) + SUM_W'(tree);
      results_q[o*OUT_W +: OUT_W] <= (OUT_W'(sum_q) << SHIFT) + OUT_W'(b);
    end
  end

  chop_credits #(.W(OUT_LANES * OUT_W), .LATENCY(BEATS + 4 + LEVELS), .EVERY(BEATS)) u_results (
    .clk_i, .rst_ni, .starts_i(starts), .ready_o(is_ready), .data_i(results_q),
    .valid_i(has_results_q), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
