// Selection: passes the beats FIRST to LAST of every PERIOD beats and drops the others.
//
// Input:   beats of W bits.
// Output:  the selected beats.
// Timing:  one input beat per cycle; one register.
module chop_select #(
  parameter int W      = 8,
  parameter int PERIOD = 2,
  parameter int FIRST  = 0,
  parameter int LAST   = 0
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [W-1:0] data_in_0_i,
  input  logic         data_in_0_valid_i,
  output logic         data_in_0_ready_o,
  output logic [W-1:0] data_out_0_o,
  output logic         data_out_0_valid_o,
  input  logic         data_out_0_ready_i
);
  localparam int COUNT_W = $clog2(PERIOD + 1);

  logic [COUNT_W-1:0] count_q;
  logic passes;

  // With FIRST 0, `count_q >= FIRST` would be a comparison that is always true, which lint reports.
  assign passes = (count_q + COUNT_W'(1) > COUNT_W'(FIRST)) && (count_q <= COUNT_W'(LAST));
  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;

  always_ff @(posedge clk_i) begin
    if (data_in_0_ready_o) data_out_0_o <= data_in_0_i;
    if (!rst_ni) begin
      count_q            <= '0;
      data_out_0_valid_o <= 1'b0;
    end else if (data_in_0_ready_o) begin
      data_out_0_valid_o <= data_in_0_valid_i && passes;
      if (data_in_0_valid_i)
        count_q <= (count_q == COUNT_W'(PERIOD - 1)) ? '0 : count_q + COUNT_W'(1);
    end
  end
endmodule
