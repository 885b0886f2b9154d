// Read-only memory with synchronous read. data_o is the word at addr_i of the last clock edge with
// en_i high.
//
// Memory:  DEPTH words of W bits, read from FILE by $readmemh, or all zeros if FILE is "".
module chop_rom #(
  parameter int W     = 8,
  parameter int DEPTH = 16,
  parameter     FILE  = "",
  localparam int ADDR_W = (DEPTH > 1) ? $clog2(DEPTH) : 1
) (
  input  logic              clk_i,
  input  logic              en_i,
  input  logic [ADDR_W-1:0] addr_i,
  output logic [W-1:0]      data_o
);
  logic [W-1:0] memory [0:DEPTH-1];

  if (FILE == "") begin : g_zeros
    initial for (int i = 0; i < DEPTH; i++) memory[i] = '0;
  end else begin : g_file
    initial $readmemh(FILE, memory);
  end

  always_ff @(posedge clk_i) begin
    if (en_i) data_o <= memory[addr_i];
  end
endmodule
