// Sum of COUNT codes, or the largest of them if MAXIMUM is 1: over the rows of a matrix, or over
// the features of a row.
//
// Input:   COUNT beats of LANES codes of IN_W bits for each sum. INNER sums are interleaved, so the
//          beats of one sum are INNER beats apart.
// Output:  INNER beats of LANES sums of OUT_W bits, in the order of the codes. If ACROSS is 1, the
//          lanes are combined as well, and a beat has one sum.
// Timing:  one beat per cycle.
// Memory:  INNER partial sums, and registers.
module chop_sum #(
  parameter int LANES = 1,
  parameter int IN_W = 8,
  parameter int OUT_W = 13,
  parameter int COUNT = 17,
  parameter int INNER = 1,
  parameter int ACROSS = 0,
  parameter int MAXIMUM = 0,
  localparam int OUT_LANES = ACROSS != 0 ? 1 : LANES
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
  localparam int COUNT_W = COUNT > 1 ? $clog2(COUNT) : 1;
  localparam int INNER_W = INNER > 1 ? $clog2(INNER) : 1;

  logic [OUT_LANES*OUT_W-1:0] terms, terms_q, partial, sums;
  logic [OUT_LANES*OUT_W-1:0] partial_q [INNER];
  logic [COUNT_W-1:0] count_q;
  logic [INNER_W-1:0] inner_q;
  logic has_terms_q, is_moving, is_last;

  if (ACROSS != 0 && MAXIMUM != 0) begin : g_largest
    always_comb begin
      terms = '0;
      for (int lane = 0; lane < LANES; lane++)
        if (lane == 0 || OUT_W'($signed(data_in_0_i[lane*IN_W +: IN_W])) > $signed(terms))
          terms = OUT_W'($signed(data_in_0_i[lane*IN_W +: IN_W]));
    end
  end else if (ACROSS != 0) begin : g_across
    always_comb begin
      terms = '0;
      for (int lane = 0; lane < LANES; lane++)
        terms = terms + OUT_W'($signed(data_in_0_i[lane*IN_W +: IN_W]));
    end
  end else begin : g_along
    for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
      assign terms[lane*OUT_W +: OUT_W] = OUT_W'($signed(data_in_0_i[lane*IN_W +: IN_W]));
    end
  end

  assign partial = partial_q[inner_q];
  for (genvar lane = 0; lane < OUT_LANES; lane++) begin : g_sum
    logic signed [OUT_W-1:0] term, earlier;
    assign term = terms_q[lane*OUT_W +: OUT_W];
    assign earlier = partial[lane*OUT_W +: OUT_W];
    if (MAXIMUM != 0) begin : g_maximum
      assign sums[lane*OUT_W +: OUT_W] = count_q == '0 || term > earlier ? term : earlier;
    end else begin : g_added
      assign sums[lane*OUT_W +: OUT_W] = term + (count_q == '0 ? '0 : earlier);
    end
  end

  assign is_last = count_q == COUNT_W'(COUNT - 1);
  // Only the last term of a sum waits for a free output.
  assign is_moving = !has_terms_q || !is_last || !data_out_0_valid_o || data_out_0_ready_i;
  assign data_in_0_ready_o = is_moving;

  always_ff @(posedge clk_i) begin
    if (is_moving) begin
      terms_q <= terms;
      if (has_terms_q) partial_q[inner_q] <= sums;
      if (has_terms_q && is_last) data_out_0_o <= sums;
    end
    if (!rst_ni) begin
      count_q <= '0;
      inner_q <= '0;
      has_terms_q <= 1'b0;
      data_out_0_valid_o <= 1'b0;
    end else begin
      if (is_moving) begin
        has_terms_q <= data_in_0_valid_i;
        if (has_terms_q) begin
          inner_q <= inner_q == INNER_W'(INNER - 1) ? '0 : inner_q + 1'b1;
          if (inner_q == INNER_W'(INNER - 1)) count_q <= is_last ? '0 : count_q + 1'b1;
        end
      end
      if (is_moving && has_terms_q && is_last) data_out_0_valid_o <= 1'b1;
      else if (data_out_0_ready_i) data_out_0_valid_o <= 1'b0;
    end
  end
endmodule
