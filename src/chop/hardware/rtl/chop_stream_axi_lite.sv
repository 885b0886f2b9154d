// Writer of weights through AXI4-Lite, for simulation only. Each word of the stream is written to
// the next address of the window. Address, data and answers wait at random. Then status and
// counters are read without end.
//
// violated_o rises, and stays high, if an answer is not OKAY, the status is not "all written, no
// error", or the number of words is wrong.
module chop_stream_axi_lite #(
  parameter int WORDS  = 0,
  parameter int WINDOW = 4096,
  localparam int ADDR_W = $clog2(WINDOW) + 1
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic [31:0]       data_i,
  input  logic              valid_i,
  output logic              ready_o,
  output logic [ADDR_W-1:0] awaddr_o,
  output logic              awvalid_o,
  input  logic              awready_i,
  output logic [31:0]       wdata_o,
  output logic [3:0]        wstrb_o,
  output logic              wvalid_o,
  input  logic              wready_i,
  input  logic [1:0]        bresp_i,
  input  logic              bvalid_i,
  output logic              bready_o,
  output logic [ADDR_W-1:0] araddr_o,
  output logic              arvalid_o,
  input  logic              arready_i,
  input  logic [31:0]       rdata_i,
  input  logic [1:0]        rresp_i,
  input  logic              rvalid_i,
  output logic              rready_o,
  output logic              violated_o
);
  // Linear feedback shift register (taps 16, 14, 13, 11), whose bits are the random choices.
  logic [15:0] random_q;
  logic [ADDR_W-1:0] address_q;
  logic [31:0] count_q, word_q;
  logic is_busy_q, has_address_q, has_data_q, wants_address_q, wants_data_q, is_reading_q, can_read;
  logic has_read_q;
  logic [1:0] register_q;

  assign ready_o   = !is_busy_q && count_q != WORDS;
  assign awaddr_o  = address_q;
  assign awvalid_o = has_address_q;
  assign wdata_o   = word_q;
  assign wstrb_o   = '1;
  assign wvalid_o  = has_data_q;
  assign bready_o  = random_q[3];
  assign araddr_o  = ADDR_W'({register_q, 2'b00});
  assign arvalid_o = is_reading_q;
  assign rready_o  = random_q[5];
  assign can_read  = !is_reading_q && !has_read_q && count_q == WORDS;

  always_ff @(posedge clk_i) begin
    random_q <= {random_q[14:0], random_q[15] ^ random_q[13] ^ random_q[12] ^ random_q[10]};
    if (valid_i && ready_o) word_q <= data_i;
    if (!rst_ni) begin
      random_q        <= 16'h5a3c;
      address_q       <= ADDR_W'(WINDOW);
      count_q         <= '0;
      is_busy_q       <= 1'b0;
      has_address_q   <= 1'b0;
      has_data_q      <= 1'b0;
      wants_address_q <= 1'b0;
      wants_data_q    <= 1'b0;
      is_reading_q    <= 1'b0;
      has_read_q      <= 1'b0;
      register_q      <= '0;
      violated_o      <= 1'b0;
    end else begin
      if (valid_i && ready_o) begin
        is_busy_q       <= 1'b1;
        wants_address_q <= 1'b1;
        wants_data_q    <= 1'b1;
      end
      if (wants_address_q && random_q[0]) begin
        has_address_q   <= 1'b1;
        wants_address_q <= 1'b0;
      end else if (awready_i) has_address_q <= 1'b0;
      if (wants_data_q && random_q[1]) begin
        has_data_q   <= 1'b1;
        wants_data_q <= 1'b0;
      end else if (wready_i) has_data_q <= 1'b0;
      if (bvalid_i && bready_o) begin
        is_busy_q <= 1'b0;
        address_q <= address_q + ADDR_W'(4);
        count_q   <= count_q + 32'd1;
        if (bresp_i != 2'b00) violated_o <= 1'b1;
      end
      if (arvalid_o && arready_i) begin
        is_reading_q <= 1'b0;
        has_read_q   <= 1'b1;
      end else if (can_read && random_q[7:6] == '0) is_reading_q <= 1'b1;
      if (rvalid_i && rready_o) begin
        has_read_q <= 1'b0;
        register_q <= register_q + 2'd1;
        if (rresp_i != 2'b00) violated_o <= 1'b1;
        if (register_q == 2'd1 && rdata_i != 32'd1) violated_o <= 1'b1;
        if (register_q == 2'd3 && rdata_i != WORDS) violated_o <= 1'b1;
      end
    end
  end
endmodule
