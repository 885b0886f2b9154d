// Linear layer of blocks with shared exponents (MXINT). For each row of codes:
//   y[o] = (sum over beats of (sum over lanes i of q[i] p[o, i]) 2^(e + f[o])) 2^SHIFT + b[o]
// The codes of a beat are q[i] 2^e, and the corresponding weights are p[o, i] 2^f[o].
//
// Input:   IN_LANES codes of IN_W bits that belong to one block. A row has IN_FEATURES / IN_LANES
//          beats.
// Output:  OUT_LANES codes of OUT_W bits, wide enough for every y. A row has OUT_FEATURES /
//          OUT_LANES beats.
// Timing:  (IN_FEATURES / IN_LANES) * (OUT_FEATURES / OUT_LANES) cycles per row. Pipeline:
//          chop_split_block | fetch, two cycles | factors | multiply | one cycle per level of the
//          adder tree | shift | accumulate | bias | FIFO of chop_credits.
// Memory:  WEIGHT_FILE has a word for each group of OUT_LANES outputs and each beat of a row. Its
//          low bits are OUT_LANES * IN_LANES numbers p of WEIGHT_W bits, output o and input i in
//          lane o * IN_LANES + i. The OUT_LANES shifts f of WEIGHT_SHIFT_W bits are above them.
//          BIAS_FILE has a word of OUT_LANES biases of BIAS_W bits for each group. A row of codes q
//          and shifts e is stored if there are several groups.
module chop_block_linear #(
  parameter int IN_LANES       = 1,
  parameter int OUT_LANES      = 1,
  parameter int IN_FEATURES    = 1,
  parameter int OUT_FEATURES   = 1,
  parameter int IN_W           = 16,
  parameter int CODE_W         = 8,
  parameter int SHIFT_W        = 4,
  parameter int WEIGHT_W       = 8,
  parameter int WEIGHT_SHIFT_W = 4,
  parameter int BIAS_W         = 8,
  parameter int OUT_W          = 40,
  parameter int SHIFT          = 0,
  parameter     WEIGHT_FILE    = "",
  parameter     BIAS_FILE      = ""
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic [IN_LANES*IN_W-1:0]   data_in_0_i,
  input  logic                       data_in_0_valid_i,
  output logic                       data_in_0_ready_o,
  output logic [OUT_LANES*OUT_W-1:0] data_out_0_o,
  output logic                       data_out_0_valid_o,
  input  logic                       data_out_0_ready_i
);
  localparam int BEATS     = IN_FEATURES / IN_LANES;
  localparam int GROUPS    = OUT_FEATURES / OUT_LANES;
  localparam int LEVELS    = $clog2(IN_LANES);
  localparam int STAGES    = LEVELS + 5;  // fetch, factors, products, levels of the tree, shift
  localparam int PRODUCT_W = CODE_W + WEIGHT_W;
  localparam int TREE_W    = PRODUCT_W + LEVELS;
  localparam int WORD_W    = OUT_LANES * (IN_LANES * WEIGHT_W + WEIGHT_SHIFT_W);
  localparam int ROW_W     = SHIFT_W + IN_LANES * CODE_W;
  localparam int BOTH_W    = ((SHIFT_W > WEIGHT_SHIFT_W) ? SHIFT_W : WEIGHT_SHIFT_W) + 1;
  // Bits shifted beyond the result need no sum.
  localparam int SUM_W     = (OUT_W > SHIFT) ? OUT_W - SHIFT : 1;

  if (IN_FEATURES % IN_LANES != 0 || OUT_FEATURES % OUT_LANES != 0) begin : g_refused
    initial $fatal(1, "chop_block_linear: lanes divide features");
  end

  logic [ROW_W-1:0] block, row, row_q;
  logic [WORD_W-1:0] word, word_q;
  logic [OUT_LANES*BIAS_W-1:0] bias;
  logic [OUT_LANES*OUT_W-1:0] results_q;
  logic block_valid, block_ready, is_ready, takes, starts, adds, is_first, finishes, has_sums;
  logic has_results_q;

  chop_split_block #(
    .LANES(IN_LANES), .IN_W(IN_W), .CODE_W(CODE_W), .SHIFT_W(SHIFT_W)
  ) u_split (
    .clk_i(clk_i), .rst_ni(rst_ni),
    .data_in_0_i(data_in_0_i), .data_in_0_valid_i(data_in_0_valid_i),
    .data_in_0_ready_o(data_in_0_ready_o),
    .data_out_0_o(block), .data_out_0_valid_o(block_valid), .data_out_0_ready_i(block_ready));

  chop_rows #(.W(ROW_W), .BEATS(BEATS), .TIMES(GROUPS), .STAGES(STAGES)) u_rows (
    .clk_i, .rst_ni, .data_in_0_i(block), .data_in_0_valid_i(block_valid),
    .data_in_0_ready_o(block_ready), .ready_i(is_ready), .takes_o(takes),
    .starts_o(starts), .data_o(row), .adds_o(adds), .is_first_o(is_first), .finishes_o(finishes),
    .sum_valid_o(has_sums));

  chop_words #(.W(WORD_W), .BEATS(GROUPS * BEATS), .FILE(WEIGHT_FILE)) u_weight (
    .clk_i, .rst_ni, .load_i(57'b0), .takes_i(takes), .data_o(word));

  chop_words #(.W(OUT_LANES * BIAS_W), .BEATS(GROUPS), .FILE(BIAS_FILE)) u_bias (
    .clk_i, .rst_ni, .load_i(57'b0), .takes_i(finishes), .data_o(bias));

  always_ff @(posedge clk_i) begin
    row_q         <= row;
    word_q        <= word;
    has_results_q <= rst_ni && has_sums;
  end

  for (genvar o = 0; o < OUT_LANES; o++) begin : g_out
    logic [IN_LANES*TREE_W-1:0] products_q;
    logic signed [TREE_W-1:0] tree;
    logic signed [SUM_W-1:0] shifted_q, sum_q;
    logic signed [BIAS_W-1:0] b;
    logic [WEIGHT_SHIFT_W-1:0] f;
    logic [(LEVELS+1)*BOTH_W-1:0] both_q;  // products in the lowest bits
    logic unused_tree;  // bits beyond those of a narrow sum
    assign unused_tree = &{1'b0, tree};
    assign b = bias[o*BIAS_W +: BIAS_W];
    assign f = word_q[OUT_LANES*IN_LANES*WEIGHT_W + o*WEIGHT_SHIFT_W +: WEIGHT_SHIFT_W];

    for (genvar n = 0; n < IN_LANES; n++) begin : g_product
      logic signed [CODE_W-1:0] x;
      logic signed [WEIGHT_W-1:0] w;
      assign x = row_q[n*CODE_W +: CODE_W];
      assign w = word_q[(o*IN_LANES+n)*WEIGHT_W +: WEIGHT_W];
      always_ff @(posedge clk_i)
        products_q[n*TREE_W +: TREE_W] <= TREE_W'(PRODUCT_W'(x) * PRODUCT_W'(w));
    end

    chop_adder_tree #(.N(IN_LANES), .W(TREE_W)) u_tree (
      .clk_i, .terms_i(products_q), .sum_o(tree));

    always_ff @(posedge clk_i) begin
      // The shift of a beat passes through as many registers as its products in the adder tree.
      both_q    <= ((LEVELS + 1) * BOTH_W)'({both_q, BOTH_W'(row_q[IN_LANES*CODE_W +: SHIFT_W])
                                             + BOTH_W'(f)});
      shifted_q <= SUM_W'(tree) << both_q[LEVELS*BOTH_W +: BOTH_W];
      if (adds) sum_q <= (is_first ? '0 : sum_q) + shifted_q;
      results_q[o*OUT_W +: OUT_W] <= (OUT_W'(sum_q) << SHIFT) + OUT_W'(b);
    end
  end

  chop_credits #(.W(OUT_LANES * OUT_W), .LATENCY(BEATS + 6 + LEVELS), .EVERY(BEATS)) u_results (
    .clk_i, .rst_ni, .starts_i(starts), .ready_o(is_ready), .data_i(results_q),
    .valid_i(has_results_q), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
