// Concatenation: BEATS_0 beats of input 0 and then BEATS_1 beats of input 1, alternately.
//
// Input 0: LANES codes of IN_0_W bits.
// Input 1: LANES codes of IN_1_W bits.
// Output:  LANES codes of OUT_W bits, wide enough for both inputs.
// Timing:  one beat per cycle; one register. If WAITS is 1, a beat of input 0, which is constant,
//          waits for input 1, so that no result precedes the sample that it belongs to.
module chop_concat #(
  parameter int LANES   = 1,
  parameter int IN_0_W  = 8,
  parameter int IN_1_W  = 8,
  parameter int OUT_W   = 8,
  parameter int BEATS_0 = 1,
  parameter int BEATS_1 = 1,
  parameter int WAITS   = 0
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [LANES*IN_0_W-1:0] data_in_0_i,
  input  logic                    data_in_0_valid_i,
  output logic                    data_in_0_ready_o,
  input  logic [LANES*IN_1_W-1:0] data_in_1_i,
  input  logic                    data_in_1_valid_i,
  output logic                    data_in_1_ready_o,
  output logic [LANES*OUT_W-1:0]  data_out_0_o,
  output logic                    data_out_0_valid_o,
  input  logic                    data_out_0_ready_i
);
  localparam int BEATS   = BEATS_0 + BEATS_1;
  localparam int COUNT_W = $clog2(BEATS);

  logic [COUNT_W-1:0] count_q;
  logic is_second, moves, has_first, valid;

  assign moves     = !data_out_0_valid_o || data_out_0_ready_i;
  assign is_second = (count_q >= COUNT_W'(BEATS_0));
  assign has_first = data_in_0_valid_i && (WAITS == 0 || data_in_1_valid_i);
  assign valid     = is_second ? data_in_1_valid_i : has_first;
  assign data_in_0_ready_o = moves && !is_second && (WAITS == 0 || data_in_1_valid_i);
  assign data_in_1_ready_o = moves && is_second;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_0_W-1:0] a;
    logic signed [IN_1_W-1:0] b;
    assign a = data_in_0_i[i*IN_0_W +: IN_0_W];
    assign b = data_in_1_i[i*IN_1_W +: IN_1_W];
    always_ff @(posedge clk_i) begin
      if (moves) data_out_0_o[i*OUT_W +: OUT_W] <= is_second ? OUT_W'(b) : OUT_W'(a);
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      count_q            <= '0;
      data_out_0_valid_o <= 1'b0;
    end else if (moves) begin
      data_out_0_valid_o <= valid;
      if (valid) count_q <= (count_q == COUNT_W'(BEATS - 1)) ? '0 : count_q + COUNT_W'(1);
    end
  end
endmodule
