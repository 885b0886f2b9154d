// Matrix-vector product: s[o] = sum over i of x[i] w[o, i] for each row x of IN_FEATURES codes.
//
// in 0    IN_LANES codes x of IN_W bits; a row is IN_FEATURES / IN_LANES beats
// in 1    OUT_LANES * IN_LANES weights of WEIGHT_W bits, that of output o and input i in lane
//         o * IN_LANES + i: for each of the OUT_FEATURES / OUT_LANES groups of outputs, for each
//         beat of the row
// out     OUT_LANES sums of OUT_W bits, two's complement: bits above are dropped
// time    (IN_FEATURES / IN_LANES) * (OUT_FEATURES / OUT_LANES) cycles for a row;
//         fetch | multiply | adder tree | accumulate
// memory  a row of codes, where there are several groups of outputs
module chop_matvec #(
  parameter int IN_LANES     = 1,
  parameter int OUT_LANES    = 1,
  parameter int IN_FEATURES  = 1,
  parameter int OUT_FEATURES = 1,
  parameter int IN_W         = 8,
  parameter int WEIGHT_W     = 8,
  parameter int OUT_W        = 16
) (
  input  logic                                   clk_i,
  input  logic                                   rst_ni,
  input  logic [IN_LANES*IN_W-1:0]               data_in_0_i,
  input  logic                                   data_in_0_valid_i,
  output logic                                   data_in_0_ready_o,
  input  logic [OUT_LANES*IN_LANES*WEIGHT_W-1:0] data_in_1_i,
  input  logic                                   data_in_1_valid_i,
  output logic                                   data_in_1_ready_o,
  output logic [OUT_LANES*OUT_W-1:0]             data_out_0_o,
  output logic                                   data_out_0_valid_o,
  input  logic                                   data_out_0_ready_i
);
  localparam int BEATS     = IN_FEATURES / IN_LANES;
  localparam int COUNT_W   = (BEATS > 1) ? $clog2(BEATS) : 1;
  localparam int FULL_W    = IN_W + WEIGHT_W;
  localparam int PRODUCT_W = (FULL_W < OUT_W) ? FULL_W : OUT_W;

  if (IN_FEATURES % IN_LANES != 0 || OUT_FEATURES % OUT_LANES != 0) begin : g_refused
    initial $fatal(1, "chop_matvec: lanes divide features");
  end

  logic [IN_LANES*IN_W-1:0] row;
  logic row_valid, moves, takes;
  logic [COUNT_W-1:0] count_q;
  logic product_valid_q, product_first_q, product_last_q;
  logic tree_valid_q, tree_first_q, tree_last_q;

  chop_repeat #(
    .W(IN_LANES * IN_W), .BEATS(BEATS), .TIMES(OUT_FEATURES / OUT_LANES)
  ) u_row (
    .clk_i(clk_i), .rst_ni(rst_ni),
    .data_in_0_i(data_in_0_i), .data_in_0_valid_i(data_in_0_valid_i),
    .data_in_0_ready_o(data_in_0_ready_o),
    .data_out_0_o(row), .data_out_0_valid_o(row_valid),
    .data_out_0_ready_i(moves && data_in_1_valid_i));

  assign moves = !data_out_0_valid_o || data_out_0_ready_i;
  assign takes = row_valid && data_in_1_valid_i;
  assign data_in_1_ready_o = moves && row_valid;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      count_q            <= '0;
      product_valid_q    <= 1'b0;
      tree_valid_q       <= 1'b0;
      data_out_0_valid_o <= 1'b0;
    end else if (moves) begin
      if (takes) count_q <= (count_q == COUNT_W'(BEATS - 1)) ? '0 : count_q + COUNT_W'(1);
      product_valid_q    <= takes;
      tree_valid_q       <= product_valid_q;
      data_out_0_valid_o <= tree_valid_q && tree_last_q;
    end
    if (moves) begin
      product_first_q <= (count_q == '0);
      product_last_q  <= (count_q == COUNT_W'(BEATS - 1));
      tree_first_q    <= product_first_q;
      tree_last_q     <= product_last_q;
    end
  end

  for (genvar o = 0; o < OUT_LANES; o++) begin : g_out
    logic signed [OUT_W-1:0] tree_q, sum_q;

    // A balanced tree in an array: the terms of node n are nodes 2 n + 1 and 2 n + 2.
    for (genvar n = 2 * IN_LANES - 2; n >= 0; n--) begin : g_node
      logic signed [OUT_W-1:0] sum;
      if (n < IN_LANES - 1) begin : g_sum
        assign sum = g_node[2*n+1].sum + g_node[2*n+2].sum;
      end else begin : g_product
        localparam int I = n - (IN_LANES - 1);
        logic signed [IN_W-1:0] x;
        logic signed [WEIGHT_W-1:0] w;
        logic signed [PRODUCT_W-1:0] product_q;
        logic unused;  // bits beyond those of a narrow sum
        assign unused = &{1'b0, x, w};
        assign x   = row[I*IN_W +: IN_W];
        assign w   = data_in_1_i[(o*IN_LANES+I)*WEIGHT_W +: WEIGHT_W];
        assign sum = OUT_W'(product_q);
        always_ff @(posedge clk_i) begin
          if (moves) product_q <= PRODUCT_W'(x) * PRODUCT_W'(w);
        end
      end
    end

    assign data_out_0_o[o*OUT_W +: OUT_W] = sum_q;
    always_ff @(posedge clk_i) begin
      if (moves) tree_q <= g_node[0].sum;
      if (moves && tree_valid_q) sum_q <= tree_first_q ? tree_q : sum_q + tree_q;
    end
  end
endmodule
