"""Flip-flops that are estimated of components, beside those that Yosys keeps of their sources."""

import re
import subprocess

import pytest

from chop.hardware.costs.logic import estimate_logic
from chop.hardware.costs.logic_parts import isqrt_logic, reciprocal_logic, round_logic
from chop.hardware.design.plan import RTL
from chop.hardware.design.products import soft_parts

PARTS = {
    "chop_round_saturate": ("IN_W", "SHIFT", "OUT_W", round_logic),
    "chop_reciprocal": ("IN_W", "OUT_W", reciprocal_logic),
    "chop_isqrt": ("IN_W", isqrt_logic),
}
ENDS = {"LOW": -128, "HIGH": 127}
REQUANTIZE = {"LANES": 2, "MULTIPLIES": 0, "OUT_W": 8, "CHANNEL_BEATS": 0} | ENDS
MATMUL = {"LANES": 1, "ROWS": 17, "HEADS": 2, "IN_FEATURES": 12, "OUT_FEATURES": 17}
MATMUL |= {"TRANSPOSED": 1, "IN_0_W": 8, "IN_1_W": 7, "OUT_W": 20, "SOFT": 0}
FLAT = MATMUL | {"LANES": 3, "TRANSPOSED": 0, "HEADS": 1, "IN_FEATURES": 17, "OUT_FEATURES": 6}
CASES = [
    *(
        ("chop_round_saturate", {"IN_W": width, "SHIFT": shift, "OUT_W": 8} | ENDS)
        for width, shift in ((20, 6), (16, 0), (24, 4), (12, 8), (9, 1))
    ),
    ("chop_round_saturate", {"IN_W": 12, "SHIFT": -2, "OUT_W": 16, "LOW": -32768, "HIGH": 32767}),
    ("chop_round_saturate", {"IN_W": 46, "SHIFT": 13, "OUT_W": 20, "LOW": -458752, "HIGH": 458752}),
    ("chop_reciprocal", {"POWER": 35, "IN_W": 21, "OUT_W": 20}),
    ("chop_reciprocal", {"POWER": 45, "IN_W": 29, "OUT_W": 31}),
    *(("chop_isqrt", {"IN_W": width}) for width in (30, 31, 57)),
    *(("chop_requantize", REQUANTIZE | {"IN_W": 20, "SHIFT": shift}) for shift in (6, 0)),
    ("chop_fifo", {"W": 9, "DEPTH": 10}),
    ("chop_fifo", {"W": 9, "DEPTH": 60}),
    ("chop_skid", {"W": 9}),
    ("chop_downsize", {"W": 5, "IN_LANES": 6, "OUT_LANES": 2}),
    *(("chop_matmul", shape | {"SOFT": soft}) for shape in (MATMUL, FLAT) for soft in (0, 3)),
    ("chop_matmul", MATMUL | {"LANES": 2}),
]


def estimated(module, parameters):
    """Flip-flops, with the register behind each memory, which Yosys makes a part of it."""
    if module in PARTS:
        *names, formula = PARTS[module]
        return formula(*(parameters[name] for name in names)).ff
    logic, products = estimate_logic(module, parameters), 0
    if module == "chop_matmul":
        a, b = parameters["IN_0_W"], parameters["IN_1_W"]
        each = soft_parts(a, b).registers if parameters["SOFT"] else a + b
        products = each * parameters["LANES"]
    return logic.ff + logic.factors + products


def counted(folder):
    """Flip-flops of each case: of the sources, before anything is mapped to a device."""
    files = [path for path in RTL.glob("*.sv") if "stream" not in path.name]
    lines = [f"read_verilog -sv -defer {' '.join(map(str, files))}", "design -save all"]
    for module, parameters in CASES:
        values = (f"-chparam {name} 64'h{value % 2**64:x}" for name, value in parameters.items())
        lines += [
            "design -load all",
            f"hierarchy -top {module} {' '.join(values)}",
            "synth -flatten -run begin:fine",
            "simplemap",
            "opt -full",
            "tee -q -a stat.txt stat",
        ]
    script = folder / "script.ys"
    script.write_text("\n".join(lines) + "\n")
    subprocess.run(["yosys", "-q", script], cwd=folder, check=True, timeout=120)
    sections = re.split(r"^=== .* ===$", (folder / "stat.txt").read_text(), flags=re.MULTILINE)[1:]
    cells = r"^ +\$_\w*DFF\w*_ +(\d+)$"
    return [sum(map(int, re.findall(cells, one, re.MULTILINE))) for one in sections]


@pytest.mark.long
@pytest.mark.tools("yosys")
def test_estimated_registers_are_those_that_yosys_keeps(tmp_path):
    found = counted(tmp_path)
    assert len(found) == len(CASES)
    for (module, parameters), number in zip(CASES, found, strict=True):
        assert estimated(module, parameters) == number, (module, parameters)
