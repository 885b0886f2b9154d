// Loader of weights: writes the words of a stream into the memories of a circuit (chop_ram), and
// keeps the circuit in reset until all of them are written.
//
// Input:   WORDS words of 32 bits after each reset, in the order of their addresses from 0 on.
//          Then weights_ready_o stays low until the next reset.
// Output:  load_o is {valid, address of 24 bits, data of 32 bits}. runs_o is high from the time when
//          all words can be read until the next reset.
// Timing:  one word per cycle. runs_o rises four cycles after the last word.
module chop_load #(
  parameter int WORDS = 1
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [31:0] weights_i,
  input  logic        weights_valid_i,
  output logic        weights_ready_o,
  output logic [56:0] load_o,
  output logic        runs_o
);
  localparam int COUNT_W = $clog2(WORDS + 1);

  logic [COUNT_W-1:0] count_q;
  logic [2:0] full_q;
  logic moves;

  assign weights_ready_o = (count_q != COUNT_W'(WORDS));
  assign moves           = weights_valid_i && weights_ready_o;
  assign runs_o          = rst_ni && full_q[2];

  always_ff @(posedge clk_i) begin
    load_o <= {rst_ni && moves, 24'(count_q), weights_i};
    if (!rst_ni) begin
      count_q <= '0;
      full_q  <= '0;
    end else begin
      if (moves) count_q <= count_q + COUNT_W'(1);
      full_q <= {full_q[1:0], !weights_ready_o};
    end
  end
endmodule
