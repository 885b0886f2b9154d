// Matrix-vector product: s[o] = sum over i of x[i] w[o, i] for each row x of IN_FEATURES codes.
//
// Input 0: IN_LANES codes x of IN_W bits. A row has IN_FEATURES / IN_LANES beats.
// Input 1: OUT_LANES * IN_LANES weights of WEIGHT_W bits, output o and input i in lane o * IN_LANES
//          + i, for each of OUT_FEATURES / OUT_LANES groups of outputs and each beat of the row.
//          weight_valid_i is high while weights are available. weight_i has to be valid two cycles
//          after takes_o.
// Output:  OUT_LANES sums of OUT_W bits in two's complement. Higher bits are dropped. The pipeline
//          never stalls: a sum begins with starts_o, which requires ready_i (see chop_credits). It
//          is ready with sum_valid_o, LATENCY cycles after its last beat and two cycles after
//          finishes_o.
// Timing:  (IN_FEATURES / IN_LANES) * (OUT_FEATURES / OUT_LANES) cycles per row. LATENCY is 4, plus
//          the latency of chop_multiplier, which documents SOFT, plus the levels of the adder tree.
//          Pipeline: fetch, two cycles | factors | multiply | tree | accumulate.
// Memory:  a row of codes, if there are several groups of outputs.
module chop_matvec #(
  parameter int IN_LANES     = 1,
  parameter int OUT_LANES    = 1,
  parameter int IN_FEATURES  = 1,
  parameter int OUT_FEATURES = 1,
  parameter int IN_W         = 8,
  parameter int WEIGHT_W     = 8,
  parameter int OUT_W        = 16,
  parameter int SOFT         = 0
) (
  input  logic                                   clk_i,
  input  logic                                   rst_ni,
  input  logic [IN_LANES*IN_W-1:0]               data_in_0_i,
  input  logic                                   data_in_0_valid_i,
  output logic                                   data_in_0_ready_o,
  input  logic [OUT_LANES*IN_LANES*WEIGHT_W-1:0] weight_i,
  input  logic                                   weight_valid_i,
  output logic                                   takes_o,
  input  logic                                   ready_i,
  output logic                                   starts_o,
  output logic                                   finishes_o,
  output logic [OUT_LANES*OUT_W-1:0]             sum_o,
  output logic                                   sum_valid_o
);
  localparam int BEATS     = IN_FEATURES / IN_LANES;
  localparam int COUNT_W   = (BEATS > 1) ? $clog2(BEATS) : 1;
  localparam int FULL_W    = IN_W + WEIGHT_W;
  localparam int PRODUCT_W = (FULL_W < OUT_W) ? FULL_W : OUT_W;
  localparam int LEVELS    = $clog2(IN_LANES);
  localparam int STAGES    = 3 + (SOFT > 1 ? SOFT : 1) + LEVELS;

  if (IN_FEATURES % IN_LANES != 0 || OUT_FEATURES % OUT_LANES != 0) begin : g_refused
    initial $fatal(1, "chop_matvec: lanes divide features");
  end

  logic [IN_LANES*IN_W-1:0] row, row_q;
  logic [OUT_LANES*IN_LANES*WEIGHT_W-1:0] weight_q;
  logic [COUNT_W-1:0] count_q;
  logic [STAGES-1:0] valid_q, first_q, last_q;
  logic is_first_q, is_last, can_take, has_beat;

  chop_repeat #(
    .W(IN_LANES * IN_W), .BEATS(BEATS), .TIMES(OUT_FEATURES / OUT_LANES)
  ) u_row (
    .clk_i(clk_i), .rst_ni(rst_ni),
    .data_in_0_i(data_in_0_i), .data_in_0_valid_i(data_in_0_valid_i),
    .data_in_0_ready_o(data_in_0_ready_o), .can_take_i(can_take), .has_beat_o(has_beat),
    .takes_i(takes_o), .data_o(row));

  // Only the first beat of a sum needs a credit; the others must follow for the pipeline to drain.
  assign can_take = weight_valid_i && (ready_i || !is_first_q);
  assign takes_o  = can_take && has_beat;
  assign starts_o = takes_o && is_first_q;
  assign finishes_o = valid_q[STAGES-2] && last_q[STAGES-2];
  assign is_last  = (count_q == COUNT_W'(BEATS - 1));

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      count_q     <= '0;
      is_first_q  <= 1'b1;
      valid_q     <= '0;
      sum_valid_o <= 1'b0;
    end else begin
      if (takes_o) begin
        count_q    <= is_last ? '0 : count_q + COUNT_W'(1);
        is_first_q <= is_last;
      end
      valid_q     <= {valid_q[STAGES-2:0], takes_o};
      sum_valid_o <= valid_q[STAGES-1] && last_q[STAGES-1];
    end
    first_q  <= {first_q[STAGES-2:0], is_first_q};
    last_q   <= {last_q[STAGES-2:0], is_last};
    row_q    <= row;
    weight_q <= weight_i;
  end

  for (genvar o = 0; o < OUT_LANES; o++) begin : g_out
    logic signed [OUT_W-1:0] sum_q;

    // A balanced tree: level l has the sums of 2^l products each, the last one of fewer.
    for (genvar l = 0; l <= LEVELS; l++) begin : g_level
      for (genvar n = 0; n < (IN_LANES + (1 << l) - 1) >> l; n++) begin : g_node
        logic signed [OUT_W-1:0] sum;
        if (l == 0) begin : g_product
          logic signed [IN_W-1:0] x;
          logic signed [WEIGHT_W-1:0] w;
          logic signed [PRODUCT_W-1:0] product;
          assign x   = row_q[n*IN_W +: IN_W];
          assign w   = weight_q[(o*IN_LANES+n)*WEIGHT_W +: WEIGHT_W];
          assign sum = OUT_W'(product);
          chop_multiplier #(.A_W(IN_W), .B_W(WEIGHT_W), .OUT_W(PRODUCT_W), .SOFT(SOFT)) u_product (
            .clk_i, .a_i(x), .b_i(w), .y_o(product));
        end else begin : g_sum
          logic signed [OUT_W-1:0] node_q;
          assign sum = node_q;
          if (2 * n + 1 < (IN_LANES + (1 << (l - 1)) - 1) >> (l - 1)) begin : g_two
            always_ff @(posedge clk_i)
              node_q <= g_level[l-1].g_node[2*n].sum + g_level[l-1].g_node[2*n+1].sum;
          end else begin : g_one
            always_ff @(posedge clk_i) node_q <= g_level[l-1].g_node[2*n].sum;
          end
        end
      end
    end

    assign sum_o[o*OUT_W +: OUT_W] = sum_q;
    always_ff @(posedge clk_i)
      if (valid_q[STAGES-1])
        sum_q <= (first_q[STAGES-1] ? '0 : sum_q) + g_level[LEVELS].g_node[0].sum;
  end
endmodule
