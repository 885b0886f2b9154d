"""Cocotb test of a design, for users who verify with cocotb. The built-in harness is far faster."""

from __future__ import annotations

from chop.hardware.check.project import Project
from chop.hardware.check.testbench import VECTORS
from chop.hardware.design.load import WEIGHTS

FOLDER = "testbench"

_TEST = '''\
"""Cocotb test of `{top}`: sends the beats of {vectors}/, and compares all that leave.

In the folder of the project: make -f {folder}/Makefile SIM=icarus (or SIM=verilator).
"""

from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import Combine, RisingEdge, with_timeout

INPUTS = {inputs}
OUTPUTS = {outputs}
TIMEOUT_US = {timeout}


def path(name):
    return Path("{weights}" if name == "{weights}" else "{vectors}", f"{{name}}.hex")


def beats(name):
    return [int(word, 16) for word in path(name).read_text().split()]


async def send(dut, name):
    data, valid, ready = (getattr(dut, name + end) for end in ("_i", "_valid_i", "_ready_o"))
    for beat in beats(name):
        data.value = beat
        valid.value = 1
        await RisingEdge(dut.clk_i)
        while ready.value != 1:
            await RisingEdge(dut.clk_i)
    valid.value = 0


async def receive(dut, name):
    data, valid, ready = (getattr(dut, name + end) for end in ("_o", "_valid_o", "_ready_i"))
    ready.value = 1
    for number, beat in enumerate(beats(name)):
        await RisingEdge(dut.clk_i)
        while valid.value != 1:
            await RisingEdge(dut.clk_i)
        assert int(data.value) == beat, (
            f"{{name}}: beat {{number}}: expected {{beat:x}}, got {{int(data.value):x}}"
        )


@cocotb.test()
async def every_beat_is_as_expected(dut):
    for name in INPUTS:
        getattr(dut, f"{{name}}_valid_i").value = 0
    for name in OUTPUTS:
        getattr(dut, f"{{name}}_ready_i").value = 0
    dut.rst_ni.value = 0
    cocotb.start_soon(Clock(dut.clk_i, 2, units="ns").start())
    for _ in range(4):
        await RisingEdge(dut.clk_i)
    dut.rst_ni.value = 1
    for name in INPUTS:
        cocotb.start_soon(send(dut, name))
    readers = [cocotb.start_soon(receive(dut, name)) for name in OUTPUTS]
    await with_timeout(Combine(*readers), TIMEOUT_US, "us")
'''

_MAKEFILE = """\
# make -f {folder}/Makefile [SIM=icarus|verilator], in the folder of the project.
TOPLEVEL_LANG := verilog
TOPLEVEL := {top}
MODULE := test_{top}
VERILOG_SOURCES := $(wildcard $(CURDIR)/rtl/*.sv)
export PYTHONPATH := $(CURDIR)/{folder}:$(PYTHONPATH)
include $(shell cocotb-config --makefiles)/Makefile.sim
"""


def cocotb_files(project: Project, samples: int) -> dict[str, str]:
    """Returns the files of a cocotb test, as text by path in the project."""
    inputs = [port.name for port in project.ends if port.is_input]
    outputs = [port.name for port in project.ports if not port.is_input]
    # Far longer than the samples take, to end the test if a circuit hangs.
    cycles = 100 * (project.interval * (samples + 10) + project.loaded_words)
    test = _TEST.format(
        top=project.top,
        folder=FOLDER,
        vectors=VECTORS,
        weights=WEIGHTS,
        inputs=inputs,
        outputs=outputs,
        timeout=max(cycles // 500, 10),
    )
    return {
        f"{FOLDER}/test_{project.top}.py": test,
        f"{FOLDER}/Makefile": _MAKEFILE.format(folder=FOLDER, top=project.top),
    }
