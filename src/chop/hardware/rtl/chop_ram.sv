// Memory of weights that are written at run time, with synchronous read like chop_rom. data_o is
// the word at addr_i of the last clock edge.
//
// Writes:  load_i is {valid, address of 24 bits, data of 32 bits}. Word i has its lowest 32 bits at
//          address BASE + i * STRIDE, and its higher bits behind them. STRIDE is the number of
//          these parts, rounded up to a power of two. Other addresses are ignored.
// Timing:  a part is written two clock edges after the one that takes load_i.
// Memory:  DEPTH words of W bits, unknown until they are written.
module chop_ram #(
  parameter int W     = 8,
  parameter int DEPTH = 16,
  parameter int BASE  = 0,
  localparam int ADDR_W = (DEPTH > 1) ? $clog2(DEPTH) : 1
) (
  input  logic              clk_i,
  input  logic [56:0]       load_i,
  input  logic [ADDR_W-1:0] addr_i,
  output logic [W-1:0]      data_o
);
  localparam int PARTS  = (W + 31) / 32;
  localparam int PART_W = $clog2(PARTS);
  localparam int SIZE   = DEPTH << PART_W;

  logic [23:0] offset_q;
  logic [31:0] part_q;
  logic [ADDR_W-1:0] word;
  logic valid_q, writes, unused;

  // Addresses below BASE wrap around to offsets above SIZE.
  // SIZE may be 2^24.
  assign writes = valid_q && {1'b0, offset_q} < 25'(SIZE);
  assign word   = ADDR_W'(offset_q >> PART_W);
  assign unused = &{1'b0, part_q};  // bits beyond those of a narrow part

  always_ff @(posedge clk_i) begin
    valid_q  <= load_i[56];
    offset_q <= load_i[55:32] - 24'(BASE);
    part_q   <= load_i[31:0];
  end

  for (genvar p = 0; p < PARTS; p++) begin : g_part
    localparam int BITS = (W - 32 * p < 32) ? W - 32 * p : 32;
    logic [BITS-1:0] memory [0:DEPTH-1];
    always_ff @(posedge clk_i) begin
      if (writes && (offset_q & 24'((1 << PART_W) - 1)) == 24'(p)) memory[word] <= part_q[BITS-1:0];
      data_o[32*p +: BITS] <= memory[addr_i];
    end
  end
endmodule
