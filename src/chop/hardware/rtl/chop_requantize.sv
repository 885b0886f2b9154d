// Requantizer: from exact results to the codes of a reader, y = sat(round(x c / 2^SHIFT)).
//
// in      LANES codes of IN_W bits
// out     LANES codes of OUT_W bits, LOW to HIGH
// c       CHANNEL, or of each channel: word i of CHANNEL_FILE has those of the lanes of beat i; the
//         words, CHANNEL_BEATS of them, are read again and again; 0 for none. c is unsigned, of
//         CHANNEL_W bits
// ROUNDING 0: y as above, ties to even. 1: as above, towards minus infinity. 2: y = HIGH from
//         x = 0 on, else LOW. 3: y = the sign of x where |x| > c, else 0
// MULTIPLIES 0: c is 1 in ROUNDING 0 and 1. x c needs PRODUCT_W bits
// time    one beat per cycle; two registers (multiply | round and saturate), one without multiplier
// memory  CHANNEL_BEATS words of LANES * CHANNEL_W bits
module chop_requantize #(
  parameter int LANES         = 1,
  parameter int IN_W          = 16,
  parameter int OUT_W         = 8,
  parameter bit MULTIPLIES    = 1'b0,
  parameter int PRODUCT_W     = 16,
  parameter int CHANNEL_W     = 1,
  parameter     CHANNEL       = 1,
  parameter int CHANNEL_BEATS = 0,
  parameter     CHANNEL_FILE  = "",
  parameter int SHIFT         = 0,
  parameter     LOW           = -128,
  parameter     HIGH          = 127,
  parameter int ROUNDING      = 0
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [LANES*IN_W-1:0]  data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  localparam int V_W    = MULTIPLIES ? PRODUCT_W : IN_W;
  localparam int FULL_W = IN_W + CHANNEL_W + 1;

  logic [LANES*CHANNEL_W-1:0] channel;
  logic channel_valid, first_moves, last_moves, unused;
  logic [LANES*V_W-1:0] v;
  logic v_valid;

  assign last_moves = !data_out_0_valid_o || data_out_0_ready_i;
  assign data_in_0_ready_o = first_moves && channel_valid;
  assign unused = &{1'b0, channel};

  if (CHANNEL_BEATS > 0) begin : g_channels
    chop_constant #(
      .W(LANES * CHANNEL_W), .BEATS(CHANNEL_BEATS), .FILE(CHANNEL_FILE)
    ) u_channels (
      .clk_i(clk_i), .rst_ni(rst_ni),
      .data_out_0_o(channel), .data_out_0_valid_o(channel_valid),
      .data_out_0_ready_i(first_moves && data_in_0_valid_i));
  end else begin : g_one
    assign channel       = {LANES{CHANNEL_W'(CHANNEL)}};
    assign channel_valid = 1'b1;
  end

  if (MULTIPLIES) begin : g_multiply
    assign first_moves = !v_valid || last_moves;
    for (genvar i = 0; i < LANES; i++) begin : g_lane
      logic signed [IN_W-1:0] x;
      logic signed [CHANNEL_W:0] c;
      assign x = data_in_0_i[i*IN_W +: IN_W];
      assign c = {1'b0, channel[i*CHANNEL_W +: CHANNEL_W]};
      always_ff @(posedge clk_i) begin
        if (first_moves) v[i*V_W +: V_W] <= V_W'(FULL_W'(x) * FULL_W'(c));
      end
    end
    always_ff @(posedge clk_i) begin
      if (!rst_ni) v_valid <= 1'b0;
      else if (first_moves) v_valid <= data_in_0_valid_i && channel_valid;
    end
  end else begin : g_forward
    assign first_moves = last_moves;
    assign v           = data_in_0_i;
    assign v_valid     = data_in_0_valid_i && channel_valid;
  end

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [V_W-1:0] x;
    logic signed [OUT_W-1:0] y;
    assign x = v[i*V_W +: V_W];

    if (ROUNDING == 2) begin : g_sign
      assign y = x[V_W-1] ? OUT_W'(LOW) : OUT_W'(HIGH);
    end else if (ROUNDING == 3) begin : g_threshold
      logic [FULL_W-1:0] magnitude;
      logic is_beyond;
      assign magnitude = x[V_W-1] ? -(FULL_W'(x)) : FULL_W'(x);
      assign is_beyond = magnitude > FULL_W'(channel[i*CHANNEL_W +: CHANNEL_W]);
      assign y = is_beyond ? OUT_W'($signed({x[V_W-1], 1'b1})) : '0;
    end else begin : g_round
      chop_round_saturate #(
        .IN_W(V_W), .SHIFT(SHIFT), .OUT_W(OUT_W), .LOW(LOW), .HIGH(HIGH), .ROUNDING(ROUNDING)
      ) u_round (.v_i(x), .y_o(y));
    end

    always_ff @(posedge clk_i) begin
      if (last_moves) data_out_0_o[i*OUT_W +: OUT_W] <= y;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (last_moves) data_out_0_valid_o <= v_valid;
  end
endmodule
