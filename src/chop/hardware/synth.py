"""Synthesis for 7-series devices by Yosys: what a project takes of each resource."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.errors import ConfigError, UnavailableError
from chop.hardware.project import Project
from chop.hardware.tools import read_command, tool_path
from chop.native import first_error

SYNTHESIS_SECONDS = 900
COLUMNS = {
    "lut": {f"LUT{inputs}": 1 for inputs in range(1, 7)},
    "lutram": {
        "RAM32M": 4,
        "RAM64M": 4,
        "RAM32X1D": 2,
        "RAM64X1D": 2,
        "RAM128X1D": 4,
        "SRL16E": 1,
        "SRLC32E": 1,
    },
    "ff": {"FDRE": 1, "FDSE": 1, "FDCE": 1, "FDPE": 1},
    "dsp": {"DSP48E1": 1},
    "ramb18": {"RAMB18E1": 1, "RAMB36E1": 2},
}
"""For each resource the primitives that take it, and how many units: lookup tables, those that
are memories or shift registers, flip-flops, DSP48 blocks, and block memories of 18 Kbit."""
TOTAL = "all"
# Modules stay apart, so that equal ones are synthesized once; pads and clock buffers belong to
# the circuit around.
_SCRIPT = (
    "{read}; hierarchy -top {top}; synth_xilinx -family xc7 -noiopad -noclkbuf -top {top}; "
    "tee -q -o {out} stat"
)


def synthesize(
    folder: Path, project: Project, seconds: float = SYNTHESIS_SECONDS
) -> list[dict[str, Any]]:
    """Resources of a project by Yosys' `synth_xilinx`; nothing is placed, so there is no clock.

    Args:
        folder: of the project.
        project: what is in it.
        seconds: time limit.
    Returns: for each kind of module in the top `module`, `instances` and the columns of `COLUMNS`,
        and the same of the whole, whose `module` is "all".
    Raises:
        UnavailableError: Yosys is not installed, or takes longer.
        ConfigError: it does not accept the design.
    """
    cells = _cells(folder, project.top, seconds)
    rows: dict[str, Counter[str]] = {}
    for kind, count in cells[project.top].items():
        found = rows.setdefault(_module(kind) if kind in cells else "", Counter())
        found.update({name: count * each for name, each in _primitives(kind, cells).items()})
        found["instances"] += count
    own = rows.pop("", Counter())
    rows = {**dict(sorted(rows.items())), TOTAL: sum(rows.values(), own)}
    rows[TOTAL]["instances"] = 1
    return [_row(module, found) for module, found in rows.items()]


def _module(kind: str) -> str:
    r"""Name of a module in its source.

    >>> _module(r"$paramod\chop_skid\W=8"), _module(r"$paramod$12ab\chop_fifo"), _module("chop_a")
    ('chop_skid', 'chop_fifo', 'chop_a')
    """
    found = re.match(r"\$paramod(?:\$\w+)?\\(\w+)", kind)
    return found[1] if found else kind


def _row(module: str, found: Mapping[str, int]) -> dict[str, Any]:
    usage = {
        column: sum(units * found.get(primitive, 0) for primitive, units in primitives.items())
        for column, primitives in COLUMNS.items()
    }
    return {"module": module, "instances": found["instances"], **usage}


def _primitives(kind: str, cells: Mapping[str, Counter[str]]) -> Counter[str]:
    """Primitives of a cell: its own, and those of the modules in it."""
    if kind not in cells:
        return Counter({kind: 1})
    found: Counter[str] = Counter()
    for inner, count in cells[kind].items():
        found.update({name: count * n for name, n in _primitives(inner, cells).items()})
    return found


def _cells(folder: Path, top: str, seconds: float) -> dict[str, Counter[str]]:
    """For each module, how many cells of each kind it has after synthesis."""
    sources = sorted((folder / "rtl").glob("*.sv"))
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "stat.txt"
        script = _SCRIPT.format(read=read_command(sources), top=top, out=out)
        try:
            subprocess.run(
                [tool_path("yosys"), "-q", "-p", script],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"Yosys takes longer than {seconds:g} seconds") from None
        except subprocess.CalledProcessError as error:
            reason = first_error(error)
            raise ConfigError(f"Yosys does not accept the design: {reason}") from error
        return parse_statistics(out.read_text())


def parse_statistics(text: str) -> dict[str, Counter[str]]:
    r"""Cells of each module, of what the command `stat` of Yosys prints.

    >>> parse_statistics("=== top ===\n\n   Number of cells:  3\n     LUT2  1\n     FDRE  2\n")
    {'top': Counter({'FDRE': 2, 'LUT2': 1})}
    """
    sections = re.split(r"^=== (.+) ===$", text, flags=re.MULTILINE)[1:]
    found = {}
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        if name != "design hierarchy":
            listed = section.partition("Number of cells:")[2].partition("\n")[2]
            rows = re.findall(r"^ {5}(\S+) +(\d+)$", listed, re.MULTILINE)
            found[name] = Counter({kind: int(count) for kind, count in rows})
    return found
