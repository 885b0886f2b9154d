"""The register of AXI4-Lite circuits that loads weights, and a loading that begins again."""

import shutil

import pytest

from chop.hardware.design.load import WORDS_FILE, window
from chop.hardware.design.plan import RTL
from chop.hardware.design.verilog import sources
from tests.hardware.check.test_load import SAMPLES, Two, simulated

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys", "c++")


REGISTERS = """`timescale 1ns/1ns
module bench;
  reg clk = 0, rst_n = 0, sample = 0;
  reg [12:0] awaddr, araddr;
  reg [31:0] wdata;
  reg [3:0] wstrb;
  reg awvalid = 0, wvalid = 0, bready = 0, arvalid = 0, rready = 0;
  wire awready, wready, bvalid, arready, rvalid, w_valid, reset_n;
  wire [1:0] bresp, rresp;
  wire [31:0] rdata, w;
  integer words = 0, failed = 0, resets = 0;
  reg [31:0] last;
  always #5 clk = !clk;
  chop_axi_lite #(.WORDS(3), .WINDOW(4096)) u_dut (
    .clk_i(clk), .rst_ni(rst_n), .awaddr_i(awaddr), .awvalid_i(awvalid), .awready_o(awready),
    .wdata_i(wdata), .wstrb_i(wstrb), .wvalid_i(wvalid), .wready_o(wready), .bresp_o(bresp),
    .bvalid_o(bvalid), .bready_i(bready), .araddr_i(araddr), .arvalid_i(arvalid),
    .arready_o(arready), .rdata_o(rdata), .rresp_o(rresp), .rvalid_o(rvalid), .rready_i(rready),
    .weights_o(w), .weights_valid_o(w_valid), .weights_ready_i(words < 3), .sample_i(sample),
    .error_i(1'b0), .rst_no(reset_n));
  always @(posedge clk) begin
    if (!reset_n) words <= 0; else if (w_valid) begin words <= words + 1; last <= w; end
    if (rst_n && !reset_n) resets <= resets + 1;
  end
  task write(input [12:0] address, input [31:0] data, input [3:0] strobes, input [1:0] wanted,
             input integer order);
    begin
      @(negedge clk);
      awaddr = address; wdata = data; wstrb = strobes;
      awvalid = order != 1; wvalid = order != 0;
      @(negedge clk); awvalid = 0; wvalid = 0;
      if (order == 0) begin repeat (3) @(negedge clk); wvalid = 1; @(negedge clk); wvalid = 0; end
      if (order == 1) begin repeat (3) @(negedge clk); awvalid = 1; @(negedge clk); awvalid = 0; end
      while (!bvalid) @(negedge clk);
      repeat (4) begin
        @(negedge clk);
        if (!bvalid || bresp !== wanted) begin
          failed = failed + 1; $display("write %h: %b", address, bresp);
        end
      end
      bready = 1; @(negedge clk); bready = 0;
      if (bvalid) begin failed = failed + 1; $display("write %h: two answers", address); end
    end
  endtask
  task read(input [12:0] address, input [31:0] data, input [1:0] wanted);
    begin
      @(negedge clk); araddr = address; arvalid = 1;
      @(negedge clk); arvalid = 0;
      while (!rvalid) @(negedge clk);
      repeat (3) begin
        @(negedge clk);
        if (!rvalid || rresp !== wanted || rdata !== data) begin
          failed = failed + 1; $display("read %h: %b %h", address, rresp, rdata);
        end
      end
      rready = 1; @(negedge clk); rready = 0;
    end
  endtask
  initial begin
    repeat (4) @(negedge clk);
    rst_n = 1;
    read(13'h4, 0, 0);
    write(13'h1004, 1, 4'hf, 2'b10, 2);     // out of order
    write(13'h1000, 1, 4'h7, 2'b10, 0);     // a strobe is missing
    read(13'hc, 0, 0);
    write(13'h1000, 32'h11, 4'hf, 0, 0);
    write(13'h1004, 32'h22, 4'hf, 0, 1);
    write(13'h1004, 32'h99, 4'hf, 2'b10, 2);  // written already
    read(13'h4, 0, 0);
    write(13'h1008, 32'h33, 4'hf, 0, 2);
    if (words != 3 || last !== 32'h33) failed = failed + 1;
    write(13'h100c, 1, 4'hf, 2'b10, 2);     // behind the last word
    read(13'h4, 1, 0);
    read(13'hc, 3, 0);
    read(13'h1000, 0, 2'b10);               // weights cannot be read
    read(13'h10, 0, 2'b10);
    write(13'h4, 1, 4'hf, 2'b10, 2);        // read-only
    @(negedge clk); sample = 1; repeat (2) @(negedge clk); sample = 0;
    read(13'h8, 2, 0);
    write(13'h0, 1, 4'he, 0, 2);            // without the strobe of bit 0
    if (resets != 0) failed = failed + 1;
    write(13'h0, 1, 4'h1, 0, 2);            // reset
    if (resets != 4) failed = failed + 1;
    read(13'h4, 0, 0);
    read(13'h8, 0, 0);
    write(13'h1000, 32'h44, 4'hf, 0, 2);
    if (last !== 32'h44) failed = failed + 1;
    if (failed == 0) $display("PASS"); else $display("FAIL");
    $finish;
  end
endmodule
"""


def test_axi_lite_registers_answer_as_documented(tmp_path):
    (tmp_path / "bench.sv").write_text(REGISTERS)
    files = [str(path) for path in sources(REGISTERS, RTL).values()]
    assert simulated(tmp_path, files) == "PASS"


INTERRUPTED = """`timescale 1ns/1ns
module bench;
  reg clk = 0, rst_n = 0, awvalid = 0, wvalid = 0, valid = 0;
  reg [{address_w}-1:0] awaddr;
  reg [31:0] wdata;
  wire awready, wready, bvalid, x_ready, y_valid;
  wire [1:0] bresp;
  wire [{y_bytes}*8-1:0] y;
  reg [{x_bytes}*8-1:0] sent [0:{n_x}-1];
  reg [{y_bits}-1:0] expected [0:{n_y}-1];
  reg [31:0] words [0:{n_w}-1];
  integer at_x = 0, at_y = 0, refused = 0, k;
  always #5 clk = !clk;
  initial begin
    $readmemh("sent.hex", sent); $readmemh("expected.hex", expected);
    $readmemh("words.hex", words);
  end
  top_axi_lite u_dut (
    .aclk(clk), .aresetn(rst_n), .s_axi_awaddr(awaddr), .s_axi_awvalid(awvalid),
    .s_axi_awready(awready), .s_axi_wdata(wdata), .s_axi_wstrb(4'hf), .s_axi_wvalid(wvalid),
    .s_axi_wready(wready), .s_axi_bready(1'b1), .s_axi_bvalid(bvalid), .s_axi_bresp(bresp),
    .s_axi_araddr({address_w}'h0), .s_axi_arvalid(1'b0), .s_axi_rready(1'b1),
    .s_axis_x_tdata(sent[at_x]), .s_axis_x_tvalid(valid), .s_axis_x_tready(x_ready),
    .s_axis_x_tlast(1'b0), .m_axis_{y}_tdata(y), .m_axis_{y}_tvalid(y_valid),
    .m_axis_{y}_tready(1'b1));
  task write(input integer address, input [31:0] data);
    begin
      @(negedge clk); awaddr = address; wdata = data; awvalid = 1; wvalid = 1;
      @(negedge clk); awvalid = 0; wvalid = 0;
      while (!bvalid) @(negedge clk);
      if (bresp != 0) refused = refused + 1;
    end
  endtask
  initial begin
    repeat (4) @(negedge clk);
    rst_n = 1; valid = 1;
    for (k = 0; k < {n_w} / 2; k = k + 1) write({window} + 4 * k, ~words[k]);
    write({window}, words[0]);  // a program that was killed begins again, but not with a reset
    if (refused != 1) begin $display("FAIL: %0d writes were refused", refused); $finish; end
    write(0, 1);
    for (k = 0; k < {n_w}; k = k + 1) write({window} + 4 * k, words[k]);
    if (refused != 1 || at_x != 0) begin $display("FAIL: %0d %0d", refused, at_x); $finish; end
    repeat (2000) @(negedge clk);
    $display("FAIL: %0d of {n_y} beats", at_y); $finish;
  end
  always @(posedge clk) if (rst_n) begin
    if (valid && x_ready) begin at_x <= at_x + 1; valid <= at_x + 1 < {n_x}; end
    if (y_valid) begin
      if (y[{y_bits}-1:0] !== expected[at_y]) begin $display("FAIL: beat %0d", at_y); $finish; end
      at_y <= at_y + 1;
      if (at_y == {n_y} - 1) begin $display("PASS"); $finish; end
    end
  end
endmodule
"""


@pytest.mark.long
def test_a_loading_that_was_killed_begins_again_after_a_reset_by_the_register(tmp_path):
    two = Two(tmp_path, "mlp", "axi-lite")
    two.load(0)
    values = bench_files(two, tmp_path)
    shutil.copy(tmp_path / WORDS_FILE, tmp_path / "words.hex")
    words = two.project.loaded_words
    values |= {"n_w": words, "window": window(words), "address_w": window(words).bit_length()}
    (tmp_path / "bench.sv").write_text(INTERRUPTED.format(**values))
    assert simulated(tmp_path, sorted((tmp_path / "rtl").glob("*.sv"))) == "PASS"


def bench_files(two, folder):
    """Copies the beats of the ports for a bench, and returns their sizes."""
    x, y = two.project.ports
    for name, port in (("sent", x), ("expected", y)):
        shutil.copy(folder / "vectors" / f"{port.name}.hex", folder / f"{name}.hex")
    values = {"x_bytes": x.bytes, "y_bytes": y.bytes, "y_bits": y.bits, "y": y.name}
    return values | {"n_x": SAMPLES * x.beats, "n_y": SAMPLES * y.beats}


WAITING = """`timescale 1ns/1ns
module bench;
  reg clk = 0, rst_n = 0, writes = 0, valid = 0;
  wire awready, wready, bvalid, x_ready, y_valid;
  wire [{y_bytes}*8-1:0] y;
  reg [{x_bytes}*8-1:0] sent [0:{n_x}-1];
  reg [{y_bits}-1:0] expected [0:{n_y}-1];
  integer at_x = 0, at_y = 0, resets = 0, cycle = 0;
  always #5 clk = !clk;
  initial begin $readmemh("sent.hex", sent); $readmemh("expected.hex", expected); end
  top_axi_lite u_dut (
    .aclk(clk), .aresetn(rst_n), .s_axi_awaddr(13'h0), .s_axi_awvalid(writes), .s_axi_wdata(32'h1),
    .s_axi_wstrb(4'hf), .s_axi_wvalid(writes), .s_axi_bready(1'b1), .s_axi_bvalid(bvalid),
    .s_axi_araddr(13'h0), .s_axi_arvalid(1'b0), .s_axi_rready(1'b1),
    .s_axis_x_tdata(sent[at_x]), .s_axis_x_tvalid(valid), .s_axis_x_tready(x_ready),
    .s_axis_x_tlast(1'b0), .m_axis_{y}_tdata(y), .m_axis_{y}_tvalid(y_valid),
    .m_axis_{y}_tready(1'b1));
  always @(negedge clk) begin
    cycle = cycle + 1;
    rst_n = cycle >= 4;
    writes = cycle == 6;
    valid = cycle >= 8 && at_x < {n_x};  // the reset by the register begins: beats wait for its end
    if (cycle > 2000) begin $display("FAIL: %0d of {n_y} beats", at_y); $finish; end
  end
  always @(posedge clk) if (rst_n) begin
    if (valid && x_ready) at_x <= at_x + 1;
    if (y_valid) begin
      if (y[{y_bits}-1:0] !== expected[at_y]) begin $display("FAIL: beat %0d", at_y); $finish; end
      at_y <= at_y + 1;
      if (at_y == {n_y} - 1) begin $display("PASS"); $finish; end
    end
  end
endmodule
"""


def test_beats_wait_for_the_end_of_a_reset_by_the_register(tmp_path):
    two = Two(tmp_path, "mlp", "axi-lite", "fixed")
    two.load(0)
    (tmp_path / "bench.sv").write_text(WAITING.format(**bench_files(two, tmp_path)))
    assert simulated(tmp_path, sorted((tmp_path / "rtl").glob("*.sv"))) == "PASS"
