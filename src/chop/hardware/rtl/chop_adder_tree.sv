// Sum of N signed numbers of W bits in a balanced tree. A node of level l adds 2^l numbers, the
// last node fewer. Bits above W are dropped.
//
// Timing:  latency ceil(log2(N)) cycles, one register per level. A single number passes in 0
//          cycles.
module chop_adder_tree #(
  parameter int N = 4,
  parameter int W = 16
) (
  input  logic           clk_i,
  input  logic [N*W-1:0] terms_i,
  output logic [W-1:0]   sum_o
);
  localparam int LEVELS = $clog2(N);

  for (genvar l = 0; l <= LEVELS; l++) begin : g_level
    localparam int NODES = (N + (1 << l) - 1) >> l;
    logic [NODES*W-1:0] sums;
    if (l == 0) begin : g_terms
      assign sums = terms_i;
    end else begin : g_sums
      localparam int BELOW = (N + (1 << (l - 1)) - 1) >> (l - 1);
      for (genvar n = 0; n < NODES; n++) begin : g_node
        logic [W-1:0] node_q;
        assign sums[n*W +: W] = node_q;
        if (2 * n + 1 < BELOW) begin : g_two
          always_ff @(posedge clk_i)
            node_q <= g_level[l-1].sums[2*n*W +: W] + g_level[l-1].sums[(2*n+1)*W +: W];
        end else begin : g_one
          always_ff @(posedge clk_i) node_q <= g_level[l-1].sums[2*n*W +: W];
        end
      end
    end
  end

  assign sum_o = g_level[LEVELS].sums;

  if (N == 1) begin : g_unclocked
    logic unused;
    assign unused = &{1'b0, clk_i};
  end
endmodule
