// Constant: the words of a read-only memory as a stream, again and again.
//
// out     beats of W bits, BEATS of them a sample
// time    one beat per cycle; the first in the second cycle after the reset
// memory  BEATS words of a beat
module chop_constant #(
  parameter int W     = 8,
  parameter int BEATS = 1,
  parameter     FILE  = ""
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  output logic [W-1:0] data_out_0_o,
  output logic         data_out_0_valid_o,
  input  logic         data_out_0_ready_i
);
  localparam int ADDR_W = (BEATS > 1) ? $clog2(BEATS) : 1;

  logic [ADDR_W-1:0] addr_q;
  logic reads;

  assign reads = !data_out_0_valid_o || data_out_0_ready_i;

  chop_rom #(.W(W), .DEPTH(BEATS), .FILE(FILE)) u_rom (
    .clk_i(clk_i), .en_i(reads), .addr_i(addr_q), .data_o(data_out_0_o));

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      addr_q             <= '0;
      data_out_0_valid_o <= 1'b0;
    end else if (reads) begin
      addr_q             <= (addr_q == ADDR_W'(BEATS - 1)) ? '0 : addr_q + ADDR_W'(1);
      data_out_0_valid_o <= 1'b1;
    end
  end
endmodule
