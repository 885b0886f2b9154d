"""Versions, lint, elaboration and synthesis by the installed tools."""

import random
import re
import sys

import pytest

from chop.actions.doctor import OPTIONAL, examine
from chop.base.notices import forget_notices
from chop.errors import ConfigError, UnavailableError
from chop.hardware import tools
from chop.hardware.check.project import Project
from chop.hardware.costs.devices import ECP5
from chop.hardware.costs.estimate import Estimate, block_memories, dsp_blocks, estimate, table_luts
from chop.hardware.costs.synth import synthesize
from chop.hardware.design.plan import ComponentPlan, Memory, Resources
from tests.hardware import tiny

needs_tools = pytest.mark.tools("verilator", "iverilog", "yosys")
PARTS = """
module product #(parameter int A = 8, parameter int B = 8)
  (input logic clk_i, input logic signed [A-1:0] a_i, input logic signed [B-1:0] b_i,
   output logic signed [A+B-1:0] y_o);
  logic signed [A-1:0] a_q;
  logic signed [B-1:0] b_q;
  always_ff @(posedge clk_i) begin
    a_q <= a_i;
    b_q <= b_i;
    y_o <= a_q * b_q;
  end
endmodule
module words #(parameter int W = 8, parameter int D = 64, parameter FILE = "")
  (input logic clk_i, input logic [9:0] a_i, output logic [W-1:0] y_o);
  logic [W-1:0] memory [D];
  initial $readmemh(FILE, memory);
  always_ff @(posedge clk_i) y_o <= memory[a_i[$clog2(D)-1:0]];
endmodule
"""
PRODUCTS = {(8, 8): 2, (25, 18): 1, (32, 16): 1, (4, 4): 1}
WORDS = {(36, 256): 1, (8, 64): 1, (64, 32): 1}


def memory(width, depth):
    draw = random.Random(0)
    return Memory(tuple(draw.getrandbits(width) for _ in range(depth)), width)


def project(folder):
    """All of `PRODUCTS` and `WORDS`, each with outputs of its own."""
    ports, cells = ["input logic clk_i", "input logic [31:0] a_i", "input logic [31:0] b_i"], []

    def cell(module, values, pins, bits):
        name = f"u{len(cells)}"
        ports.append(f"output logic [{bits - 1}:0] {name}_o")
        cells.append(f"{module} #({values}) {name} (.clk_i(clk_i), {pins}, .y_o({name}_o));")

    for (a, b), count in PRODUCTS.items():
        for _ in range(count):
            cell(
                "product", f".A({a}), .B({b})", f".a_i(a_i[{a - 1}:0]), .b_i(b_i[{b - 1}:0])", a + b
            )
    for (width, depth), _ in WORDS.items():
        file = f"memory/w{width}x{depth}.hex"
        (folder / "memory").mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(memory(width, depth).hex())
        cell("words", f'.W({width}), .D({depth}), .FILE("{file}")', ".a_i(a_i[9:0])", width)
    (folder / "rtl").mkdir()
    (folder / "rtl" / "parts.sv").write_text(PARTS)
    body = "\n  ".join(cells)
    text = f"module top ({', '.join(ports)});\n  {body}\nendmodule\n"
    (folder / "rtl" / "top.sv").write_text(text)
    return Project("top", (), (), 1, {})


@needs_tools
@pytest.mark.long
def test_synthesis_counts_what_the_estimate_says(tmp_path):
    rows = {row["module"]: row for row in synthesize(tmp_path, project(tmp_path))}
    assert list(rows) == ["product", "words", "all"]
    memories = {str(shape): memory(*shape) for shape in WORDS}
    plan = ComponentPlan({}, (), None, 1, memories, Resources(PRODUCTS))
    assert estimate([plan]) == Estimate(dsp=5, ramb18=1, table_lut=8 + 64)
    assert rows["product"]["instances"] == 5 and rows["words"]["instances"] == 3
    assert rows["product"]["dsp"] == rows["all"]["dsp"] == 5
    assert rows["words"]["ramb18"] == rows["all"]["ramb18"] == 1
    assert rows["words"]["lut"] == 8 + 64 and rows["words"]["ff"] == 8 + 64
    for column in ("lut", "ff", "lutram"):
        assert rows["all"][column] == rows["product"][column] + rows["words"][column]
    # The registers of the 4 by 4 product are in no DSP block.
    assert rows["product"]["ff"] >= 16 and rows["product"]["lut"] > 0


@needs_tools
def test_synthesis_that_takes_too_long_or_fails_is_told(tmp_path):
    made = project(tmp_path)
    with pytest.raises(UnavailableError, match="longer than 0.01 seconds"):
        synthesize(tmp_path, made, seconds=0.01)
    (tmp_path / "rtl" / "parts.sv").write_text("module product (input logic a_i;\n")
    with pytest.raises(ConfigError, match=r"parts.sv:1: ERROR: syntax error"):
        synthesize(tmp_path, made)


# By the words of random contents, lookup tables of each bit; Yosys 0.23 counts as many up to 256
# words, and up to 11 % fewer beyond.
TABLES = {32: 1, 64: 1, 128: 2, 192: 4, 256: 4, 320: 7, 512: 10, 1024: 20}
IN_TABLES = [(64, 32), (8, 64), (512, 64), (36, 128), (512, 128), (96, 192), (8, 256), (64, 256)]
IN_TABLES += [(8, 320), (8, 512), (16, 512), (8, 1024)]


@pytest.mark.parametrize(("width", "depth"), IN_TABLES)
def test_small_memories_are_estimated_in_tables(width, depth):
    assert block_memories(memory(width, depth)) == 0
    assert table_luts(memory(width, depth)) == width * TABLES[depth]


@pytest.mark.parametrize(
    ("width", "depth", "blocks"), [(36, 256, 1), (36, 512, 1), (9, 2048, 1), (72, 512, 2)]
)
def test_large_memories_are_estimated_in_blocks(width, depth, blocks):
    assert block_memories(memory(width, depth)) == blocks
    assert table_luts(memory(width, depth)) == 0


def test_bits_that_are_the_same_in_all_words_are_in_no_block_memory():
    # As Yosys 0.23 counts of a layer of blocks, whose 64 words have 65 bits.
    full = memory(65, 64)
    even = Memory(tuple(word & ~1 for word in full.words), 65)
    assert [block_memories(each, ECP5) for each in (full, even)] == [2, 0]
    assert table_luts(even, ECP5) == 64 * 4


def test_products_are_estimated_by_the_widths_of_a_multiplier():
    # `chop_product` cuts factors beyond 18 bits, whatever a multiplier of the device takes.
    assert [dsp_blocks(a, b) for a, b in ((8, 8), (18, 18), (18, 25), (25, 18))] == [1, 1, 2, 2]
    assert [dsp_blocks(a, b) for a, b in ((26, 18), (25, 19), (48, 16), (4, 4))] == [2, 4, 3, 0]
    assert [dsp_blocks(a, b, ECP5) for a, b in ((2, 2), (3, 1), (16, 1))] == [1, 0, 0]


@needs_tools
@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_a_tool_that_others_end_says_nothing_of_the_design(name):
    with pytest.raises(UnavailableError, match=rf"^router was ended by SIG{name}, .*try again$"):
        tools.run(["sh", "-c", f"kill -{name} $$"], None, 60, "router")
    assert tools.run(["sh", "-c", "exit 3"], None, 60).returncode == 3


def test_versions_are_numbers():
    found = tools.versions()
    assert list(found) == ["verilator", "iverilog", "yosys"]
    assert all(re.match(r"\d+\.\d+", version) for version in found.values())


def test_missing_tools_have_a_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(tools.versions().values()) == {None}
    command = "apt-get install --no-install-recommends verilator iverilog yosys"
    with pytest.raises(UnavailableError, match=f"yosys is not installed: {command}"):
        tools.require("yosys")
    rows = {found.what: found for found in examine()}
    assert all(rows[tool].state == OPTIONAL for tool in tools.VERSIONS)
    assert all(command in rows[tool].detail for tool in tools.VERSIONS)


@needs_tools
def test_lint_and_elaboration_have_no_complaint_but_of_faults(tmp_path):
    assert tools.require("verilator", "yosys") is None
    clean = tmp_path / "clean.sv"
    clean.write_text(
        "module clean (input logic a_i, output logic y_o);\n  assign y_o = a_i;\nendmodule\n"
    )
    assert tools.lint([clean], "clean") == "" == tools.elaborate([clean], "clean", tmp_path)
    wide = tmp_path / "wide.sv"
    wide.write_text(clean.read_text().replace("clean", "wide").replace("= a_i", "= 3'd5"))
    assert "%Warning-WIDTH" in tools.lint([wide], "wide")
    loop = tmp_path / "loop.sv"
    loop.write_text(clean.read_text().replace("clean", "loop").replace("= a_i", "= !y_o & a_i"))
    assert "loop" in tools.elaborate([loop], "loop", tmp_path)


def test_slang_refuses_a_name_before_its_declaration(tmp_path):
    """Verilator and Yosys accept it; IEEE 1800-2023, section 6.5, does not."""
    pytest.importorskip("pyslang", reason="pip install 'mase-chop[slang]'")
    early = tmp_path / "early.sv"
    body = "  assign y_o = b;\n  logic b;\n  assign b = a_i;\n"
    early.write_text(f"module early (input logic a_i, output logic y_o);\n{body}endmodule\n")
    assert "used before its declaration" in tools.check_language([early], "early", tmp_path)
    late = "  logic b;\n  assign b = a_i;\n  assign y_o = b;\n"
    early.write_text(early.read_text().replace(body, late))
    assert tools.check_language([early], "early", tmp_path) == ""


@pytest.mark.parametrize("text", ["raise ImportError('no libfoo.so')", "version = 8"])
def test_a_broken_slang_is_skipped_with_a_warning(text, tmp_path, monkeypatch):
    (tmp_path / "pyslang.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "pyslang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(tools, "lint", lambda *a, **k: "")
    monkeypatch.setattr(tools, "elaborate", lambda *a: "")
    forget_notices()
    with pytest.warns(match="not checked by slang, since pyslang cannot be imported"):
        messages = list(tools.source_messages([], "top", tmp_path))
    assert [tool for tool, _ in messages] == ["verilator --lint-only -Wall", "yosys"]
    sys.modules.pop("pyslang", None)


@needs_tools
def test_yosys_is_not_given_paths_that_it_splits(tmp_path):
    folder = tmp_path / "a folder"
    tiny.write(folder)
    with pytest.raises(ConfigError, match="cannot read paths with blanks"):
        tools.elaborate([*(folder / "rtl").glob("*.sv")], "top", folder)
