// Memory with synchronous read: read-only with the contents of FILE, or written through load_i if
// BASE is an address (see chop_ram). data_o is the word at addr_i of the last clock edge.
//
// Memory:  DEPTH words of W bits, from FILE if BASE is below zero.
module chop_memory #(
  parameter int W     = 8,
  parameter int DEPTH = 16,
  parameter     FILE  = "",
  parameter int BASE  = -1,
  localparam int ADDR_W = (DEPTH > 1) ? $clog2(DEPTH) : 1
) (
  input  logic              clk_i,
  input  logic [56:0]       load_i,
  input  logic [ADDR_W-1:0] addr_i,
  output logic [W-1:0]      data_o
);
  if (BASE < 0) begin : g_rom
    logic unused;
    assign unused = &{1'b0, load_i};
    chop_rom #(.W(W), .DEPTH(DEPTH), .FILE(FILE)) u_rom (
      .clk_i(clk_i), .en_i(1'b1), .addr_i(addr_i), .data_o(data_o));
  end else begin : g_ram
    chop_ram #(.W(W), .DEPTH(DEPTH), .BASE(BASE)) u_ram (.clk_i, .load_i, .addr_i, .data_o);
  end
endmodule
