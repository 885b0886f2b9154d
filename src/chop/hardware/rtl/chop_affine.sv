// Affine map of each channel: y = x f + s.
//
// Input:   LANES codes x of IN_W bits.
// Output:  LANES codes y of OUT_W bits, wide enough for every y.
// Memory:  WORDS words, read repeatedly, one per beat. A word has the factor f, FACTOR_W bits, in
//          its lower part and the shift s, SHIFT_W bits, above it, for each lane. BASE and load_i
//          are those of chop_words.
// Timing:  one beat per cycle. Pipeline: fetch, two cycles | multiply, two cycles | add | FIFO of
//          chop_credits.
module chop_affine #(
  parameter int LANES    = 1,
  parameter int IN_W     = 8,
  parameter int OUT_W    = 24,
  parameter int FACTOR_W = 18,
  parameter int SHIFT_W  = 18,
  parameter int WORDS    = 1,
  parameter     FILE     = "",
  parameter int BASE     = -1
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
  localparam int WORD_W = FACTOR_W + SHIFT_W;
  localparam int STAGES = 5;

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
    logic signed [FACTOR_W-1:0] factor;
    logic signed [SHIFT_W-1:0] shift, shift_1_q, shift_2_q;
    logic signed [OUT_W-1:0] product;
    assign {shift, factor} = words[i*WORD_W +: WORD_W];
    chop_product #(.A_W(IN_W), .B_W(FACTOR_W), .OUT_W(OUT_W)) u_product (
      .clk_i, .en_i(1'b1), .a_i(x_2_q[i*IN_W +: IN_W]), .b_i(factor), .y_o(product));
    always_ff @(posedge clk_i) begin
      shift_1_q <= shift;
      shift_2_q <= shift_1_q;
      results_q[i*OUT_W +: OUT_W] <= product + OUT_W'(shift_2_q);
    end
  end

  chop_credits #(.W(LANES * OUT_W), .LATENCY(STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(enters), .ready_o(data_in_0_ready_o), .data_i(results_q),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
