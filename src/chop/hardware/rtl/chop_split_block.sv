// Split of codes that share a power of two: x[i] = q[i] 2^e, with the smallest e for which all q[i]
// have CODE_W bits.
//
// in      LANES codes x of IN_W bits, all of them multiples of that 2^e
// out     LANES codes q of CODE_W bits in the lower bits, e in SHIFT_W bits above them
// time    one beat per cycle; bits in use | their number | shift
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
  logic used_valid_q, shift_valid_q, moves;

  assign moves = !data_out_0_valid_o || data_out_0_ready_i;
  assign data_in_0_ready_o = moves;

  // Of a bit that differs from the sign at a place above those of a code.
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
    always_ff @(posedge clk_i) begin
      if (moves) data_out_0_o[i*CODE_W +: CODE_W] <= CODE_W'(x >>> shift_q);
    end
  end

  always_ff @(posedge clk_i) begin
    if (moves) begin
      used_q       <= used;
      used_codes_q <= data_in_0_i;
      shift_q      <= shift;
      codes_q      <= used_codes_q;
      data_out_0_o[LANES*CODE_W +: SHIFT_W] <= shift_q;
    end
    if (!rst_ni) begin
      used_valid_q       <= 1'b0;
      shift_valid_q      <= 1'b0;
      data_out_0_valid_o <= 1'b0;
    end else if (moves) begin
      used_valid_q       <= data_in_0_valid_i;
      shift_valid_q      <= used_valid_q;
      data_out_0_valid_o <= shift_valid_q;
    end
  end
endmodule
