// Product of two integers: y = a b, lowest OUT_W bits.
//
// SOFT 0:  uses a multiplier of the device, if it has any.
// SOFT > 0: uses lookup tables. Each bit of the narrower factor selects the wider factor, and a
//          binary tree of SOFT levels adds the selected numbers. SOFT is $clog2 of the bits of the
//          narrower factor, at least 1.
// Timing:  one product per cycle without stalls. The latency is 1 cycle, or SOFT cycles if SOFT >
//          0.
module chop_multiplier #(
  parameter int A_W   = 8,
  parameter int B_W   = 8,
  parameter int OUT_W = 16,
  parameter int SOFT  = 0
) (
  input  logic                    clk_i,
  input  logic signed [A_W-1:0]   a_i,
  input  logic signed [B_W-1:0]   b_i,
  output logic signed [OUT_W-1:0] y_o
);
  if (SOFT == 0) begin : g_hard
    logic unused;  // bits beyond those of a narrow result
    assign unused = &{1'b0, a_i, b_i};
    always_ff @(posedge clk_i) y_o <= OUT_W'(a_i) * OUT_W'(b_i);
  end else begin : g_soft
    localparam int WIDE_W = A_W > B_W ? A_W : B_W;
    localparam int ROWS   = A_W > B_W ? B_W : A_W;

    logic signed [WIDE_W-1:0] wide;
    logic [ROWS-1:0] narrow;
    logic unused;

    if (SOFT != (ROWS > 1 ? $clog2(ROWS) : 1)) begin : g_refused
      initial $fatal(1, "chop_multiplier: SOFT is $clog2 of the bits of the narrower factor");
    end

    if (A_W > B_W) begin : g_factors
      assign wide   = a_i;
      assign narrow = b_i;
    end else begin : g_swapped
      assign wide   = b_i;
      assign narrow = a_i;
    end

    // A node of level l is the product by 2^l bits; the highest bit counts negative.
    for (genvar l = 1; l <= SOFT; l++) begin : g_level
      localparam int HALF   = 1 << (l - 1);
      localparam int HIGH_W = WIDE_W + HALF;
      localparam int NODE_W = HIGH_W + HALF;
      for (genvar n = 0; n < (ROWS + 2 * HALF - 1) / (2 * HALF); n++) begin : g_node
        logic signed [NODE_W-1:0] node_q;
        logic signed [HIGH_W-1:0] high;
        if (l == 1) begin : g_rows
          logic signed [WIDE_W-1:0] row;
          assign row = wide & {WIDE_W{narrow[2*n]}};
          if (2 * n + 1 < ROWS) begin : g_two
            logic signed [WIDE_W-1:0] upper;
            assign upper = wide & {WIDE_W{narrow[2*n+1]}};
            if (2 * n + 2 == ROWS) begin : g_sign
              assign high = (HIGH_W'(row) >>> 1) - HIGH_W'(upper);
            end else begin : g_bit
              assign high = (HIGH_W'(row) >>> 1) + HIGH_W'(upper);
            end
            always_ff @(posedge clk_i) node_q <= {high, row[0]};
          end else begin : g_sign
            assign high = -(HIGH_W'(row));
            always_ff @(posedge clk_i) node_q <= NODE_W'(high);
          end
        end else if (2 * n + 1 < (ROWS + HALF - 1) / HALF) begin : g_two
          assign high = (HIGH_W'(g_level[l-1].g_node[2*n].node_q) >>> HALF)
                      + HIGH_W'(g_level[l-1].g_node[2*n+1].node_q);
          always_ff @(posedge clk_i)
            node_q <= {high, g_level[l-1].g_node[2*n].node_q[HALF-1:0]};
        end else begin : g_one
          assign high = HIGH_W'(g_level[l-1].g_node[2*n].node_q);
          always_ff @(posedge clk_i) node_q <= NODE_W'(high);
        end
      end
    end

    assign y_o    = OUT_W'(g_level[SOFT].g_node[0].node_q);
    assign unused = &{1'b0, g_level[SOFT].g_node[0].node_q};
  end
endmodule
