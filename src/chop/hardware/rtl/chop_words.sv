// Sequential reader of a memory that starts again after its last word. FILE, BASE and load_i are
// those of chop_memory.
//
// Output:  data_o of W bits, two cycles after each cycle in which takes_i is high: the next of
//          BEATS words.
// Timing:  one word per cycle. Pipeline: memory | register.
// Memory:  BEATS words.
module chop_words #(
  parameter int W     = 8,
  parameter int BEATS = 1,
  parameter     FILE  = "",
  parameter int BASE  = -1
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [56:0]  load_i,
  input  logic         takes_i,
  output logic [W-1:0] data_o
);
  localparam int ADDR_W = (BEATS > 1) ? $clog2(BEATS) : 1;

  logic [ADDR_W-1:0] addr_q;
  logic [W-1:0] word;

  // The memory's output is slow: block memories have this register inside.
  chop_memory #(.W(W), .DEPTH(BEATS), .FILE(FILE), .BASE(BASE)) u_memory (
    .clk_i, .load_i, .addr_i(addr_q), .data_o(word));

  always_ff @(posedge clk_i) begin
    data_o <= word;
    if (!rst_ni) addr_q <= '0;
    else if (takes_i) addr_q <= (addr_q == ADDR_W'(BEATS - 1)) ? '0 : addr_q + ADDR_W'(1);
  end
endmodule
