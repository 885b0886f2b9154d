// AXI4-Stream input (slave) port in front of a ready/valid stream of BITS bits.
//
// Input:   tdata of whole bytes. The codes are in its lowest BITS bits, and the padding is ignored.
// Output:  the same beats, whatever tlast is.
// Reset:   tready is low, so that a beat that waits during a reset by a register is not lost.
// Error:   error_o rises after a beat whose tlast differs from the end of a sample (BEATS beats,
//          counted from the reset). It stays high until the reset.
// Timing:  combinational.
module chop_axis_in #(
  parameter int BITS  = 8,
  parameter int BEATS = 1
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [(BITS+7)/8*8-1:0] tdata_i,
  input  logic                    tvalid_i,
  output logic                    tready_o,
  input  logic                    tlast_i,
  output logic [BITS-1:0]         data_o,
  output logic                    valid_o,
  input  logic                    ready_i,
  output logic                    error_o
);
  logic last, moves, unused;

  assign data_o   = tdata_i[BITS-1:0];
  assign valid_o  = tvalid_i && rst_ni;
  assign tready_o = ready_i && rst_ni;
  assign moves    = tvalid_i && tready_o;
  assign unused   = &{1'b0, tdata_i};  // the padding

  chop_axis_beats #(.BEATS(BEATS)) u_beats (
    .clk_i(clk_i), .rst_ni(rst_ni), .moves_i(moves), .last_o(last));

  always_ff @(posedge clk_i) begin
    if (!rst_ni) error_o <= 1'b0;
    else if (moves && (tlast_i != last)) error_o <= 1'b1;
  end
endmodule
