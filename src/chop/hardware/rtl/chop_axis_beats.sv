// Beat counter of an AXI4-Stream port: last_o is high at the last of the BEATS beats of a sample.
// Beats are counted from the reset.
module chop_axis_beats #(
  parameter int BEATS = 1
) (
  input  logic clk_i,
  input  logic rst_ni,
  input  logic moves_i,
  output logic last_o
);
  localparam int COUNT_W = $clog2(BEATS + 1);

  logic [COUNT_W-1:0] count_q;

  assign last_o = (count_q == COUNT_W'(BEATS - 1));

  always_ff @(posedge clk_i) begin
    if (!rst_ni) count_q <= '0;
    else if (moves_i) count_q <= last_o ? '0 : count_q + COUNT_W'(1);
  end
endmodule
