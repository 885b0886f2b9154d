// Requantizer to blocks with shared exponents (MXINT). M is the largest magnitude of a block.
//   e = min(max(floor(log2 M) - BASE, 0), WINDOW)
//   y = sat(round(x 2^(WINDOW - e) / 2^SHIFT)) 2^e
// Ties are rounded to even. sat limits to -LIMIT and LIMIT. SHIFT may be below zero.
//
// Input:   LANES codes x of IN_W bits that belong to one block. Blocks have BLOCK codes; the last
//          block of FEATURES codes may be shorter.
// Output:  LANES codes y of OUT_W bits.
// Timing:  one beat per cycle. A block is sent after its last beat has arrived.
//            load    magnitudes | OR of all lanes | OR of the block | e | FIFO of chop_credits
//            send    code | shift by WINDOW - e | round and saturate, three cycles | shift by e |
//                    FIFO of chop_credits
// Memory:  a FIFO for a block and the beats that arrive until its e is known.
//
// WINDOW is above 0, and BASE is at least -WINDOW. Magnitudes are not compared: the leading one of
// M is the leading one of the bitwise OR of all magnitudes.
module chop_requantize_blocks #(
  parameter int LANES    = 1,
  parameter int FEATURES = 32,
  parameter int BLOCK    = 32,
  parameter int IN_W     = 16,
  parameter int OUT_W    = 16,
  parameter int BASE     = 6,
  parameter int WINDOW   = 8,
  parameter int SHIFT    = 8,
  parameter int LIMIT    = 127
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
  localparam int BEATS       = BLOCK / LANES;
  localparam int ROW         = FEATURES / LANES;
  localparam int BEAT_W      = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int ROW_W       = ROW > 1 ? $clog2(ROW) : 1;
  localparam int EXPONENT_W  = $clog2(WINDOW + 1);
  localparam int WIDE_W      = IN_W + WINDOW;
  localparam int CODE_W      = OUT_W - WINDOW;
  localparam int LOAD_STAGES = 4;
  localparam int SEND_STAGES = 6;

  if (BLOCK % LANES != 0 || FEATURES % LANES != 0) begin : g_refused
    initial $fatal(1, "chop_requantize_blocks: lanes divide blocks");
  end

  // ---- load ----
  logic [BEAT_W-1:0] beat_q;
  logic [ROW_W-1:0] row_q;
  logic [LANES*IN_W-1:0] magnitudes, magnitudes_q;
  logic [IN_W-1:0] bits, bits_q;
  logic [WIDE_W-1:0] placed;
  logic [WINDOW-1:0] used, used_q;
  logic [EXPONENT_W-1:0] found, found_q;
  logic [LOAD_STAGES-1:0] loaded_q, last_q;
  logic is_loaded, is_row_last, is_last, is_first_q, above;
  logic beats_ready, exponents_ready;

  assign data_in_0_ready_o = beats_ready && exponents_ready;
  assign is_loaded = data_in_0_valid_i && data_in_0_ready_o;
  assign is_row_last = row_q == ROW_W'(ROW - 1);
  assign is_last = is_row_last || beat_q == BEAT_W'(BEATS - 1);

  for (genvar i = 0; i < LANES; i++) begin : g_magnitude
    logic [IN_W-1:0] x;
    assign x = data_in_0_i[i*IN_W +: IN_W];
    assign magnitudes[i*IN_W +: IN_W] = x[IN_W-1] ? -x : x;
  end

  always_comb begin
    bits = '0;
    for (int i = 0; i < LANES; i++) bits = bits | magnitudes_q[i*IN_W +: IN_W];
  end

  // Bit k - 1 for e = k; bits above the window count as its end.
  assign placed = (WIDE_W'(bits_q) << WINDOW) >> (BASE + WINDOW + 1);
  assign above  = placed >> WINDOW != '0;
  assign used   = (is_first_q ? '0 : used_q) | WINDOW'(placed)
                  | (WINDOW'(above) << (WINDOW - 1));

  always_comb begin
    found = '0;
    for (int k = 0; k < WINDOW; k++) if (used_q[k]) found = EXPONENT_W'(k + 1);
  end

  always_ff @(posedge clk_i) begin
    magnitudes_q <= magnitudes;
    bits_q       <= bits;
    found_q      <= found;
    last_q       <= {last_q[LOAD_STAGES-2:0], is_last};
    if (loaded_q[1]) used_q <= used;
    if (!rst_ni) begin
      beat_q     <= '0;
      row_q      <= '0;
      loaded_q   <= '0;
      is_first_q <= 1'b1;
    end else begin
      if (is_loaded) begin
        beat_q <= is_last ? '0 : beat_q + BEAT_W'(1);
        row_q  <= is_row_last ? '0 : row_q + ROW_W'(1);
      end
      loaded_q <= {loaded_q[LOAD_STAGES-2:0], is_loaded};
      if (loaded_q[1]) is_first_q <= last_q[1];
    end
  end

  // ---- send ----
  logic [LANES*IN_W-1:0] beat, codes_q;
  logic [LANES*OUT_W-1:0] results_q;
  logic [EXPONENT_W-1:0] exponent;
  logic [5*EXPONENT_W-1:0] exponents_q;  // exponent of codes_q in the lowest bits
  logic [SEND_STAGES-1:0] sent_q;
  logic has_beat, is_beat_last, has_exponent, is_ready, is_sent;

  chop_fifo #(.W(LANES * IN_W + 1), .DEPTH(BEATS + 12)) u_beats (
    .clk_i, .rst_ni, .data_in_0_i({is_last, data_in_0_i}), .data_in_0_valid_i(is_loaded),
    .data_in_0_ready_o(beats_ready), .data_out_0_o({is_beat_last, beat}),
    .data_out_0_valid_o(has_beat), .data_out_0_ready_i(has_exponent && is_ready));

  chop_credits #(.W(EXPONENT_W), .LATENCY(LOAD_STAGES)) u_exponents (
    .clk_i, .rst_ni, .starts_i(is_loaded && is_last), .ready_o(exponents_ready),
    .data_i(found_q), .valid_i(loaded_q[LOAD_STAGES-1] && last_q[LOAD_STAGES-1]),
    .data_out_0_o(exponent), .data_out_0_valid_o(has_exponent),
    .data_out_0_ready_i(is_sent && is_beat_last));

  assign is_sent = has_beat && has_exponent && is_ready;

  always_ff @(posedge clk_i) begin
    codes_q     <= beat;
    exponents_q <= (5 * EXPONENT_W)'({exponents_q, exponent});
    sent_q      <= rst_ni ? {sent_q[SEND_STAGES-2:0], is_sent} : '0;
  end

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [WIDE_W-1:0] shifted_q;
    logic signed [CODE_W-1:0] q;

    always_ff @(posedge clk_i) begin
      shifted_q <= WIDE_W'($signed(codes_q[i*IN_W +: IN_W]))
        << (EXPONENT_W'(WINDOW) - exponents_q[EXPONENT_W-1:0]);
      results_q[i*OUT_W +: OUT_W] <= OUT_W'(q) << exponents_q[4*EXPONENT_W +: EXPONENT_W];
    end

    chop_round_saturate #(
      .IN_W(WIDE_W), .SHIFT(SHIFT), .OUT_W(CODE_W), .LOW(-LIMIT), .HIGH(LIMIT)
    ) u_round (.clk_i, .en_i(1'b1), .v_i(shifted_q), .y_o(q));
  end

  chop_credits #(.W(LANES * OUT_W), .LATENCY(SEND_STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(is_sent), .ready_o(is_ready), .data_i(results_q),
    .valid_i(sent_q[SEND_STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
