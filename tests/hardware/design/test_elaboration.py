"""What Yosys reads computes what simulators read."""

import re
import subprocess

import pytest
import torch
from torch import nn

from chop.hardware.check import testbench as icarus
from chop.hardware.design.plan import RTL
from chop.nn.integer import (
    Call,
    Edge,
    Grid,
    IntegerAdd,
    IntegerMaxPool2d,
    IntegerMul,
    IntegerOptions,
    IntegerScale,
    Requantize,
    Table,
)
from tests.hardware.bench import check, drawn, needs_tools
from tests.hardware.design.test_conv import convolution
from tests.hardware.design.test_linear import EDGE, layer
from tests.hardware.design.test_pool import image
from tests.hardware.design.test_requantize_blocks import EDGE as FINE
from tests.hardware.design.test_requantize_blocks import requantizer

pytestmark = needs_tools
SOURCES = sorted([*RTL.glob("*.sv"), *(RTL.parent / "templates").glob("*.jinja")])
SUMS = Edge.of(0.037, -5000, 4000)
CHANNELS = Edge(torch.tensor([0.3, 0.1, 0.7, 0.2, 1.3, 0.9]).double(), -1, -500, 400)
WIDE = Edge.of(1.0, -(2**40), 2**41)


def compile_netlist(folder, files, program):
    """Compiles the netlist that Yosys makes of a design, with the same testbench.

    A top module that reads plusargs is part of a testbench, and Yosys cannot read it.
    """
    if "$value$plusargs" in (folder / "top.sv").read_text():
        icarus.compile_testbench(folder, files, program)
        return
    names = [str(file) for file in files]
    ends = [name for name in names if "chop_st" in name or name == "testbench.sv"]
    design = " ".join(name for name in names if name not in ends)
    script = f"read_verilog -sv -defer {design}; hierarchy -check -top top; proc; flatten; "
    script += "opt; memory_collect; clean; write_verilog -noattr netlist.v"
    subprocess.run(["yosys", "-q", "-p", script], cwd=folder, check=True, timeout=120)
    icarus.compile_testbench(folder, ["netlist.v", *ends], program)


@pytest.mark.parametrize(
    ("operator", "edges"),
    [
        (layer(4, 6, shift=3), (EDGE,)),
        (layer(2, 6, WIDE, (-3, 3)), (WIDE,)),
        (Requantize(SUMS, Grid(0.9, -100, 90)), (SUMS,)),
        (Requantize(SUMS, Grid(0.01, -(2**40), 2**40, "floor")), (SUMS,)),
        (Requantize(SUMS, Grid(1.0, -1, 1, "threshold", 3.3)), (SUMS,)),
        (Requantize(CHANNELS, Grid(1.0, -100, 90)), (CHANNELS,)),
        (requantizer(FINE, size=4), (FINE,)),
        (IntegerAdd(EDGE, Edge.of(0.125, -3, 9)), (EDGE, Edge.of(0.125, -3, 9))),
        (IntegerMul(EDGE, WIDE), (EDGE, WIDE)),
        (IntegerScale(EDGE, -0.1), (EDGE,)),
        (Table(torch.arange(-3, 7), -3, Edge.of(1.0, -3, 6)), (Edge.of(1.0, -3, 6),)),
    ],
    ids=(
        "linear",
        "wide",
        "round",
        "left",
        "threshold",
        "channels",
        "blocks",
        "add",
        "mul",
        "scale",
        "table",
    ),
)
@pytest.mark.sampled(1)
def test_netlist(operator, edges, monkeypatch):
    monkeypatch.setattr("chop.testing.circuit_bench.compile_testbench", compile_netlist)
    inputs = [drawn(edge, 3, 6, seed=seed) for seed, edge in enumerate(edges)]
    check(operator, *inputs, fold=36, profiles=("none", "uniform"))


@pytest.mark.parametrize(
    "operator",
    [
        convolution(nn.Conv2d(2, 2, 3, padding=1)),
        convolution(nn.Conv2d(2, 2, (3, 2), padding=1, groups=2)),
        IntegerMaxPool2d.from_quantized(
            None, [EDGE], IntegerOptions(), Call([(2, 4, 5)], {"kernel_size": 3, "padding": 1})
        ),
    ],
    ids=("conv", "depthwise", "max_pool"),
)
@pytest.mark.sampled(1)
def test_netlists_of_windows_wait_for_rows_and_pad(operator, monkeypatch):
    monkeypatch.setattr("chop.testing.circuit_bench.compile_testbench", compile_netlist)
    check(operator, image(EDGE, 2, 4, 5), fold=200, profiles=("none", "uniform"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_operator_stands_ahead_of_a_cast(path):
    """Yosys 0.23 reads -W'(x) as (-W)'(x), and simulators as -(W'(x))."""
    unary = re.compile(r"(?:^|[^\w)\]} ]) *[-~!&|^]+\w+'\(")
    lines = [line.partition("//")[0] for line in path.read_text().splitlines()]
    assert not [line for line in lines if unary.search(line)]
