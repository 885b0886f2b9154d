"""Testbenches fail where a circuit is wrong."""

import shutil

import pytest
import torch

from chop.errors import ChopError, UnavailableError
from chop.hardware.check import testbench as bench
from chop.hardware.design.plan import RTL
from chop.hardware.design.port import Port
from tests.hardware.bench import check_module, needs_tools

IN = Port("data_in_0", 2, 4, 3, True)
OUT = Port("data_out_0", 2, 4, 3, False)
BEATS = torch.tensor([[1, -2], [3, 4], [-5, 6], [7, -8], [0, 1], [2, 3]])
HEAD = """module {name} (
  input logic clk_i, input logic rst_ni,
  input logic [7:0] data_in_0_i, input logic data_in_0_valid_i, output logic data_in_0_ready_o,
  output logic [7:0] data_out_0_o, output logic data_out_0_valid_o, input logic data_out_0_ready_i
);
  logic [7:0] count_q;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) count_q <= 8'd0;
    else if (data_in_0_valid_i && data_in_0_ready_o) count_q <= count_q + 8'd1;
  end
  wire unused = &{{1'b0, count_q, 1'b0}};
"""
REGISTER = """
  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
    if (data_in_0_ready_o) data_out_0_o <= data_in_0_i;
  end
"""


def check_body(tmp_path, body):
    name = "chop_own"
    (tmp_path / f"{name}.sv").write_text(HEAD.format(name=name) + body + "endmodule\n")
    return check_module(name, {}, {IN: BEATS, OUT: BEATS}, folder=tmp_path)


@needs_tools
def test_a_register_passes_under_all_profiles(tmp_path):
    runs = check_body(tmp_path, REGISTER)
    first, second = runs["none"].ends["data_out_0"]
    assert second - first == 3
    assert all(len(run.ends["data_out_0"]) == 2 for run in runs.values())


@needs_tools
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<= data_in_0_i;", "<= data_in_0_i ^ {3'b0, count_q == 8'd4, 4'b0};", "place 3.* got 0"),
        ("<= data_in_0_i;", "<= (count_q == 8'd5) ? 8'bx : data_in_0_i;", "place 4.* got x"),
        ("else if (data_in_0_ready_o)", "else", "none:\ndata_out_0: .*rules|uniform:"),
        ("if (data_in_0_ready_o) data_out_0_o", "data_out_0_o", "uniform:"),
        ("<= data_in_0_valid_i;", "<= data_in_0_valid_i || count_q[1];", "FAIL"),
        ("<= data_in_0_valid_i;", "<= data_in_0_valid_i && count_q < 8'd4;", "timeout in cycle"),
        ("_valid_o <= data_in_0_valid_i", "_valid_o <= 1'bx", "rules of a stream"),
    ],
    ids=("wrong", "unknown", "withdrawn", "overwritten", "too_many", "stuck", "unknown_valid"),
)
@pytest.mark.sampled(1)
def test_faults_are_reported(tmp_path, old, new, message):
    assert old in REGISTER
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check_body(tmp_path, REGISTER.replace(old, new))


@needs_tools
@pytest.mark.parametrize("body", [REGISTER + "  logic [3:0] idle;\n", REGISTER + "  assign x = 1;"])
def test_complaints_of_the_tools_fail(tmp_path, body):
    with pytest.raises(AssertionError):
        check_body(tmp_path, body)


@needs_tools
def test_latches_fail(tmp_path):
    latch = "  logic [7:0] held;\n  always @* if (data_in_0_valid_i) held = data_in_0_i;\n"
    with pytest.raises(AssertionError, match="(?i)latch"):
        check_body(tmp_path, latch + REGISTER.replace("<= data_in_0_i", "<= held"))


@needs_tools
def test_sources_with_errors_are_refused(tmp_path):
    (tmp_path / "broken.sv").write_text("module testbench; wire a = b; endmodule")
    with pytest.raises(ChopError, match="broken.sv:1"):
        bench.compile_testbench(tmp_path, ["broken.sv"], "out")


def test_a_missing_simulator_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnavailableError, match="iverilog is not installed: apt-get install .*iver"):
        bench.compile_testbench(tmp_path, [], "out")


def test_signals_of_ports():
    assert IN.signals == ("data_in_0_i", "data_in_0_valid_i", "data_in_0_ready_o")
    assert OUT.signals == ("data_out_0_o", "data_out_0_valid_o", "data_out_0_ready_i")
    assert IN.bits == 8


@needs_tools
@pytest.mark.parametrize(
    ("source", "sink"), [("input", "output"), ("seed", "done"), ("u_1", "clk")]
)
def test_ports_may_have_any_name(source, sink, tmp_path):
    ports = [Port(source, 2, 4, 3, True), Port(sink, 2, 4, 3, False)]
    ins, outs = (port.signals for port in ports)
    (tmp_path / "top.sv").write_text(
        f"module top (input logic clk_i, input logic rst_ni,\n"
        f"  input logic [7:0] {ins[0]}, input logic {ins[1]}, output logic {ins[2]},\n"
        f"  output logic [7:0] {outs[0]}, output logic {outs[1]}, input logic {outs[2]});\n"
        f"  chop_skid #(.W(8)) u_skid (clk_i, rst_ni, {', '.join((*ins, *outs))});\nendmodule\n"
    )
    (tmp_path / bench.VECTORS).mkdir()
    for port in ports:
        (tmp_path / bench.VECTORS / f"{port.name}.hex").write_text(bench.vectors(port, BEATS))
    for name, text in bench.testbench_files("top", ports, 2, interval=1).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "chop_skid.sv").write_text((RTL / "chop_skid.sv").read_text())
    bench.compile_testbench(tmp_path, sorted(tmp_path.glob("*.sv")), "out")
    run = bench.run_testbench(tmp_path, "out", "uniform", seed=7)
    assert run.passed and len(run.ends[sink]) == 2
