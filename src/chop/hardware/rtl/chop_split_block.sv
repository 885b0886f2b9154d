// Separates the common power of two of a beat: x[i] = q[i] 2^e, with the smallest e for which all
// q[i] fit CODE_W bits.
//
// Input:   LANES codes x of IN_W bits, all of them multiples of 2^e.
// Output:  LANES codes q of CODE_W bits in the low bits, and e in SHIFT_W bits above them.
// Timing:  one beat per cycle. Pipeline: bits in use | their number | shift | FIFO of chop_credits.
module chop_split_block #(
  parameter int LANES   = 4,
  parameter int IN_W    = 12,
  parameter int CODE_W  = 8,
  parameter int SHIFT_W = 3
) (
  input  logic                            clk_i,
  input  logic                            rst_ni,
  input  logic [LANES*IN_W-1:0]           data_in_0_i,
  input  logic                            data_in_0_valid_i,
  output logic                            data_in_0_ready_o,
  output logic [SHIFT_W+LANES*CODE_W-1:0] data_out_0_o,
  output logic                            data_out_0_valid_o,
  input  logic                            data_out_0_ready_i
);
  // Without bits above those of a code there is nothing to shift.
  localparam int SPARE = (IN_W > CODE_W) ? IN_W - CODE_W : 1;
  localparam int WIDE_W = CODE_W + SPARE;

  logic [LANES*IN_W-1:0] used_codes_q, codes_q;
  logic [SPARE-1:0] used, used_q;
  logic [SHIFT_W-1:0] shift, shift_q;
  logic [SHIFT_W+LANES*CODE_W-1:0] split_q;
  logic [2:0] valid_q;
  logic enters;

  assign enters = data_in_0_valid_i && data_in_0_ready_o;

  // Bits above the width of a code that differ from the sign.
  always_comb begin
    used = '0;
    for (int i = 0; i < LANES; i++)
      for (int k = 0; k < IN_W - CODE_W; k++)
        used[k] = used[k] | (data_in_0_i[i*IN_W+CODE_W-1+k] ^ data_in_0_i[i*IN_W+IN_W-1]);
  end

  always_comb begin
    shift = '0;
    for (int k = 0; k < SPARE; k++) if (used_q[k]) shift = SHIFT_W'(k + 1);
  end

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [WIDE_W-1:0] x;
    assign x = WIDE_W'($signed(codes_q[i*IN_W +: IN_W]));
    always_ff @(posedge clk_i) split_q[i*CODE_W +: CODE_W] <= CODE_W'(x >>> shift_q);
  end

  always_ff @(posedge clk_i) begin
    used_q       <= used;
    used_codes_q <= data_in_0_i;
    shift_q      <= shift;
    codes_q      <= used_codes_q;
    split_q[LANES*CODE_W +: SHIFT_W] <= shift_q;
    valid_q      <= rst_ni ? {valid_q[1:0], enters} : '0;
  end

  chop_credits #(.W(SHIFT_W + LANES * CODE_W), .LATENCY(3)) u_results (
    .clk_i, .rst_ni, .starts_i(enters), .ready_o(data_in_0_ready_o), .data_i(split_q),
    .valid_i(valid_q[2]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
