// Reciprocal of an unsigned number: y = floor(2^POWER / x).
//
// in      divisors x of IN_W bits, not zero
// out     quotients of OUT_W bits, which the caller proves to fit
// time    ceil(OUT_W / 2) + 1 cycles between two numbers; one is inside at a time
//
// Restoring division, two bits of the quotient per cycle: one, two and three times the divisor are
// subtracted side by side. The bits of the dividend above those of the quotient are the first
// remainder, which is below the divisor because the quotient fits.
module chop_reciprocal #(
  parameter int POWER = 30,
  parameter int IN_W = 16,
  parameter int OUT_W = 16,
  localparam int STEPS = (OUT_W + 1) / 2,
  localparam int COUNT_W = $clog2(STEPS + 1)
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
  // zero, in one of the two bits that the first step takes.
  localparam int PLACE = POWER - 2 * STEPS;
  localparam logic [IN_W-1:0] FIRST_REMAINDER = PLACE >= 0 ? IN_W'(1) << PLACE : '0;
  localparam logic [1:0] FIRST_BITS = PLACE == -1 ? 2'b10 : PLACE == -2 ? 2'b01 : 2'b00;

  initial begin
    if (POWER < OUT_W - 1) $fatal(1, "chop_reciprocal: POWER %0d is below OUT_W - 1", POWER);
    if (PLACE >= IN_W) $fatal(1, "chop_reciprocal: no divisor of IN_W %0d bits fits", IN_W);
  end

  logic [COUNT_W-1:0] left_q;
  logic [IN_W-1:0] divisor_q, remainder_q, remainder;
  logic [IN_W+1:0] triple_q;
  logic [IN_W+2:0] taken, difference_1, difference_2, difference_3;  // the highest bit is the sign
  logic [1:0] bits_q;
  logic is_valid_q, is_taken, is_two, is_odd;

  assign taken = {1'b0, remainder_q, bits_q};
  assign difference_1 = taken - (IN_W + 3)'(divisor_q);
  assign difference_2 = taken - (IN_W + 3)'({divisor_q, 1'b0});
  assign difference_3 = taken - (IN_W + 3)'(triple_q);
  assign is_two = !difference_2[IN_W+2];
  assign is_odd = is_two ? !difference_3[IN_W+2] : !difference_1[IN_W+2];
  assign remainder = is_two ? (is_odd ? IN_W'(difference_3) : IN_W'(difference_2))
                            : (is_odd ? IN_W'(difference_1) : IN_W'(taken));

  assign data_in_0_ready_o = left_q == '0 && (!is_valid_q || data_out_0_ready_i);
  assign data_out_0_valid_o = is_valid_q;
  assign is_taken = data_in_0_valid_i && data_in_0_ready_o;

  always_ff @(posedge clk_i) begin
    if (is_taken) begin
      divisor_q <= data_in_0_i;
      triple_q <= (IN_W + 2)'(data_in_0_i) + (IN_W + 2)'({data_in_0_i, 1'b0});
      remainder_q <= FIRST_REMAINDER;
      bits_q <= FIRST_BITS;
      data_out_0_o <= '0;
    end else if (left_q != '0) begin
      remainder_q <= remainder;
      bits_q <= 2'b00;
      data_out_0_o <= OUT_W'({data_out_0_o, is_two, is_odd});
    end
    if (!rst_ni) begin
      left_q <= '0;
      is_valid_q <= 1'b0;
    end else begin
      if (is_taken) left_q <= COUNT_W'(STEPS);
      else if (left_q != '0) left_q <= left_q - 1'b1;
      if (left_q == COUNT_W'(1)) is_valid_q <= 1'b1;
      else if (data_out_0_ready_i) is_valid_q <= 1'b0;
    end
  end
endmodule
