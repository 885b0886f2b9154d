// AXI4-Stream output (master) port behind a ready/valid stream of BITS bits.
//
// Input:   beats of BITS bits.
// Output:  the same beats in the lowest bits of tdata, padded with zeros up to whole bytes. tkeep is
//          all ones, and tlast marks the last of the BEATS beats of a sample.
// Timing:  combinational.
module chop_axis_out #(
  parameter int BITS  = 8,
  parameter int BEATS = 1
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [BITS-1:0]         data_i,
  input  logic                    valid_i,
  output logic                    ready_o,
  output logic [(BITS+7)/8*8-1:0] tdata_o,
  output logic [(BITS+7)/8-1:0]   tkeep_o,
  output logic                    tvalid_o,
  input  logic                    tready_i,
  output logic                    tlast_o
);
  localparam int TDATA_W = (BITS + 7) / 8 * 8;

  assign tdata_o  = TDATA_W'(data_i);
  assign tkeep_o  = '1;
  assign tvalid_o = valid_i;
  assign ready_o  = tready_i;

  chop_axis_beats #(.BEATS(BEATS)) u_beats (
    .clk_i(clk_i), .rst_ni(rst_ni), .moves_i(valid_i && tready_i), .last_o(tlast_o));
endmodule
