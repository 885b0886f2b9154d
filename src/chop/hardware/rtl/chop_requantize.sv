// Requantizer: converts exact results to the codes of the reader, y = sat(round(x c / 2^SHIFT)).
//
// Input:   LANES codes x of IN_W bits.
// Output:  LANES codes y of OUT_W bits from LOW to HIGH.
// Factor:  c is unsigned and has CHANNEL_W bits. It is CHANNEL if CHANNEL_BEATS is 0. Otherwise c
//          depends on the channel: word i of CHANNEL_FILE has the factors of the lanes of beat i,
//          and the CHANNEL_BEATS words are read repeatedly.
// ROUNDING 0: to nearest, ties to even. 1: towards minus infinity. 2: y = HIGH for x >= 0,
//          otherwise LOW. 3: y = the sign of x if |x| > c, otherwise 0.
// MULTIPLIES 0: c is 1 for ROUNDING 0 and 1. 1: x c has PRODUCT_W bits.
// DROPPED n > 0: divides by a constant. 2^(n-1) is added to x c, which still has PRODUCT_W bits,
//          and the n lowest bits are dropped before rounding. SHIFT applies to the remaining bits.
// Timing:  one beat per cycle. Pipeline: fetch, two cycles | multiply, two cycles, if MULTIPLIES is
//          1 | drop, one cycle, if DROPPED is above 0 | round and saturate, three cycles | FIFO of
//          chop_credits.
// Memory:  CHANNEL_BEATS words of LANES * CHANNEL_W bits. CHANNEL_BASE and load_i are BASE and
//          load_i of chop_words.
module chop_requantize #(
  parameter int LANES         = 1,
  parameter int IN_W          = 16,
  parameter int OUT_W         = 8,
  parameter bit MULTIPLIES    = 1'b0,
  parameter int PRODUCT_W     = 16,
  parameter int DROPPED       = 0,
  parameter int CHANNEL_W     = 1,
  parameter     CHANNEL       = 1,
  parameter int CHANNEL_BEATS = 0,
  parameter     CHANNEL_FILE  = "",
  parameter int CHANNEL_BASE  = -1,
  parameter int SHIFT         = 0,
  parameter     LOW           = -128,
  parameter     HIGH          = 127,
  parameter int ROUNDING      = 0
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
  localparam int V_W    = MULTIPLIES ? PRODUCT_W - DROPPED : IN_W;
  localparam int FULL_W = IN_W + CHANNEL_W + 1;
  localparam int STAGES = (MULTIPLIES ? 7 : 5) + (DROPPED > 0 ? 1 : 0);

  logic [LANES*IN_W-1:0] x_1_q, x_2_q;
  logic [LANES*CHANNEL_W-1:0] channel;
  logic [LANES*OUT_W-1:0] results;
  logic [STAGES-1:0] valid_q;
  logic enters;

  assign enters = data_in_0_valid_i && data_in_0_ready_o;

  if (CHANNEL_BEATS > 0) begin : g_channels
    chop_words #(
      .W(LANES * CHANNEL_W), .BEATS(CHANNEL_BEATS), .FILE(CHANNEL_FILE), .BASE(CHANNEL_BASE)
    ) u_channels (.clk_i, .rst_ni, .load_i, .takes_i(enters), .data_o(channel));
  end else begin : g_one
    logic unused_load;
    assign unused_load = &{1'b0, load_i};
    assign channel = {LANES{CHANNEL_W'(CHANNEL)}};
  end

  always_ff @(posedge clk_i) begin
    x_1_q   <= data_in_0_i;
    x_2_q   <= x_1_q;
    valid_q <= rst_ni ? {valid_q[STAGES-2:0], enters} : '0;
  end

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_W-1:0] x;
    logic [CHANNEL_W-1:0] c;
    logic signed [V_W-1:0] v;
    assign x = x_2_q[i*IN_W +: IN_W];
    assign c = channel[i*CHANNEL_W +: CHANNEL_W];

    if (DROPPED > 0) begin : g_divide
      logic signed [PRODUCT_W-1:0] product;
      logic signed [PRODUCT_W-DROPPED:0] quotient_q;
      logic unused;
      chop_product #(.A_W(IN_W), .B_W(CHANNEL_W + 1), .OUT_W(PRODUCT_W)) u_product (
        .clk_i, .en_i(1'b1), .a_i(x), .b_i({1'b0, c}), .y_o(product));
      // The sum with half of 2^DROPPED, without the bits that only its carry depends on.
      always_ff @(posedge clk_i)
        quotient_q <= (PRODUCT_W-DROPPED+1)'(product >>> (DROPPED - 1)) + (PRODUCT_W-DROPPED+1)'(1);
      assign v = quotient_q[PRODUCT_W-DROPPED:1];
      assign unused = &{1'b0, quotient_q[0]};
    end else if (MULTIPLIES) begin : g_multiply
      chop_product #(.A_W(IN_W), .B_W(CHANNEL_W + 1), .OUT_W(V_W)) u_product (
        .clk_i, .en_i(1'b1), .a_i(x), .b_i({1'b0, c}), .y_o(v));
    end else begin : g_forward
      logic unused;  // a threshold alone
      assign unused = &{1'b0, c};
      assign v = x;
    end

    if (ROUNDING == 2 || ROUNDING == 3) begin : g_compare
      logic [FULL_W-1:0] magnitude_q;
      logic [CHANNEL_W-1:0] threshold_q;
      logic signed [OUT_W-1:0] y_q, y_late_q;
      logic is_below_q;
      always_ff @(posedge clk_i) begin
        magnitude_q <= v[V_W-1] ? -(FULL_W'(v)) : FULL_W'(v);
        threshold_q <= c;
        is_below_q  <= v[V_W-1];
        if (ROUNDING == 2) y_q <= is_below_q ? OUT_W'(LOW) : OUT_W'(HIGH);
        else y_q <= magnitude_q > FULL_W'(threshold_q) ? OUT_W'($signed({is_below_q, 1'b1})) : '0;
        y_late_q <= y_q;
      end
      assign results[i*OUT_W +: OUT_W] = y_late_q;
    end else begin : g_round
      chop_round_saturate #(
        .IN_W(V_W), .SHIFT(SHIFT), .OUT_W(OUT_W), .LOW(LOW), .HIGH(HIGH), .ROUNDING(ROUNDING)
      ) u_round (.clk_i, .en_i(1'b1), .v_i(v), .y_o(results[i*OUT_W +: OUT_W]));
    end
  end

  chop_credits #(.W(LANES * OUT_W), .LATENCY(STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(enters), .ready_o(data_in_0_ready_o), .data_i(results),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
