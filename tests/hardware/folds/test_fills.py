"""How full FIFOs were: as full as what stands behind them makes them."""

import shutil
from dataclasses import replace

import pytest
import torch

from chop.hardware.check.profiles import EVEN_INPUT, PROFILES
from chop.hardware.check.project import Fifo, Project
from chop.hardware.check.simulate import simulate
from chop.hardware.design.plan import RTL
from chop.hardware.design.port import Port

pytestmark = pytest.mark.tools("verilator", "c++")
DEPTHS = (3, 7, 60)
"""With a word behind the memory, and with two."""
PORTS = (Port("a", 1, 8, 1, True), Port("y", 1, 8, 1, False))
SAMPLES = 300


def write(folder):
    """FIFOs of all depths, one behind the other."""
    streams = [f"s_{k}" for k in range(len(DEPTHS) + 1)]
    head = ["input logic clk_i", "input logic rst_ni"]
    head += [line for port in PORTS for line in port.declaration()]
    text = f"module top ({', '.join(head)});\n"
    for name in streams:
        text += f"  logic [7:0] {name}_data; logic {name}_valid, {name}_ready;\n"
    text += "  assign s_0_data = a_i; assign s_0_valid = a_valid_i; assign a_ready_o = s_0_ready;\n"
    last = streams[-1]
    text += f"  assign y_o = {last}_data; assign y_valid_o = {last}_valid;\n"
    text += f"  assign {last}_ready = y_ready_i;\n"
    for depth, source, target in zip(DEPTHS, streams, streams[1:], strict=False):
        text += (
            f"  chop_fifo #(.W(8), .DEPTH({depth})) u_{depth} (.clk_i, .rst_ni,"
            f" .data_in_0_i({source}_data), .data_in_0_valid_i({source}_valid),"
            f" .data_in_0_ready_o({source}_ready), .data_out_0_o({target}_data),"
            f" .data_out_0_valid_o({target}_valid), .data_out_0_ready_i({target}_ready));\n"
        )
    (folder / "rtl").mkdir()
    (folder / "rtl" / "top.sv").write_text(f"{text}endmodule\n")
    for name in ("chop_fifo", "chop_skid"):
        shutil.copy(RTL / f"{name}.sv", folder / "rtl")
    fifos = tuple(
        Fifo(f"of_{depth}", source, target, depth)
        for depth, source, target in zip(DEPTHS, streams, streams[1:], strict=False)
    )
    return Project("top", PORTS, tuple((name, 8) for name in streams), 1, {}, fifos)


@pytest.mark.long
def test_a_slow_reader_fills_every_fifo_to_its_depth_and_no_further(tmp_path):
    project = write(tmp_path)
    codes = torch.arange(SAMPLES)[:, None] % 200 - 100
    free, _, slow, _ = (
        simulate(tmp_path, project, {"a": codes}, {"y": codes}, profile) for profile in PROFILES
    )
    assert free.passed and slow.passed
    assert slow.fills == {f"of_{depth}": depth for depth in DEPTHS}
    # What a beat needs from end to end: two cycles, three of a large one.
    assert free.fills == {"of_3": 2, "of_7": 2, "of_60": 3}


def test_even_input_comes_once_in_an_interval_and_fills_no_fifo(tmp_path):
    project = replace(write(tmp_path), interval=5)
    codes = torch.arange(SAMPLES)[:, None] % 200 - 100
    found = simulate(tmp_path, project, {"a": codes}, {"y": codes}, EVEN_INPUT)
    assert found.passed and found.interval == 5.0
    assert found.fills == {f"of_{depth}": 1 for depth in DEPTHS}


def test_even_input_catches_up_after_it_had_to_wait(tmp_path):
    project = replace(write(tmp_path), interval=2)
    codes = torch.arange(SAMPLES)[:, None] % 200 - 100
    late = replace(EVEN_INPUT, valid=0.75)
    found = simulate(tmp_path, project, {"a": codes}, {"y": codes}, late)
    # From beat to beat it would be 2 1/3 cycles.
    assert found.passed and 2 * SAMPLES <= found.cycles < 2.2 * SAMPLES
