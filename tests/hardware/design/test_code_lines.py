"""SystemVerilog without comments, as two versions of a circuit are compared."""

import random
import re

import pytest

from chop.hardware.design.plan import RTL
from chop.hardware.design.verilog import code_lines
from tests.hardware import (
    mutants_of_blocks,
    mutants_of_rows,
    mutants_of_streams,
    mutants_of_windows,
)

SOURCE = """// Sum of two codes.
module add #(parameter W = 8) (input logic [W-1:0] a_i, b_i, output logic [W:0] y_o);
  (* keep *) logic [W:0] sum;
  assign sum = a_i + b_i;  // one bit more
  initial $display("// %0d  /* sums */", W);
  assign y_o = sum;
endmodule
"""


def code(text):
    return [line for _, line in code_lines(text)]


SAME = [
    ("// Sum of two codes.", "// Adds.\n// Both are signed.\n"),
    ("// Sum of two codes.\n", ""),
    ("  // one bit more", ""),
    ("// one bit more", "/* so that\nnothing is lost */"),
    ("b_i, output", "b_i /* the other */, output"),
    ("sum = a_i", "sum = /* of */ a_i"),
    ("= sum;", "= sum/* at once */;"),
    ("endmodule\n", "endmodule  // of add"),
    ("// one bit more", "// for synthesis and lint, one bit more"),
    ("  assign y_o", "\n\n\tassign y_o"),
    ("assign sum", "/*//*/ assign sum"),
    ("// one bit more\n", "// one bit more\r\n"),
    ("// one bit more\n", "/* one bit\r\nmore */\r\n"),
]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_comments_make_no_difference(old, new):
    changed = SOURCE.replace(old, new, 1)
    assert changed != SOURCE and code(changed) == code(SOURCE)


DIFFERENT = [
    ("a_i + b_i", "a_i - b_i"),
    ("W = 8", "W = 9"),
    ("(* keep *) ", ""),
    ("(* keep *)", "( * keep *)"),
    ("// %0d", "// %0h"),
    ("%0d  /*", "%0d /*"),
    ("/* sums */", ""),
    ("// one bit more", "// verilator lint_off WIDTH"),
    ("// one bit more", "//verilator public"),
    ("// one bit more", "/*verilator public*/"),
    ("// one bit more", "/* synthesis keep */"),
    ("// one bit more", "// Synopsys translate_off"),
    ("// one bit more", "// pragma translate_on"),
    ("// one bit more", "// a case (full_case)"),
    ("// one bit more", "// one bit more \\"),
    ("// one bit more\n", "// one bit more \\\r\n"),
    ("// one bit more", "// verilator_lint_off WIDTH"),
    ("// one bit more", "//synopsys_translate_off"),
    ("// one bit more", "//* synthesis keep"),
    ("// one bit more", "//@ Verilator lint_off WIDTH"),
    ("// one bit more", "// psl assert always y_o;"),
    ("// one bit more", "// 0in assert"),
    ("// one bit more", "// one bit\0 more"),
    ("endmodule\n", "endmodule\n/* synthesis on */ /*"),
    ("endmodule\n", "endmodule\n/* of add"),
    ("endmodule\n", "endmodule\n/*/"),
    ("endmodule\n", 'endmodule """\n// of add\n"""'),
    ("// one bit more", "// one\rassign y_o = 0;"),
    ("// one bit more", "// one bit\u2028more"),
    ("  assign y_o", "  // assign y_o"),
    ("endmodule", "/* endmodule"),
    ("endmodule", "/ / endmodule"),
    ("assign sum = a_i", "assign \\sum//x = a_i"),
    ("assign sum", "as sign sum"),
    ("logic [W:0] sum", "logic [W:0]\u00a0sum"),
]


@pytest.mark.parametrize(("old", "new"), DIFFERENT)
def test_code_strings_and_tool_comments_make_a_difference(old, new):
    changed = SOURCE.replace(old, new, 1)
    assert changed != SOURCE and code(changed) != code(SOURCE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("assign y = a <= b;", "assign y = a < = b;"),
        ("`define F(x) x\n", "`define F (x) x\n"),
        ("wire a; `define F(x) x\n", "wire a; `define F (x) x\n"),
        ("`define A 1 /* one\n */ + 2\n", "`define A 1\n + 2\n"),
        ('x = """\n// a\n""";', 'x = """\n\n""";'),
        ("`define A 1 \\\n  + 2\n", "`define A 1 \\\n\n  + 2\n"),
        ('x = "a\\\n  b";', 'x = "a\\\nb";'),
        ("\\a ;", "\\a; "),
        ('x = "\\"//"; y', 'x = "\\"'),
        ("/*/ a */ b", "/*/ b"),
    ],
)
def test_blanks_with_a_meaning_are_compared(one, other):
    assert code(one) != code(other)


def test_lines_have_the_numbers_of_the_file():
    text = "/* two\nlines */ module m;\n\n// none\n  logic a; // one\nendmodule"
    assert code_lines(text) == [(2, "module m;"), (5, "logic a;"), (6, "endmodule")]


def test_code_of_the_library_has_no_comment_in_it():
    for path in RTL.glob("*.sv"):
        lines = code_lines(path.read_text())
        assert lines and not any("//" in line for _, line in lines), path.name


def test_every_planted_fault_is_a_difference():
    mutants = [
        mutant
        for part in (mutants_of_blocks, mutants_of_rows, mutants_of_streams, mutants_of_windows)
        for mutant in part.MUTANTS.values()
    ]
    for module, old, new, _ in mutants:
        text = (RTL / f"{module}.sv").read_text()
        assert code(text.replace(old, new)) != code(text), (module, old)
    assert len(mutants) > 50


def test_comments_anywhere_are_accepted_and_a_lost_token_is_not():
    choose = random.Random(0)
    for path in sorted(RTL.glob("*.sv")):
        text = "\n".join(line for _, line in code_lines(path.read_text()))
        lines = text.split("\n")
        at = choose.randrange(len(lines))
        word = choose.choice(re.findall(r"\w+|[^\w\s]", lines[at]))
        blanks = [
            m.start() for m in re.finditer(r" ", text) if text[: m.start()].count('"') % 2 == 0
        ]
        for place in choose.sample(blanks, 3):
            assert code(f"{text[:place]} /* so */ {text[place:]}") == code(text), path.name
        lost = [*lines[:at], lines[at].replace(word, "", 1), *lines[at + 1 :]]
        assert code("\n".join(lost)) != code(text), (path.name, lines[at], word)
