"""Templates of emitted text: what a template reads has to be given."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from chop.hardware import templates
from chop.hardware.templates import render

NAMES = sorted(path.stem for path in Path(templates.__file__).parent.glob("*.jinja"))


def test_each_template_refuses_missing_names():
    assert {"axis.sv", "Makefile", "ports.h", "simulation.sv", "testbench.sv"} < {*NAMES}
    for name in NAMES:
        with pytest.raises(UndefinedError):
            render(name, ports=())


def test_text_is_written_as_it_is():
    names = {"module": "top<&>", "ports": ()}
    assert render("ports.h", **names).startswith('#include "Vtop<&>.h"\n#define CHOP_MODEL Vtop<&>')
