// Square root of an unsigned number: y = floor(sqrt(x)).
//
// in      numbers x of IN_W bits
// out     roots of ceil(IN_W / 2) bits
// time    ceil(ceil(IN_W / 2) / 2) + 1 cycles between two numbers; one is inside at a time
//
// Digit by digit, two bits of the root per cycle: the remainder takes two bits of the number and
// is compared with 4 y + 1, for the root y so far.
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
  // A remainder is at most twice the root: OUT_W + 1 bits; with the bits that it takes, two more.
  localparam int REST_W = OUT_W + 1;

  logic [COUNT_W-1:0] left_q;
  logic [4*STEPS-1:0] number_q;
  logic [REST_W-1:0] remainder_q, remainder_1, remainder_2;
  logic [REST_W+1:0] taken_1, taken_2, trial_1, trial_2;
  logic [REST_W+2:0] difference_1, difference_2;  // the highest bit is the sign
  logic [OUT_W-1:0] root_1;
  logic is_valid_q, is_above_1, is_above_2, is_taken;

  assign taken_1 = {remainder_q, number_q[4*STEPS-1-:2]};
  assign trial_1 = {1'b0, data_out_0_o, 2'b01};
  assign difference_1 = {1'b0, taken_1} - {1'b0, trial_1};
  assign is_above_1 = !difference_1[REST_W+2];
  assign remainder_1 = is_above_1 ? REST_W'(difference_1) : REST_W'(taken_1);
  assign root_1 = OUT_W'({data_out_0_o, is_above_1});
  assign taken_2 = {remainder_1, number_q[4*STEPS-3-:2]};
  assign trial_2 = {1'b0, root_1, 2'b01};
  assign difference_2 = {1'b0, taken_2} - {1'b0, trial_2};
  assign is_above_2 = !difference_2[REST_W+2];
  assign remainder_2 = is_above_2 ? REST_W'(difference_2) : REST_W'(taken_2);

  assign data_in_0_ready_o = left_q == '0 && (!is_valid_q || data_out_0_ready_i);
  assign data_out_0_valid_o = is_valid_q;
  assign is_taken = data_in_0_valid_i && data_in_0_ready_o;

  always_ff @(posedge clk_i) begin
    if (is_taken) begin
      number_q <= (4 * STEPS)'(data_in_0_i);
      remainder_q <= '0;
      data_out_0_o <= '0;
    end else if (left_q != '0) begin
      number_q <= number_q << 4;
      remainder_q <= remainder_2;
      data_out_0_o <= OUT_W'({root_1, is_above_2});
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
