"""Weights written at run time: two sets under stalls, resets, wrappers and planted faults."""

import shutil
import subprocess

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import VerificationError
from chop.formats import Integer
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Check, check_sources, run_check
from chop.hardware.costs.estimate import design_usage
from chop.hardware.design.axis import with_axi_ports
from chop.hardware.design.emit import emit
from chop.hardware.design.load import WORDS_FILE, window
from chop.hardware.design.plan import RTL
from chop.hardware.design.verilog import sources
from chop.hardware.tools import tool_path
from chop.integer.golden import golden_values

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys", "c++")
SAMPLES = 4
FORMAT = {"config": {"name": "integer", "width": 6, "frac_width": 3}}
TERNARY = {"weight": {"name": "ternary", "threshold": 0.3}, "bias": FORMAT["config"]}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 2, groups=4)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.deep(self.wide(x).relu()).flatten(1))


KINDS = {
    "mlp": (Mlp, (8,), 12, FORMAT),
    "each_weight_in_every_cycle": (Mlp, (8,), 1, FORMAT),
    "ternary": (Mlp, (8,), 12, {"config": {"data_in": FORMAT["config"], **TERNARY}}),
    "conv": (Conv, (2, 5, 5), 72, FORMAT),
}


def lowered(model, shape, chosen, seed, weights="loadable"):
    """An integer graph whose weights are those of a seed, and its inputs."""
    torch.manual_seed(seed)
    made, x = model(), torch.randn(SAMPLES, *shape)
    mg = MaseGraph(made, dummy_in={"x": x})
    kinds = {mg.operator(node).name for node in mg.nodes} & {"linear", "conv2d", "relu"}
    rules = {kind: FORMAT if kind == "relu" else chosen for kind in kinds}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    settings = {"batches": [{"x": x}], "weights": weights}
    integer, _ = passes.lower_to_integer_transform_pass(quantized, settings)
    assert torch.equal(integer.model(x), quantized.model(x))
    return integer, {"x": x}


class Two:
    """Two circuits that differ in nothing but the words of their weights, in one folder."""

    def __init__(self, folder, name, wrap="none", weights="loadable"):
        self.folder = folder
        model, shape, fold, chosen = KINDS[name]
        self.designs, self.codes = [], []
        for seed in (0, 1):
            integer, batch = lowered(model, shape, chosen, seed, weights)
            design = emit(integer, fold)
            design = design if wrap == "none" else with_axi_ports(design, wrap)
            self.designs.append(design)
            self.codes.append(get_codes(describe_project(design), golden_values(integer, batch)))
        self.load(0)

    def load(self, number):
        """Writes one of the circuits into the folder."""
        self.project = describe_project(self.designs[number])
        write_circuit(self.designs[number], self.codes[number], self.folder)

    def outputs(self, profile="none", simulator="icarus", number=0):
        """Numbers of outputs that are equal, and of all outputs."""
        profile = next(each for each in PROFILES if each.name == profile)
        check = Check(simulator, profile, SAMPLES, 3)
        result = run_check(self.folder, self.project, self.codes[number], check)
        sizes = [port.beats * port.lanes for port in self.project.ports if not port.is_input]
        return result.equal, SAMPLES * sum(sizes)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """The two circuits of an MLP; tests load the one they need."""
    return Two(tmp_path_factory.mktemp("mlp"), "mlp")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(1)
def test_two_sets_of_weights_share_a_circuit_and_give_their_own_outputs(name, tmp_path):
    two = Two(tmp_path, name)
    first, second = two.designs
    assert first.files == second.files and first.load.words != second.load.words
    assert not any(path.endswith(("weight.hex", "bias.hex")) for path in first.files)
    for number, profile in enumerate(("uniform", "bursts")):
        two.load(number)
        equal, outputs = two.outputs(profile, number=number)
        assert equal == outputs
    check_sources(tmp_path, two.project)
    with pytest.raises(VerificationError, match="expected"):
        two.outputs(number=0)


def test_the_planned_latency_is_that_after_the_loading(mlp):
    mlp.load(0)
    result = run_check(mlp.folder, mlp.project, mlp.codes[0], Check("icarus", PROFILES[0], 4, 1))
    design = mlp.designs[0]
    assert result.latency == design.connections.schedule.latency(design.netlist)


@pytest.mark.long
@pytest.mark.parametrize("profile", [profile.name for profile in PROFILES])
def test_verilator_loads_both_sets(mlp, profile):
    for number in (0, 1):
        mlp.load(number)
        equal, outputs = mlp.outputs(profile, "verilator", number)
        assert equal == outputs


@pytest.mark.parametrize("wrap", ["axi-stream", "axi-lite"])
@pytest.mark.sampled(1)
def test_weights_enter_through_a_wrapper(tmp_path, wrap):
    two = Two(tmp_path, "mlp", wrap)
    for number, profile in enumerate(("uniform", "slow_reader")):
        two.load(number)
        equal, outputs = two.outputs(profile, number=number)
        assert equal == outputs
    check_sources(tmp_path, two.project)


def test_registers_without_loadable_weights(tmp_path):
    two = Two(tmp_path, "mlp", "axi-lite", "fixed")
    two.load(0)
    assert two.designs[0].load is None and not (tmp_path / "weights").exists()
    equal, outputs = two.outputs("uniform")
    assert equal == outputs
    check_sources(tmp_path, two.project)


FAULTS = {
    "another_base": ("chop_ram", "24'(BASE)", "24'(BASE + 1)"),
    "parts_are_swapped": ("chop_ram", "== 24'(p)", "!= 24'(p)"),
    "starts_before_the_end": ("chop_load", "rst_ni && full_q[2]", "rst_ni"),
    "a_word_is_lost": ("chop_load", "COUNT_W'(WORDS)", "COUNT_W'(WORDS - 1)"),
    "one_entry": ("chop_ram", "memory[addr_i]", "memory[0]"),
}


@pytest.mark.parametrize(("module", "old", "new"), FAULTS.values(), ids=FAULTS)
@pytest.mark.sampled(2)
def test_a_planted_fault_is_found(mlp, tmp_path, module, old, new):
    mlp.load(0)
    copy = shutil.copytree(mlp.folder, tmp_path / "copy")
    path = copy / "rtl" / f"{module}.sv"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(VerificationError):
        run_check(copy, mlp.project, mlp.codes[0], Check("icarus", PROFILES[0], SAMPLES, 1))


def test_sums_are_as_wide_as_any_weights_need():
    (linear,) = (
        module
        for path, module in lowered(Mlp, (8,), FORMAT, 0)[0].model.named_modules()
        if path == "first"
    )
    number_format = Integer(width=6, frac_width=3)
    low, high = -(2.0**2), 2.0**2 - 2.0**-3
    assert number_format.round(torch.tensor([-99.0, 99.0])).tolist() == [low, high]
    # A bias of step 2^-3 is aligned with products of step 2^-6.
    codes = (round(low * 8), round(high * 8))
    reach = [8 * x * w + (b << 3) for x in codes for w in codes for b in codes]
    assert (linear.out.low, linear.out.high) == (min(reach), max(reach))


def test_estimates_know_writable_memories():
    wide = {"config": {"name": "integer", "width": 8, "frac_width": 4}}
    integer, _ = lowered(Mlp, (8,), wide, 0)
    loadable = emit(integer, 12)
    usage = design_usage(loadable.netlist, loadable.connections)
    # Counted by `synthesize` with Yosys 0.23; lookup tables include those of memories.
    assert usage.lut == pytest.approx(651, rel=0.2)
    assert usage.ff == pytest.approx(1108, rel=0.2)
    assert usage.dsp == 6
    assert all(part.row["rom_bits"] == 0 for part in loadable.netlist.instances)


BENCH = """`timescale 1ns/1ns
module bench;
  reg clk = 0, rst_n = 0, x_valid = 0, w_valid = 0, y_ready = 0;
  wire x_ready, w_ready, y_valid;
  wire [{x_w}-1:0] x;
  wire [{y_w}-1:0] y;
  reg [{x_w}-1:0] sent [0:2*{n_x}-1];
  reg [{y_w}-1:0] expected [0:2*{n_y}-1];
  reg [31:0] words [0:2*{n_w}-1];
  integer at_x = 0, at_y = 0, at_w = 0, set = 0, cycle = 0, seed = 5, cut = {cut};
  always #5 clk = !clk;
  initial begin
    $readmemh("sent.hex", sent); $readmemh("expected.hex", expected);
    $readmemh("words.hex", words);
  end
  // Data are unknown while valid is low. Words are also offered while samples pass.
  assign x = x_valid ? sent[set*{n_x}+at_x] : {{{x_w}{{1'bx}}}};
  wire [31:0] w = w_valid ? (at_w < {n_w} ? words[set*{n_w}+at_w] : 32'hdeadbeef) : 32'bx;
  top u_dut (
    .clk_i(clk), .rst_ni(rst_n), .x_i(x), .x_valid_i(x_valid), .x_ready_o(x_ready),
    .{y}_o(y), .{y}_valid_o(y_valid), .{y}_ready_i(y_ready),
    .weights_i(w), .weights_valid_i(w_valid), .weights_ready_o(w_ready));
  always @(negedge clk) begin
    cycle = cycle + 1;
    if (cycle == 4) rst_n = 1;
    if (rst_n) begin
      if (!x_valid) x_valid = at_x < {n_x} && $random(seed) % 3 != 0;
      if (!w_valid) w_valid = $random(seed) % 3 != 0;
    end
    y_ready = $random(seed) % 4 != 0;
    if (at_y == {n_y} && set == 0) begin  // a reset of one cycle, then the other weights
      rst_n = 0; set = 1; at_x = 0; at_y = 0; at_w = 0; x_valid = 0; w_valid = 0;
    end else if (cut > 0 && at_w == cut) begin  // a loading ends early, and begins again
      rst_n = 0; cut = cut / 2; at_w = 0; w_valid = cut[0];
    end else if (cycle > 4) rst_n = 1;
    if (cycle > 20000) begin $display("FAIL: it hangs at %0d", at_y); $finish; end
  end
  always @(posedge clk) if (rst_n) begin
    if (w_valid && w_ready) begin at_w = at_w + 1; w_valid <= 0; end
    if (at_w > {n_w}) begin $display("FAIL: a word too many"); $finish; end
    if (x_valid && x_ready) begin
      if (at_w < {n_w}) begin $display("FAIL: a sample before the weights"); $finish; end
      at_x = at_x + 1; x_valid <= 0;
    end
    if (y_valid && y_ready) begin
      if (y !== expected[set*{n_y}+at_y]) begin $display("FAIL: beat %0d", at_y); $finish; end
      at_y = at_y + 1;
      if (set == 1 && at_y == {n_y}) begin $display("PASS"); $finish; end
    end
  end
endmodule
"""


@pytest.mark.parametrize("cut", ["never", "middle", "last"])
@pytest.mark.sampled(2)
def test_other_weights_follow_a_reset_of_one_cycle(mlp, tmp_path, cut):
    mlp.load(0)
    words = mlp.project.loaded_words
    places = {"never": 0, "middle": words // 2 + 1, "last": words}
    x, y = mlp.project.ports
    texts = {"sent.hex": "", "expected.hex": "", "words.hex": ""}
    for number in (0, 1):
        mlp.load(number)
        texts["sent.hex"] += (mlp.folder / "vectors" / "x.hex").read_text()
        texts["expected.hex"] += (mlp.folder / "vectors" / f"{y.name}.hex").read_text()
        texts["words.hex"] += (mlp.folder / WORDS_FILE).read_text()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    values = {"x_w": x.bits, "y_w": y.bits, "y": y.name, "n_w": words, "cut": places[cut]}
    values |= {"n_x": SAMPLES * x.beats, "n_y": SAMPLES * y.beats}
    (tmp_path / "bench.sv").write_text(BENCH.format(**values))
    assert simulated(tmp_path, sorted((mlp.folder / "rtl").glob("*.sv"))) == "PASS"


def simulated(folder, files):
    """The last line of the module `bench` in bench.sv."""
    command = [tool_path("iverilog"), "-g2012", "-s", "bench", "-o", "bench.vvp"]
    subprocess.run([*command, *files, "bench.sv"], cwd=folder, check=True, timeout=60)
    run = [tool_path("vvp"), "-n", "bench.vvp"]
    done = subprocess.run(run, cwd=folder, check=True, timeout=60, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


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
