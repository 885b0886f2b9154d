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
from chop.hardware.design.load import WORDS_FILE
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
