// Protocol check of a ready/valid stream, for simulation only. violated_o rises and stays high
// after a violation: valid or ready is unknown, a bit of valid data is unknown, or a beat that was
// not taken is withdrawn or changed.
module chop_stream_check #(
  parameter int W = 8
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [W-1:0] data_i,
  input  logic         valid_i,
  input  logic         ready_i,
  output logic         violated_o
);
  logic stalled_q;
  logic [W-1:0] data_q;
  logic unknown, changed;

  assign unknown = ((valid_i ^ ready_i) === 1'bx) || (valid_i && ((^data_i) === 1'bx));
  assign changed = stalled_q && (!valid_i || data_i !== data_q);

  always_ff @(posedge clk_i) begin
    data_q <= data_i;
    if (!rst_ni) begin
      stalled_q  <= 1'b0;
      violated_o <= 1'b0;
    end else begin
      stalled_q <= valid_i && !ready_i;
      if (unknown || changed) violated_o <= 1'b1;
    end
  end
endmodule
