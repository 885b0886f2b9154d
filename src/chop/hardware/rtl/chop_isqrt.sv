// Square root of an unsigned number: y = floor(sqrt(x)).
//
// Input:   numbers x of IN_W bits.
// Output:  roots of ceil(IN_W / 2) bits.
// Timing:  ceil(IN_W / 2) + 1 cycles between two numbers. The unit processes one number at a time.
//
// The root is computed digit by digit, one bit per cycle. The remainder is extended by two bits of
// the number. The new bit is 1 if the remainder is at least 4 y + 1, where y is the root so far.
module chop_isqrt #(
  parameter int IN_W = 32,
  localparam int OUT_W = (IN_W + 1) / 2,
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
  // A remainder is at most twice the root; with the bits that it takes, two more.
  localparam int REST_W = OUT_W + 1;
  localparam int TAKEN_W = REST_W + 2;

  logic [COUNT_W-1:0] left_q;
  logic [2*OUT_W-1:0] number_q;
  logic [REST_W-1:0] remainder_q, remainder;
  logic [TAKEN_W:0] taken, difference;  // the highest bit is the sign
  logic is_valid_q, is_taken, is_one;

  assign taken = {1'b0, remainder_q, number_q[2*OUT_W-1-:2]};
  assign difference = taken - (TAKEN_W + 1)'({data_out_0_o, 2'b01});
  assign is_one = !difference[TAKEN_W];
  assign remainder = is_one ? REST_W'(difference) : REST_W'(taken);

  // A new number may enter in the cycle in which the result leaves.
  assign data_in_0_ready_o = left_q == '0 && (!is_valid_q || data_out_0_ready_i);
  assign data_out_0_valid_o = is_valid_q;
  assign is_taken = data_in_0_valid_i && data_in_0_ready_o;

  always_ff @(posedge clk_i) begin
    if (is_taken) begin
      number_q <= (2 * OUT_W)'(data_in_0_i);
      remainder_q <= '0;
      data_out_0_o <= '0;
    end else if (left_q != '0) begin
      number_q <= number_q << 2;
      remainder_q <= remainder;
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
