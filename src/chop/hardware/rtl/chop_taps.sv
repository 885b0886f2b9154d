// Sum or maximum of the N taps of a window that are in one beat, for each lane.
//
// Input:   N * LANES codes of IN_W bits, tap by tap.
// Output:  LANES results of OUT_W bits: sums, or maxima if MAXIMUM is 1.
// Timing:  one beat per cycle; latency ceil(log2(N)) cycles, one register per level of a tree. A
//          single tap passes in 0 cycles. While the output waits, all registers do.
module chop_taps #(
  parameter int N       = 4,
  parameter int LANES   = 1,
  parameter int IN_W    = 8,
  parameter int OUT_W   = 10,
  parameter bit MAXIMUM = 1'b0
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [N*LANES*IN_W-1:0] data_in_0_i,
  input  logic                    data_in_0_valid_i,
  output logic                    data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0]  data_out_0_o,
  output logic                    data_out_0_valid_o,
  input  logic                    data_out_0_ready_i
);
  localparam int LEVELS = $clog2(N);

  logic moves;

  assign moves = !data_out_0_valid_o || data_out_0_ready_i;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    for (genvar l = 0; l <= LEVELS; l++) begin : g_level
      for (genvar n = 0; n < (N + (1 << l) - 1) >> l; n++) begin : g_node
        logic signed [OUT_W-1:0] result;
        if (l == 0) begin : g_tap
          assign result = OUT_W'($signed(data_in_0_i[(n*LANES+i)*IN_W +: IN_W]));
        end else begin : g_result
          logic signed [OUT_W-1:0] a, y;
          assign a = g_level[l-1].g_node[2*n].result;
          if (2 * n + 1 < (N + (1 << (l - 1)) - 1) >> (l - 1)) begin : g_two
            logic signed [OUT_W-1:0] b;
            assign b = g_level[l-1].g_node[2*n+1].result;
            assign y = !MAXIMUM ? a + b : a > b ? a : b;
          end else begin : g_one
            assign y = a;
          end
          always_ff @(posedge clk_i) if (moves) result <= y;
        end
      end
    end
    assign data_out_0_o[i*OUT_W +: OUT_W] = g_level[LEVELS].g_node[0].result;
  end

  if (N == 1) begin : g_wires
    logic unused;
    assign data_in_0_ready_o  = data_out_0_ready_i;
    assign data_out_0_valid_o = data_in_0_valid_i;
    assign unused             = &{1'b0, clk_i, rst_ni, moves};
  end else begin : g_registers
    logic [LEVELS-1:0] valid_q;
    assign data_in_0_ready_o  = moves;
    assign data_out_0_valid_o = valid_q[LEVELS-1];
    always_ff @(posedge clk_i) begin
      if (!rst_ni) valid_q <= '0;
      else if (moves) valid_q <= LEVELS'({valid_q, data_in_0_valid_i});
    end
  end
endmodule
