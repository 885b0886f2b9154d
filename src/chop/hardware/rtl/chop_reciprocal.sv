// Reciprocal of an unsigned number: y = floor(2^POWER / x).
//
// Input:   divisors x of IN_W bits, not zero.
// Output:  quotients of OUT_W bits. The caller has to ensure that they fit.
// Timing:  OUT_W + 1 cycles between two numbers. The unit processes one number at a time.
//
// The unit uses restoring division, one bit of the quotient per cycle. The bits of the dividend
// above those of the quotient are the first remainder. It is below the divisor because the quotient
// fits.
module chop_reciprocal #(
  parameter int POWER = 30,
  parameter int IN_W = 16,
  parameter int OUT_W = 16,
  localparam int COUNT_W = $clog2(OUT_W + 1)
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic [IN_W-1:0]  data_in_0_i,
  input  logic             data_in_0_valid_i,
  output logic             data_in_0_ready_o,
  output logic [OUT_W-1:0] data_out_0_o,
  output logic             data_out_0_valid_o,
  input  logic             data_out_0_ready_i
);
  // Place of the dividend's only 1 above the quotient's bits: in the first remainder, or, below
  // zero, the bit that the first step takes.
  localparam int PLACE = POWER - OUT_W;
  localparam logic [IN_W-1:0] FIRST_REMAINDER = PLACE >= 0 ? IN_W'(1) << PLACE : '0;
  localparam logic FIRST_BIT = PLACE == -1;

  initial begin
    if (POWER < OUT_W - 1) $fatal(1, "chop_reciprocal: POWER %0d is below OUT_W - 1", POWER);
    if (PLACE >= IN_W) $fatal(1, "chop_reciprocal: no divisor of IN_W %0d bits fits", IN_W);
  end

  logic [COUNT_W-1:0] left_q;
  logic [IN_W-1:0] divisor_q, remainder_q, remainder;
  logic [IN_W+1:0] taken, difference;  // the highest bit is the sign
  logic bit_q, is_valid_q, is_taken, is_one;

  assign taken = {1'b0, remainder_q, bit_q};
  assign difference = taken - (IN_W + 2)'(divisor_q);
  assign is_one = !difference[IN_W+1];
  assign remainder = is_one ? IN_W'(difference) : IN_W'(taken);

  // A new divisor may enter in the cycle in which the quotient leaves.
  assign data_in_0_ready_o = left_q == '0 && (!is_valid_q || data_out_0_ready_i);
  assign data_out_0_valid_o = is_valid_q;
  assign is_taken = data_in_0_valid_i && data_in_0_ready_o;

  always_ff @(posedge clk_i) begin
    if (is_taken) begin
      divisor_q <= data_in_0_i;
      remainder_q <= FIRST_REMAINDER;
      bit_q <= FIRST_BIT;
      data_out_0_o <= '0;
    end else if (left_q != '0) begin
      remainder_q <= remainder;
      bit_q <= 1'b0;
      data_out_0_o <= OUT_W'({data_out_0_o, is_one});
    end
    if (!rst_ni) begin
      left_q <= '0;
      is_valid_q <= 1'b0;
    end else begin
      if (is_taken) left_q <= COUNT_W'(OUT_W);
      else if (left_q != '0) left_q <= left_q - 1'b1;
      if (left_q == COUNT_W'(1)) is_valid_q <= 1'b1;
      else if (data_out_0_ready_i) is_valid_q <= 1'b0;
    end
  end
endmodule
