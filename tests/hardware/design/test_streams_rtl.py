"""Buffers, forks and converters of lanes, under all profiles of stalls."""

import pytest
import torch

from chop.hardware.design.port import Port
from tests.hardware.bench import check_module, needs_tools

pytestmark = needs_tools


def beats_of(lanes, width, count=61):
    generator = torch.Generator().manual_seed(lanes * width)
    return torch.randint(-(2 ** (width - 1)), 2 ** (width - 1), (count, lanes), generator=generator)


def check_copies(module, parameters, lanes, width):
    """The same beats leave, one in each cycle if nothing stalls."""
    beats = beats_of(lanes, width)
    ports = [Port("data_in_0", lanes, width, 1, True), Port("data_out_0", lanes, width, 1, False)]
    runs = check_module(module, parameters, dict.fromkeys(ports, beats))
    left = torch.tensor(runs["none"].ends["data_out_0"])
    assert len(left) == len(beats) and left.diff().eq(1).all()
    return int(left[0])


@pytest.mark.parametrize("width", [1, 8, 37])
@pytest.mark.sampled(1)
def test_skid(width):
    assert check_copies("chop_skid", {"W": width}, 1, width) == 2


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 16, 17, 100])
@pytest.mark.sampled(1)
def test_fifo(depth):
    check_copies("chop_fifo", {"W": 10, "DEPTH": depth}, 2, 5)


FILLED = """module chop_filled #(parameter int DEPTH = 1) (
  input logic clk_i, input logic rst_ni,
  input logic data_in_0_i, input logic data_in_0_valid_i, output logic data_in_0_ready_o,
  output logic [7:0] data_out_0_o, output logic data_out_0_valid_o, input logic data_out_0_ready_i
);
  logic ready, data, valid, unused;
  logic [7:0] held_q, cycle_q;
  assign data_in_0_ready_o = ready;
  assign unused = &{1'b0, data, valid};
  chop_fifo #(.W(1), .DEPTH(DEPTH)) u_fifo (
    .clk_i(clk_i), .rst_ni(rst_ni), .data_in_0_i(data_in_0_i),
    .data_in_0_valid_i(data_in_0_valid_i), .data_in_0_ready_o(ready),
    .data_out_0_o(data), .data_out_0_valid_o(valid), .data_out_0_ready_i(cycle_q > 8'd100));
  assign data_out_0_o = held_q;
  assign data_out_0_valid_o = (cycle_q == 8'd100);
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      held_q  <= 8'd0;
      cycle_q <= 8'd0;
    end else begin
      if (data_in_0_valid_i && ready) held_q <= held_q + 8'd1;
      if (cycle_q < 8'd100 || data_out_0_ready_i) cycle_q <= cycle_q + 8'd1;
    end
  end
endmodule
"""


@pytest.mark.parametrize("depth", [2, 3, 5, 16, 17])
@pytest.mark.sampled(2)
def test_a_fifo_holds_as_many_beats_as_it_is_deep(depth, tmp_path):
    (tmp_path / "chop_filled.sv").write_text(FILLED)
    ports = {
        Port("data_in_0", 1, 1, 40, True): torch.zeros(40, 1, dtype=torch.int64),
        Port("data_out_0", 1, 8, 1, False): torch.tensor([[depth]]),
    }
    check_module("chop_filled", {"DEPTH": depth}, ports, profiles=("none",), folder=tmp_path)


@pytest.mark.parametrize(
    ("small", "ratio", "width"), [(1, 1, 8), (1, 2, 8), (3, 4, 5), (2, 7, 1), (4, 1, 3), (1, 17, 9)]
)
@pytest.mark.sampled(1)
def test_upsize_and_downsize(small, ratio, width):
    narrow = beats_of(small, width, 12 * ratio)
    wide = narrow.reshape(12, small * ratio)
    few, many = Port("data_in_0", small, width, ratio, True), small * ratio
    up = {few: narrow, Port("data_out_0", many, width, 1, False): wide}
    down = {
        Port("data_in_0", many, width, 1, True): wide,
        Port("data_out_0", small, width, ratio, False): narrow,
    }
    for module, ports, lanes in (
        ("chop_upsize", up, (small, many)),
        ("chop_downsize", down, (many, small)),
    ):
        parameters = {"W": width, "IN_LANES": lanes[0], "OUT_LANES": lanes[1]}
        runs = check_module(module, parameters, ports)
        assert torch.tensor(runs["none"].ends["data_out_0"]).diff().eq(ratio).all()


FORKED = """module chop_forked #(parameter int W = 8) (
  input logic clk_i, input logic rst_ni,
  input logic [W-1:0] data_in_0_i, input logic data_in_0_valid_i, output logic data_in_0_ready_o,
{outputs}
);
  logic [W-1:0] data;
  logic [{n}-1:0] valid, ready;
  chop_fork #(.W(W), .N({n})) u_fork (
    .clk_i(clk_i), .rst_ni(rst_ni), .data_in_0_i(data_in_0_i),
    .data_in_0_valid_i(data_in_0_valid_i), .data_in_0_ready_o(data_in_0_ready_o),
    .data_out_o(data), .data_out_valid_o(valid), .data_out_ready_i(ready));
{wires}
endmodule
"""


def check_fork(n, folder):
    """Asserts that each of `n` readers gets all beats; returns the runs.

    Args:
        n: readers.
        folder: of `chop_fork`, or one without it; a module is written into it.
    """
    outputs = ",\n".join(
        f"  output logic [W-1:0] out_{k}_o, output logic out_{k}_valid_o,\n"
        f"  input logic out_{k}_ready_i"
        for k in range(n)
    )
    wires = "\n".join(
        f"  assign out_{k}_o = data;\n  assign out_{k}_valid_o = valid[{k}];\n"
        f"  assign ready[{k}] = out_{k}_ready_i;"
        for k in range(n)
    )
    (folder / "chop_forked.sv").write_text(FORKED.format(n=n, outputs=outputs, wires=wires))
    beats = beats_of(2, 4)
    ports = [Port("data_in_0", 2, 4, 1, True)]
    ports += [Port(f"out_{k}", 2, 4, 1, False) for k in range(n)]
    return check_module("chop_forked", {"W": 8}, dict.fromkeys(ports, beats), folder=folder)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.sampled(1)
def test_fork(n, tmp_path):
    runs = check_fork(n, tmp_path)
    for k in range(n):
        assert torch.tensor(runs["none"].ends[f"out_{k}"]).diff().eq(1).all()
