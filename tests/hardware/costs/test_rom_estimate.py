"""Estimates of read-only memories, beside what Yosys makes of their contents."""

import random

import pytest

from chop.hardware.check.project import Project
from chop.hardware.costs.synth import synthesize
from chop.hardware.design.plan import RTL, Memory

# Codes in a word, their bits and spread, words: weights in tables, in one and in two block
# memories, a table of more words than a lookup table has, few biases, and one word alone.
SHAPES = {
    "weights": (4, 8, 20, 64),
    "block": (4, 9, 60, 300),
    "deep": (1, 9, 90, 1100),
    "tall": (2, 8, 20, 192),
    "biases": (4, 13, 500, 8),
    "pair": (2, 20, 500, 2),
    "single": (3, 16, 500, 1),
}


def contents(lanes, bits, spread, depth):
    draw = random.Random(0)
    rows = [[round(draw.gauss(0, spread)) for _ in range(lanes)] for _ in range(depth)]
    return Memory.of(rows, bits)


def project(folder, module):
    """Memories of all shapes, each twice, as instances of `chop_rom` by another name."""
    ports, cells = ["input logic clk_i", "input logic en_i", "input logic [15:0] addr_i"], []
    for name, shape in SHAPES.items():
        memory, file = contents(*shape), f"memory/{name}.hex"
        (folder / "memory").mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(memory.hex())
        ports.append(f"output logic [{memory.width - 1}:0] {name}_o")
        address = max(1, (len(memory.words) - 1).bit_length())
        cells.append(
            f'{module} #(.W({memory.width}), .DEPTH({len(memory.words)}), .FILE("{file}")) u_{name}'
            f" (.clk_i(clk_i), .en_i(en_i), .addr_i(addr_i[{address - 1}:0]), .data_o({name}_o));"
        )
    inner = f"module roms ({', '.join(ports)});\n  {' '.join(cells)}\nendmodule\n"
    outer = [port.replace("_o", "_1_o") for port in ports[3:]]
    pins = [f".{name}_i({name}_i)" for name in ("clk", "en", "addr")]
    used = [", ".join([*pins, *(f".{n}_o({n}{end}_o)" for n in SHAPES)]) for end in ("", "_1")]
    body = f"roms u_0 ({used[0]});\n  roms u_1 ({used[1]});"
    top = f"module top ({', '.join(ports + outer)});\n  {body}\nendmodule\n"
    (folder / "rtl").mkdir()
    source = (RTL / "chop_rom.sv").read_text().replace("chop_rom", module)
    for name, text in (("top", top), ("roms", inner), (module, source)):
        (folder / "rtl" / f"{name}.sv").write_text(text)
    return Project("top", (), (), 1, {})


@pytest.mark.tools("yosys")
@pytest.mark.long
def test_estimated_memories_are_what_a_synthesis_of_their_contents_counts(tmp_path):
    found = {}
    for module in ("chop_rom", "measured_rom"):
        folder = tmp_path / module
        rows = {row["module"]: row for row in synthesize(folder, project(folder, module))}
        assert list(rows) == ["roms", "all"] and rows["roms"]["instances"] == 2
        assert {**rows["roms"], "module": "all", "instances": 1} == rows["all"]
        found[module] = rows["all"]
    estimated, measured = found["chop_rom"], found["measured_rom"]
    for column in ("lut", "ff", "ramb18"):
        assert estimated[column] == measured[f"rom_{column}"] == 0
    assert estimated["rom_ff"] == measured["ff"]
    assert estimated["rom_ramb18"] == measured["ramb18"]
    assert abs(estimated["rom_lut"] / measured["lut"] - 1) <= 0.1
