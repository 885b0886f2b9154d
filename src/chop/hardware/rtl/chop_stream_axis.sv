// Check of an AXI4-Stream port, for simulation only. last_o is high at the last of the BEATS beats
// of a sample, counted from the reset. violated_o rises and stays high after a valid beat whose
// tlast differs from last_o, whose tkeep is not all ones, or whose tdata is not zero above BITS bits.
module chop_stream_axis #(
  parameter int BITS  = 8,
  parameter int BEATS = 1,
  parameter     NAME  = ""
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [(BITS+7)/8*8-1:0] tdata_i,
  input  logic [(BITS+7)/8-1:0]   tkeep_i,
  input  logic                    tvalid_i,
  input  logic                    tready_i,
  input  logic                    tlast_i,
  output logic                    last_o,
  output logic                    violated_o
);
  int moved_q;

  assign last_o = (moved_q % BEATS == BEATS - 1);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      moved_q    <= 0;
      violated_o <= 1'b0;
    end else begin
      if (tvalid_i && tready_i) moved_q <= moved_q + 1;
      if (tvalid_i && (tlast_i !== last_o || (&tkeep_i) !== 1'b1 || (tdata_i >> BITS) !== '0))
        violated_o <= 1'b1;
    end
  end

`ifndef VERILATOR
  always @(posedge violated_o)
    $display("%0s: broke the rules of AXI4-Stream: tlast, tkeep or padding", NAME);
`endif
endmodule
