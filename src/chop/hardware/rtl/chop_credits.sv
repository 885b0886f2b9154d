// Credit-based flow control of a pipeline that never stalls. No enable signal has to reach all of
// the pipeline's registers.
//
// Input:   data_i of W bits, the pipeline's output, in each cycle in which valid_i is high.
// Output:  the same data as a stream. Its FIFO has a slot for every beat in the pipeline.
// Control: ready_o is high while another beat may enter the pipeline. The user raises starts_i in
//          each cycle in which a beat enters.
// Timing:  one beat per cycle, at most LATENCY cycles from starts_i to valid_i. If beats enter at
//          most every EVERY cycles, fewer slots are needed.
// Memory:  a FIFO of PLACES beats. Users whose beats wait need more than the default, (LATENCY + 4)
//          / EVERY + 2.
module chop_credits #(
  parameter int W       = 8,
  parameter int LATENCY = 1,
  parameter int EVERY   = 1,
  parameter int PLACES  = (LATENCY + 4) / EVERY + 2
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic         starts_i,
  output logic         ready_o,
  input  logic [W-1:0] data_i,
  input  logic         valid_i,
  output logic [W-1:0] data_out_0_o,
  output logic         data_out_0_valid_o,
  input  logic         data_out_0_ready_i
);
  localparam int COUNT_W = $clog2(PLACES + 1);

  logic [COUNT_W-1:0] taken_q;
  logic leaves, is_full, unused;

  // The FIFO is never full: it has a slot for each credit.
  chop_fifo #(.W(W), .DEPTH(PLACES)) u_fifo (
    .clk_i, .rst_ni, .data_in_0_i(data_i), .data_in_0_valid_i(valid_i), .data_in_0_ready_o(unused),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);

  assign leaves  = data_out_0_valid_o && data_out_0_ready_i;
  // For the next cycle: both comparisons run in parallel to starts_i, which arrives late.
  assign is_full =
    !leaves && (starts_i ? taken_q == COUNT_W'(PLACES - 1) : taken_q == COUNT_W'(PLACES));

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      taken_q <= '0;
      ready_o <= 1'b0;
    end else begin
      if (starts_i && !leaves) taken_q <= taken_q + 1'b1;
      if (leaves && !starts_i) taken_q <= taken_q - 1'b1;
      ready_o <= !is_full;
    end
  end
endmodule
