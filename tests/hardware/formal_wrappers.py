"""Modules around components whose ports have other names, for formal checks."""

FORK = """
module formal_wrapper (input logic clk_i, input logic rst_ni,
  input logic [1:0] data_in_0_i, input logic data_in_0_valid_i, output logic data_in_0_ready_o,
  output logic [1:0] data_out_0_o, output logic data_out_0_valid_o, input logic data_out_0_ready_i,
  output logic [1:0] data_out_1_o, output logic data_out_1_valid_o, input logic data_out_1_ready_i,
  output logic [1:0] data_out_2_o, output logic data_out_2_valid_o, input logic data_out_2_ready_i);
  assign data_out_1_o = data_out_0_o;
  assign data_out_2_o = data_out_0_o;
  chop_fork #(.W(2), .N(3)) u_fork (.clk_i, .rst_ni, .data_in_0_i, .data_in_0_valid_i,
    .data_in_0_ready_o, .data_out_o(data_out_0_o),
    .data_out_valid_o({data_out_2_valid_o, data_out_1_valid_o, data_out_0_valid_o}),
    .data_out_ready_i({data_out_2_ready_i, data_out_1_ready_i, data_out_0_ready_i}));
endmodule
"""
HEAD = """
module formal_wrapper (input logic clk_i, input logic rst_ni,
  input logic [1:0] data_in_0_i, input logic data_in_0_valid_i, output logic data_in_0_ready_o,
  output logic [1:0] data_out_0_o, output logic data_out_0_valid_o, input logic data_out_0_ready_i);
"""
CREDITS = f"""{HEAD}
  logic [5:0] data_q;
  logic [2:0] valid_q;
  logic starts;
  assign starts = data_in_0_valid_i && data_in_0_ready_o;
  always_ff @(posedge clk_i) begin
    data_q <= {{data_q[3:0], data_in_0_i}};
    valid_q <= rst_ni ? {{valid_q[1:0], starts}} : '0;
  end
  chop_credits #(.W(2), .LATENCY(3)) u_credits (.clk_i, .rst_ni, .starts_i(starts),
    .ready_o(data_in_0_ready_o), .data_i(data_q[5:4]), .valid_i(valid_q[2]), .data_out_0_o,
    .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
"""
AXIS_IN = f"""{HEAD}
  logic unused;
  chop_axis_in #(.BITS(2), .BEATS(3)) u_axis (.clk_i, .rst_ni, .tdata_i({{6'd9, data_in_0_i}}),
    .tvalid_i(data_in_0_valid_i), .tready_o(data_in_0_ready_o), .tlast_i(data_in_0_i[0]),
    .data_o(data_out_0_o), .valid_o(data_out_0_valid_o), .ready_i(data_out_0_ready_i),
    .error_o(unused));
endmodule
"""
AXIS_OUT = f"""{HEAD}
  logic [7:0] tdata;
  logic keep, last;
  assign data_out_0_o = OUT;
  chop_axis_out #(.BITS(2), .BEATS(3)) u_axis (.clk_i, .rst_ni, .data_i(data_in_0_i),
    .valid_i(data_in_0_valid_i), .ready_o(data_in_0_ready_o), .tdata_o(tdata), .tkeep_o(keep),
    .tvalid_o(data_out_0_valid_o), .tready_i(data_out_0_ready_i), .tlast_o(last));
endmodule
"""

# A cache that is read at any position would send words that have never been written.
CACHE = """
module formal_wrapper (input logic clk_i, input logic rst_ni,
  input logic data_in_0_i, input logic data_in_0_valid_i, output logic data_in_0_ready_o,
  input logic data_in_1_i, input logic data_in_1_valid_i, output logic data_in_1_ready_o,
  input logic data_in_2_i, input logic data_in_2_valid_i, output logic data_in_2_ready_o,
  output logic [2:0] data_out_0_o, output logic data_out_0_valid_o, input logic data_out_0_ready_i);
  logic position, is_read, is_ready;
  chop_position #(.LENGTH(2), .IN_W(1), .OUT_W(1)) u_position (.clk_i, .rst_ni,
    .data_in_0_i(data_in_1_i), .data_in_0_valid_i(data_in_1_valid_i),
    .data_in_0_ready_o(data_in_1_ready_o), .data_out_0_o(position),
    .data_out_0_valid_o(is_read), .data_out_0_ready_i(is_ready));
  chop_cached_matmul #(.LENGTH(2), .FEATURES(2), .IN_0_W(1), .IN_1_W(1), .IN_2_W(1), .OUT_W(3))
    u_cache (.clk_i, .rst_ni, .data_in_0_i(data_in_0_i), .data_in_0_valid_i, .data_in_0_ready_o,
    .data_in_1_i(data_in_2_i), .data_in_1_valid_i(data_in_2_valid_i),
    .data_in_1_ready_o(data_in_2_ready_o), .data_in_2_i(position), .data_in_2_valid_i(is_read),
    .data_in_2_ready_o(is_ready), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
"""
LOAD = f"""{HEAD}
  logic [56:0] load;
  logic runs;
  chop_load #(.WORDS(3)) u_load (.clk_i, .rst_ni, .weights_i({{30'b0, data_in_0_i}}),
    .weights_valid_i(data_in_0_valid_i), .weights_ready_o(data_in_0_ready_o), .load_o(load),
    .runs_o(runs));
  chop_constant #(.W(2), .BEATS(3), .BASE(0)) u_words (.clk_i, .rst_ni(runs), .load_i(load),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
"""
AXI_LITE = """
module formal_wrapper (input logic clk_i, input logic rst_ni,
  input logic [2:0] data_in_0_i, input logic data_in_0_valid_i, output logic data_in_0_ready_o,
  input logic [1:0] data_in_1_i, input logic data_in_1_valid_i, output logic data_in_1_ready_o,
  input logic data_in_2_i, input logic data_in_2_valid_i, output logic data_in_2_ready_o,
  output logic [1:0] data_out_0_o, output logic data_out_0_valid_o, input logic data_out_0_ready_i,
  output logic [2:0] data_out_1_o, output logic data_out_1_valid_o, input logic data_out_1_ready_i);
  logic [31:0] read, word;
  logic [1:0] answer;
  logic has_word, reset_n;
  // Other registers than control depend on the time of a read.
  assign data_out_1_o = {|read, answer};
  chop_axi_lite #(.WORDS(2), .WINDOW(16)) u_axi (.clk_i, .rst_ni,
    .awaddr_i({data_in_0_i, 2'b0}), .awvalid_i(data_in_0_valid_i), .awready_o(data_in_0_ready_o),
    .wdata_i({31'b0, data_in_1_i[0]}), .wstrb_i({3'b111, data_in_1_i[1]}),
    .wvalid_i(data_in_1_valid_i), .wready_o(data_in_1_ready_o), .bresp_o(data_out_0_o),
    .bvalid_o(data_out_0_valid_o), .bready_i(data_out_0_ready_i),
    .araddr_i({data_in_2_i, 4'b0}), .arvalid_i(data_in_2_valid_i), .arready_o(data_in_2_ready_o),
    .rdata_o(read), .rresp_o(answer), .rvalid_o(data_out_1_valid_o),
    .rready_i(data_out_1_ready_i), .weights_o(word), .weights_valid_o(has_word),
    .weights_ready_i(1'b1), .sample_i(1'b0), .error_i(1'b0), .rst_no(reset_n));
endmodule
"""
