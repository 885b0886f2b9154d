// Successive thresholds of each channel: y = LOW + STRIDE times the number of thresholds t <= v.
//
// Input:   LANES codes x of IN_W bits.
// Output:  LANES codes y of OUT_W bits.
// Memory:  WORDS words, read repeatedly, one per beat. For each lane, a word has THRESHOLDS numbers
//          t of IN_W + 1 bits, and above them a bit that is 1 if v is ~x instead of x. BASE and
//          load_i are those of chop_words.
// Timing:  one beat per cycle. Pipeline: fetch, two cycles | compare | count | FIFO of
//          chop_credits.
module chop_thresholds #(
  parameter int LANES      = 1,
  parameter int IN_W       = 8,
  parameter int OUT_W      = 2,
  parameter int THRESHOLDS = 1,
  parameter int LOW        = 0,
  parameter int STRIDE     = 1,
  parameter int WORDS      = 1,
  parameter     FILE       = "",
  parameter int BASE       = -1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [56:0]            load_i,
  input  logic [LANES*IN_W-1:0]  data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  localparam int T_W    = IN_W + 1;
  localparam int WORD_W = THRESHOLDS * T_W + 1;
  localparam int STAGES = 4;

  logic [LANES*IN_W-1:0] x_1_q, x_2_q;
  logic [LANES*WORD_W-1:0] words;
  logic [LANES*OUT_W-1:0] results_q;
  logic [STAGES-1:0] valid_q;
  logic enters;

  assign enters = data_in_0_valid_i && data_in_0_ready_o;

  chop_words #(.W(LANES * WORD_W), .BEATS(WORDS), .FILE(FILE), .BASE(BASE)) u_words (
    .clk_i, .rst_ni, .load_i, .takes_i(enters), .data_o(words));

  always_ff @(posedge clk_i) begin
    x_1_q   <= data_in_0_i;
    x_2_q   <= x_1_q;
    valid_q <= rst_ni ? {valid_q[STAGES-2:0], enters} : '0;
  end

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [T_W-1:0] v;
    logic [THRESHOLDS-1:0] is_reached_q;
    logic [OUT_W-1:0] count;
    assign v = T_W'($signed(x_2_q[i*IN_W +: IN_W] ^ {IN_W{words[i*WORD_W+WORD_W-1]}}));

    for (genvar k = 0; k < THRESHOLDS; k++) begin : g_threshold
      always_ff @(posedge clk_i)
        is_reached_q[k] <= v >= $signed(words[i*WORD_W+k*T_W +: T_W]);
    end

    always_comb begin
      count = '0;
      for (int k = 0; k < THRESHOLDS; k++) count = count + OUT_W'(is_reached_q[k]);
    end
    always_ff @(posedge clk_i) results_q[i*OUT_W +: OUT_W] <= OUT_W'(LOW) + OUT_W'(STRIDE) * count;
  end

  chop_credits #(.W(LANES * OUT_W), .LATENCY(STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(enters), .ready_o(data_in_0_ready_o), .data_i(results_q),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
