// AXI4-Lite subordinate (slave) of a circuit: registers for control and status, and a window that
// takes the words of weights.
//
// Registers, by byte address; the two lowest bits of an address are ignored:
//   0x0  control: writing 1 to bit 0 resets the circuit for four cycles. Weights have to be written
//        again. Reads as 0.
//   0x4  status: bit 0 is high when all weights are written, bit 1 is error_i.
//   0x8  number of samples that left since the reset, modulo 2^32.
//   0xc  number of words of weights that were written since the reset.
// Window:  word i of WORDS is written to byte address WINDOW + 4 i. Words have to be written in
//          ascending order with all strobes.
// Answers: OKAY; SLVERR for other addresses, for writes of read-only registers, for reads of the
//          window, and for words out of order or with missing strobes. Such writes change nothing.
// Timing:  no path between AXI4-Lite inputs and outputs is combinational. weights_valid_o waits for
//          weights_ready_i, because a word that cannot be taken is answered with SLVERR. Address and
//          data of a write may come in any order. A write takes at least three cycles, a read two.
module chop_axi_lite #(
  parameter int WORDS  = 0,
  parameter int WINDOW = 4096,
  localparam int ADDR_W = $clog2(WINDOW) + 1
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic [ADDR_W-1:0] awaddr_i,
  input  logic              awvalid_i,
  output logic              awready_o,
  input  logic [31:0]       wdata_i,
  input  logic [3:0]        wstrb_i,
  input  logic              wvalid_i,
  output logic              wready_o,
  output logic [1:0]        bresp_o,
  output logic              bvalid_o,
  input  logic              bready_i,
  input  logic [ADDR_W-1:0] araddr_i,
  input  logic              arvalid_i,
  output logic              arready_o,
  output logic [31:0]       rdata_o,
  output logic [1:0]        rresp_o,
  output logic              rvalid_o,
  input  logic              rready_i,
  output logic [31:0]       weights_o,
  output logic              weights_valid_o,
  input  logic              weights_ready_i,
  input  logic              sample_i,
  input  logic              error_i,
  output logic              rst_no
);
  localparam int         COUNT_W = $clog2(WORDS + 2);
  localparam logic [1:0] OKAY    = 2'b00;
  localparam logic [1:0] SLVERR  = 2'b10;

  logic [ADDR_W-3:0] write_q, read_q;
  logic [ADDR_W-3:0] index;
  logic [31:0] data_q, samples_q;
  logic [3:0] strobes_q, reset_q;
  logic [COUNT_W-1:0] count_q;
  logic has_address_q, has_data_q, has_read_q, executes, is_next, is_control, unused;

  assign unused    = &{1'b0, awaddr_i[1:0], araddr_i[1:0]};
  assign awready_o = !has_address_q;
  assign wready_o  = !has_data_q;
  assign arready_o = !has_read_q;
  assign rst_no    = rst_ni && reset_q == '0;

  // A write waits for its address, its data, the answer before it, and the end of a reset.
  assign executes   = has_address_q && has_data_q && !bvalid_o && reset_q == '0;
  assign is_control = write_q == '0;
  assign index      = write_q - (ADDR_W-2)'(WINDOW / 4);
  assign is_next    = write_q[ADDR_W-3] && strobes_q == '1 && weights_ready_i
                      && count_q != COUNT_W'(WORDS) && index == (ADDR_W-2)'(count_q);

  assign weights_o       = data_q;
  assign weights_valid_o = executes && is_next;

  always_ff @(posedge clk_i) begin
    if (awready_o) write_q <= awaddr_i[ADDR_W-1:2];
    if (wready_o) begin
      data_q    <= wdata_i;
      strobes_q <= wstrb_i;
    end
    if (executes) bresp_o <= (is_control || is_next) ? OKAY : SLVERR;
    if (!rst_ni) begin
      has_address_q <= 1'b0;
      has_data_q    <= 1'b0;
      bvalid_o      <= 1'b0;
      reset_q       <= '0;
    end else begin
      has_address_q <= (has_address_q || awvalid_i) && !executes;
      has_data_q    <= (has_data_q || wvalid_i) && !executes;
      bvalid_o      <= executes || (bvalid_o && !bready_i);
      reset_q       <= {reset_q[2:0], executes && is_control && strobes_q[0] && data_q[0]};
    end
    if (!rst_no) begin
      count_q   <= '0;
      samples_q <= '0;
    end else begin
      if (weights_valid_o) count_q <= count_q + COUNT_W'(1);
      if (sample_i) samples_q <= samples_q + 32'd1;
    end
  end

  always_ff @(posedge clk_i) begin
    if (arready_o) read_q <= araddr_i[ADDR_W-1:2];
    if (has_read_q && !rvalid_o) begin
      rresp_o <= (read_q < (ADDR_W-2)'(4)) ? OKAY : SLVERR;
      case (read_q)
        (ADDR_W-2)'(1): rdata_o <= {30'b0, error_i, count_q == COUNT_W'(WORDS)};
        (ADDR_W-2)'(2): rdata_o <= samples_q;
        (ADDR_W-2)'(3): rdata_o <= 32'(count_q);
        default: rdata_o <= '0;
      endcase
    end
    if (!rst_ni) begin
      has_read_q <= 1'b0;
      rvalid_o   <= 1'b0;
    end else begin
      has_read_q <= (has_read_q || arvalid_i) && !(has_read_q && !rvalid_o);
      rvalid_o   <= (has_read_q && !rvalid_o) || (rvalid_o && !rready_i);
    end
  end
endmodule
