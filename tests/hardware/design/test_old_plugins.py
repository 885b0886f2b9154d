"""Plug-ins that are older than the input `load_i` of the library's modules."""

import re
from dataclasses import replace

import pytest

from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.plan import RTL, Component, Site
from chop.hardware.design.verilog import tie_load
from chop.hardware.plans.weighted import plan_linear
from chop.nn.integer import IntegerLinear
from tests.hardware.bench import check, drawn, needs_tools
from tests.hardware.design.test_linear import EDGE, layer

LIBRARY = (RTL / "chop_linear.sv").read_text()
HEAD = LIBRARY[LIBRARY.index("module chop_linear") : LIBRARY.index(");\n") + 3]
NAMES = [name for name in re.findall(r"parameter (?:int)?\s*(\w+)", HEAD) if "BASE" not in name]
PORTS = re.findall(r"(\w+_n?[io])(?=[,\n])", HEAD.replace("load_i", ""))


class OldLinear(IntegerLinear):
    """A linear layer of a plug-in."""


def old_source():
    """A module around `chop_linear`, which it instantiates without `load_i`."""
    head = re.sub(r".*(?:_BASE|load_i).*\n", "", HEAD).replace(
        'BIAS_FILE    = "",', 'BIAS_FILE = ""'
    )
    parameters = ", ".join(f".{name}({name})" for name in NAMES)
    ports = ", ".join(f".{name}" for name in PORTS)
    text = head.replace("chop_linear", "old_linear")
    return f"{text}  chop_linear #({parameters})\n  u_l (\n {ports});\nendmodule\n"


@pytest.mark.long
@pytest.mark.parametrize("module", ["old_linear", "chop_linear"])
@needs_tools
def test_an_old_plugin_runs_unchanged(tmp_path, monkeypatch, module):
    (tmp_path / "old_linear.sv").write_text(old_source())
    assert "load_i" not in old_source()

    def plan(site: Site):
        return replace(plan_linear(site), module="")

    monkeypatch.setitem(COMPONENTS, "OldLinear", Component(OldLinear, module, plan, tmp_path))
    operator = layer(4, 6)
    operator.__class__ = OldLinear
    check(operator, drawn(EDGE, 6), fold=12, profiles=["none"])


@pytest.mark.parametrize(
    ("text", "tied"),
    [
        ("chop_linear u (.clk_i, .x(f(1)));", "chop_linear u (.load_i(57'b0), .clk_i, .x(f(1)));"),
        ("chop_conv #(.A((1))) u[1:0] (.*);", "chop_conv #(.A((1))) u[1:0] (.load_i(57'b0), .*);"),
        ("chop_linear u (.clk_i, .load_i(x));", None),
        ("chop_fifo u (.clk_i);", None),
        ("// chop_linear u (.clk_i);", None),
        ('/* chop_linear u ( */ $display("chop_linear u (.x)");', None),
        ("module chop_linear #(int A = 1) (input clk_i);", None),
    ],
)  # fmt: skip
def test_only_instances_without_the_input_change(text, tied):
    assert tie_load(text) == (tied or text)
