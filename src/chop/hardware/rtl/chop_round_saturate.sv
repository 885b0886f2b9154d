// Rounding and saturation: y = min(max(round(v / 2^SHIFT), LOW), HIGH). No other module drops low
// bits.
//
// Timing:  latency STAGES cycles while en_i is high. Pipeline of 3: dropped bits | sum and range
//          check | saturate. Pipeline of 1: all but the saturation is ahead of the register.
//
// A SHIFT below zero appends zeros. SHIFT may exceed IN_W.
// ROUNDING 0: to nearest, ties to even (IEEE 754-2019, section 4.3.1). 1: towards minus infinity.
// LOW and HIGH fit OUT_W bits in two's complement. They are 64-bit literals if an int cannot hold
// them.
module chop_round_saturate #(
  parameter int IN_W     = 16,
  parameter int SHIFT    = 4,
  parameter int OUT_W    = 8,
  parameter     LOW      = -128,
  parameter     HIGH     = 127,
  parameter int ROUNDING = 0,
  parameter int STAGES   = 3
) (
  input  logic                    clk_i,
  input  logic                    en_i,
  input  logic signed [IN_W-1:0]  v_i,
  output logic signed [OUT_W-1:0] y_o
);
  localparam int ZEROS = (SHIFT < 0) ? -SHIFT : 0;
  localparam int ROUND_W = (SHIFT <= 0) ? IN_W : (SHIFT >= IN_W) ? 2 : IN_W - SHIFT + 1;
  localparam int WIDE_W = ((ROUND_W > OUT_W) ? ROUND_W : OUT_W) + 1;
  localparam logic signed [63:0] LOW_64  = 64'(LOW);
  localparam logic signed [63:0] HIGH_64 = 64'(HIGH);
  // Values that saturate after zeros are appended also saturate before.
  localparam logic signed [63:0] LEAST = -((-LOW_64) >>> ZEROS);
  localparam logic signed [63:0] MOST  = HIGH_64 >>> ZEROS;
  // A value rounded up to HIGH + 1 was HIGH, and one rounded up to LOW was below LOW. They become
  // HIGH and LOW in any case, so the comparisons need not wait for the sum.
  localparam logic signed [63:0] UNCHANGED = (ZEROS > 0) ? MOST : MOST - 1;

  logic signed [ROUND_W-1:0] kept, dropped, rounded_q;
  logic signed [OUT_W-1:0] y;
  logic signed [WIDE_W-1:0] wide;
  logic up, goes_up, is_above_q, is_below_q;

  if (SHIFT <= 0) begin : g_exact
    assign kept = v_i;
    assign up   = 1'b0;
  end else if (SHIFT >= IN_W) begin : g_all_fall
    // v is at most half a result step, which is a tie with the even 0.
    assign kept = (ROUNDING == 1) ? {2{v_i[IN_W-1]}} : 2'sd0;
    assign up   = 1'b0;
    logic unused;
    assign unused = &{1'b0, v_i};
  end else begin : g_some_fall
    logic [IN_W-1:0] below;
    logic half, is_odd;
    assign half   = v_i[SHIFT-1];
    assign is_odd = v_i[SHIFT];
    assign below  = v_i << (IN_W - SHIFT + 1);
    assign kept   = ROUND_W'(v_i >>> SHIFT);
    assign up     = (ROUNDING == 0) && half && ((below != '0) || is_odd);
  end

  assign wide = WIDE_W'(dropped);
  assign y = is_above_q ? OUT_W'(HIGH_64) :
             is_below_q ? OUT_W'(LOW_64) : OUT_W'(WIDE_W'(rounded_q) <<< ZEROS);

  always_ff @(posedge clk_i) begin
    if (en_i) begin
      rounded_q  <= dropped + {{(ROUND_W - 1){1'b0}}, goes_up};
      is_above_q <= wide > WIDE_W'(UNCHANGED);
      is_below_q <= wide < WIDE_W'(LEAST);
    end
  end

  if (STAGES == 3) begin : g_registers
    always_ff @(posedge clk_i) begin
      if (en_i) begin
        dropped <= kept;
        goes_up <= up;
        y_o     <= y;
      end
    end
  end else begin : g_wires
    assign dropped = kept;
    assign goes_up = up;
    assign y_o     = y;
  end
endmodule
