"""Registers that go ahead of a choice among block memories: simulated netlists, and refusals."""

import json

import pytest

from chop.hardware.folds.absorb import absorb_registers
from chop.hardware.folds.retime import retime_choices
from tests.hardware import bench
from tests.hardware.costs.test_place import (
    check_netlist,
    memory,
    module,
    multiplier_model,
    needs_yosys,
    register,
    synthesized_layer,
)
from tests.hardware.design.test_linear import EDGE, layer

MEMORY = """
module MEMORY({ports}, input CLKA, CLKB, CEA, CEB, OCEA, OCEB, WEA, WEB, RSTA, RSTB,
  input CSA0, CSA1, CSA2, CSB0, CSB1, CSB2);
  {parameters}
  parameter DATA_WIDTH_A = 18; parameter DATA_WIDTH_B = 18; parameter GSR = "";
  parameter REGMODE_A = "NOREG"; parameter REGMODE_B = "NOREG"; parameter RESETMODE = "";
  parameter ASYNC_RESET_RELEASE = ""; parameter CSDECODE_A = ""; parameter CSDECODE_B = "";
  parameter CLKAMUX = ""; parameter CLKBMUX = ""; parameter WRITEMODE_A = "";
  parameter WRITEMODE_B = "";
  localparam IS_WIDE = DATA_WIDTH_B == 36;
  reg [17:0] words [0:1023];
  wire [319:0] slices [0:63];
  {slices}
  initial begin
    #0;
    for (integer k = 0; k < 1024; k = k + 1) words[k] = slices[k / 16][k % 16 * 20 +: 18];
  end
  wire [13:0] ada = {{{ada}}}, adb = {{{adb}}};
  wire [9:0] row_a = IS_WIDE ? {{adb[13:5], 1'b0}} : ada[13:4];
  wire [9:0] row_b = IS_WIDE ? {{adb[13:5], 1'b1}} : adb[13:4];
  reg [17:0] a, b, a_q, b_q;
  always @(posedge CLKB) begin
    if (CEB) begin a <= words[row_a]; b <= words[row_b]; end
    a_q <= a; b_q <= b;
  end
  assign {{{doa}}} = REGMODE_A == "OUTREG" ? a_q : a;
  assign {{{dob}}} = REGMODE_B == "OUTREG" ? b_q : b;
  initial if (!IS_WIDE && DATA_WIDTH_B != 18) $fatal(1, "no model of this width");
endmodule
"""
"""Of a read-only memory, 18 or 36 bits wide; a word of 36 leaves by both ports."""


def memory_model():
    ways = (("AD", "input", 14), ("DI", "input", 18), ("DO", "output", 18))
    every = [(f"{name}{half}", way, width) for name, way, width in ways for half in "AB"]
    ports = [f"{way} {name}{k}" for name, way, width in every for k in range(width)]
    joined = {n.lower(): ", ".join(f"{n}{k}" for k in reversed(range(w))) for n, _, w in every}
    names = [f"INITVAL_{k:02X}" for k in range(64)]
    parameters = "".join(f"parameter [319:0] {name} = 0; " for name in names)
    slices = "".join(f"assign slices[{k}] = {name}; " for k, name in enumerate(names))
    return MEMORY.format(ports=", ".join(ports), parameters=parameters, slices=slices, **joined)


@needs_yosys
@pytest.mark.parametrize("weights", [(-128, 127), (-1, 1)], ids=["products", "ternary"])
@pytest.mark.long
def test_a_deep_memory_of_weights_computes_the_same(weights, tmp_path):
    outputs, inputs = (64, 80) if weights[1] > 1 else (160, 128)
    operator = layer(outputs, inputs, weights=weights)
    driven = bench.drawn(EDGE, inputs, samples=1)
    _, netlist = synthesized_layer(operator, driven, 1280, tmp_path)
    registers = len(registers_of(netlist))
    counted = absorb_registers(netlist, "top")
    memories = [c for c in cells_of(netlist).values() if c["type"] == "DP16KD"]
    assert counted["choices"] == len(memories) > 1
    assert all(cell["parameters"]["REGMODE_B"] == "OUTREG" for cell in memories)
    for found in memories:
        found["type"] = "MEMORY"  # Yosys has a DP16KD, which does nothing
    models = {"multiplier.v": multiplier_model(), "memory.v": memory_model()}
    check_netlist(netlist, tmp_path, models)
    assert len(registers_of(netlist)) < registers


def cells_of(netlist):
    return netlist["modules"]["top"]["cells"]


def registers_of(netlist):
    return [cell for cell in cells_of(netlist).values() if cell["type"] == "TRELLIS_FF"]


def cell(kind, **connections):
    ways = {port: "output" if port == "Z" else "input" for port in connections}
    nets = {port: [bit] for port, bit in connections.items()}
    return {"type": kind, "parameters": {}, "connections": nets, "port_directions": ways}


def choice(**changed):
    """A bit of two memories, chosen by net 50, in a register; and what changes of it."""
    second = memory()
    second["connections"] |= {f"DOB{k}": [130 + k] for k in range(18)}
    cells = {
        "m": memory(),
        "n": second,
        "s": register(49, 50),
        "t": cell("LUT4", A=100, B=130, C=50, D="0", Z=60),
        "q": register(60, 200),
        **changed,
    }
    return {name: found for name, found in cells.items() if found is not None}


def test_words_and_what_chooses_have_the_register():
    netlist = module(choice(), [200])
    assert absorb_registers(netlist, "top")["choices"] == 2
    cells = cells_of(netlist)
    (ahead,) = cells.keys() - {"m", "n", "s", "t"}
    words = [cells[name]["connections"]["DOB0"][0] for name in "mn"]
    chosen = cells["t"]["connections"]
    assert [chosen[port] for port in "ABCDZ"] == [
        [words[0]], [words[1]], cells[ahead]["connections"]["Q"], ["0"], [200]
    ]  # fmt: skip
    assert cells[ahead]["connections"]["DI"] == [50]
    assert cells["s"] == register(49, 50)
    assert all(cells[name]["parameters"]["REGMODE_B"] == "OUTREG" for name in "mn")
    assert len({*words, 50, 200, *cells[ahead]["connections"]["Q"]}) == 5


def test_a_word_that_has_its_register_keeps_it():
    cells = choice(r=register(100, 201), t=cell("LUT4", A=100, B=130, C="1", D="0", Z=60))
    netlist = module(cells, [200, 201])
    assert retime_choices(netlist, "top") == 2
    found = cells_of(netlist)
    assert found["r"] == register(100, 201)
    assert found["t"]["connections"]["A"] == [201]
    assert found["t"]["connections"]["Z"] == [200]


def test_a_choice_that_depends_on_itself():
    netlist = module(choice(t=cell("LUT4", A=100, B=130, C=200, D="0", Z=60)), [200])
    assert retime_choices(netlist, "top") == 2
    found = cells_of(netlist)
    delayed = found["t"]["connections"]["C"][0]
    assert found["t"]["connections"]["Z"] == [200]
    assert [200] in [c["connections"]["DI"] for c in found.values() if "Q" in c["connections"]
                     and c["connections"]["Q"] == [delayed]]  # fmt: skip


def test_two_bits_may_share_tables_of_words_and_of_selects():
    """Table d decodes selects for both bits, and table w passes a word to the register and to u."""
    shared = {
        "d": cell("LUT4", A=50, Z=51),
        "w": cell("LUT4", A=100, B=130, C=51, D="0", Z=60),
        "t": None,
        "u": cell("LUT4", A=60, B=131, C=51, Z=61),
        "r": register(61, 201),
    }
    netlist = module(choice(**shared), [200, 201])
    assert absorb_registers(netlist, "top")["choices"] == 2
    cells = cells_of(netlist)
    assert {name for name in "qr" if name in cells} == set()
    assert [cells[name]["connections"]["Z"] for name in "wu"] == [[200], [201]]
    assert cells["u"]["connections"]["A"] == [200]
    (ahead,) = cells.keys() - {"m", "n", "s", "d", "w", "u"}
    assert cells[ahead]["connections"]["DI"] == [50]
    assert cells["d"]["connections"]["A"] == cells[ahead]["connections"]["Q"]
    assert all(cells[name]["parameters"]["REGMODE_B"] == "OUTREG" for name in "mn")


@pytest.mark.parametrize(
    ("changed", "outputs"),
    [
        ({"q": register(60, 200, LSR=[9])}, [200]),
        ({"q": register(60, 200, CLK=[3])}, [200]),
        ({"q": None}, [60]),
        ({}, [200, 60]),
        ({}, [200, 130]),
        ({"u": cell("LUT4", A=60, Z=61)}, [200, 61]),
        ({"u": cell("CCU2C", A0=130, S0=61)}, [200]),
        ({"n": memory(RSTB=[9])}, [200]),
        ({"t": cell("LUT4", A=100, B=130, C=50, D=51, Z=60)}, [200]),
        (
            {
                "t": cell("PFUMX", ALUT=100, BLUT=62, C0=50, Z=60),
                "v": cell("LUT4", A=130, C=7, Z=62),
            },
            [200],
        ),
        ({"r": register(60, 201)}, [200, 201]),
        ({"d": cell("LUT4", A=50, Z=51), "t": cell("PFUMX", ALUT=100, BLUT=51, Z=60),
          "u": cell("LUT4", A=51, Z=201)}, [200, 201]),
    ],
    ids=[
        "reset", "clock", "none", "choice_read", "word_read", "choice_chosen", "word_added",
        "memory_reset", "more_registers", "wire_inside", "two_registers", "shared_wire",
    ],
)  # fmt: skip
def test_other_registers_stay(changed, outputs):
    netlist = module(choice(**changed), outputs)
    before = json.dumps(netlist)
    assert not retime_choices(netlist, "top")
    assert json.dumps(netlist) == before


def test_a_netlist_without_memories_is_as_it_was():
    netlist = module({"q": register(60, 200)}, [200])
    before = json.dumps(netlist)
    assert not retime_choices(netlist, "top")
    assert json.dumps(netlist) == before
