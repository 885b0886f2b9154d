// Fill level between two points of a stream, for simulation only. most_o is the largest number of
// beats since the reset.
module chop_stream_fill (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        in_valid_i,
  input  logic        in_ready_i,
  input  logic        out_valid_i,
  input  logic        out_ready_i,
  output logic [31:0] most_o
);
  logic [31:0] held_q, held;

  assign held = held_q + 32'(in_valid_i && in_ready_i) - 32'(out_valid_i && out_ready_i);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      held_q <= '0;
      most_o <= '0;
    end else begin
      held_q <= held;
      if (held > most_o) most_o <= held;
    end
  end
endmodule
