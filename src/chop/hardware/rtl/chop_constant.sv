// Constant: sends the words of a memory repeatedly. BASE and load_i are those of chop_words.
//
// Output:  beats of W bits, BEATS of them per sample.
// Timing:  one beat per cycle. Pipeline: memory | register | FIFO of chop_credits.
// Memory:  BEATS words of one beat.
module chop_constant #(
  parameter int W     = 8,
  parameter int BEATS = 1,
  parameter     FILE  = "",
  parameter int BASE  = -1
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [56:0]  load_i,
  output logic [W-1:0] data_out_0_o,
  output logic         data_out_0_valid_o,
  input  logic         data_out_0_ready_i
);
  logic [W-1:0] word;
  logic [1:0] valid_q;
  logic reads;

  chop_words #(.W(W), .BEATS(BEATS), .FILE(FILE), .BASE(BASE)) u_words (
    .clk_i, .rst_ni, .load_i, .takes_i(reads), .data_o(word));

  always_ff @(posedge clk_i) valid_q <= rst_ni ? {valid_q[0], reads} : '0;

  chop_credits #(.W(W), .LATENCY(2)) u_beats (
    .clk_i, .rst_ni, .starts_i(reads), .ready_o(reads), .data_i(word), .valid_i(valid_q[1]),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
