// Square root of an unsigned number: y = floor(sqrt(x)).
//
// in      numbers x of IN_W bits
// out     roots of ceil(IN_W / 2) bits
// time    ceil(ceil(IN_W / 2) / 2) + 1 cycles between two numbers; one is inside at a time
//
// Digit by digit, two bits q of the root per cycle: the remainder takes four bits of the number, and
// the largest q is taken for which it is at least q (8 y + q), for the root y so far. The three
// differences are made side by side, for which 3 y + 1 is kept.
module chop_isqrt #(
  parameter int IN_W = 32,
  localparam int OUT_W = (IN_W + 1) / 2,
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
  // A remainder is at most twice the root; with the bits that it takes, four more.
  localparam int REST_W = OUT_W + 1;
  localparam int TAKEN_W = REST_W + 4;
  localparam int TRIPLE_W = OUT_W + 2;

  logic [COUNT_W-1:0] left_q;
  logic [4*STEPS-1:0] number_q;
  logic [REST_W-1:0] remainder_q, remainder;
  logic [TRIPLE_W-1:0] triple_q, triple;
  logic [TAKEN_W:0] taken, difference_1, difference_2, difference_3;  // the highest bit is the sign
  logic [1:0] last;
  logic is_valid_q, is_taken, is_two, is_odd;

  assign taken = {1'b0, remainder_q, number_q[4*STEPS-1-:4]};
  assign difference_1 = taken - (TAKEN_W + 1)'({data_out_0_o, 3'b001});
  assign difference_2 = taken - (TAKEN_W + 1)'({data_out_0_o, 4'b0100});
  assign difference_3 = taken - (TAKEN_W + 1)'({triple_q, 3'b001});
  assign is_two = !difference_2[TAKEN_W];
  assign is_odd = is_two ? !difference_3[TAKEN_W] : !difference_1[TAKEN_W];

  // A choice by each bit of q. 3 (4 y + q) + 1 = 4 (3 y + 1) + 3 (q - 1)
  assign remainder = is_two ? (is_odd ? REST_W'(difference_3) : REST_W'(difference_2))
                            : (is_odd ? REST_W'(difference_1) : REST_W'(taken));
  assign triple = is_two ? (is_odd ? triple_q + TRIPLE_W'(1) : triple_q)
                         : (is_odd ? triple_q : triple_q - TRIPLE_W'(1));
  assign last = {is_two, !is_odd};

  assign data_in_0_ready_o = left_q == '0 && (!is_valid_q || data_out_0_ready_i);
  assign data_out_0_valid_o = is_valid_q;
  assign is_taken = data_in_0_valid_i && data_in_0_ready_o;

  always_ff @(posedge clk_i) begin
    if (is_taken) begin
      number_q <= (4 * STEPS)'(data_in_0_i);
      remainder_q <= '0;
      triple_q <= TRIPLE_W'(1);
      data_out_0_o <= '0;
    end else if (left_q != '0) begin
      number_q <= number_q << 4;
      remainder_q <= remainder;
      triple_q <= TRIPLE_W'({triple, last});
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
