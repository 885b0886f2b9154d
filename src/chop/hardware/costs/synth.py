"""Synthesis for Xilinx 7 series in Yosys: resource counts of a project."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.base.files.temporary import scratch_folder
from chop.base.native import first_error
from chop.config import with_checked_arguments
from chop.errors import ConfigError
from chop.hardware.check.project import Project, list_sources, source_text
from chop.hardware.costs.estimate import block_memories, table_luts, table_registers
from chop.hardware.design.plan import Memory
from chop.hardware.tools import read_command, run, tool_path

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
"""For each resource, the primitives that use it and the units of each: lookup tables, lookup tables
used as memories or shift registers, flip-flops, DSP48 blocks, and block memories of 18 Kbit.
"""
ROM_COLUMNS = ("rom_lut", "rom_ff", "rom_ramb18")
"""Resources of read-only memories, estimated from their contents."""
RESOURCES = (
    "Counted by Yosys' synth_xilinx for 7-series devices before placement, without read-only "
    "memories (ROM). Those are estimated from their contents."
)
"""Footnote of a resource report."""
WITHOUT_MULTIPLIERS = " -nodsp"
"""Option of Yosys' synthesis commands that builds products from lookup tables."""
TOTAL = "all"
ROM = "chop_rom"
"""Module of all read-only memories in the library."""
PRODUCTS = "*chop_multiplier* *chop_product* %u"
"""Modules whose products map to the device's multipliers, as a Yosys selection."""
_BODY = re.compile(r"^\);$.*^endmodule$", re.MULTILINE | re.DOTALL)
_LISTED_ROM = re.compile(
    rf"  cell \\{ROM} .*\n    parameter \\FILE \"(.*)\"\n.*\n    parameter signed \\W (\d+)\n"
)
_ELABORATION = "{read}; hierarchy -top {top}; dump -m -o {listed} t:{rom}; tee -q -o {out} stat"
# Modules are not flattened, so that equal ones are synthesized once. Pads and clock buffers belong
# to the circuit around. Only the memories of the library's black boxes are used. The others are
# deleted, because passes of Yosys 0.23 that visit each of them for each module took a fourth of the
# time.
_SYNTHESIS = (
    "{read}; hierarchy -top {top}; {dissolved}read_verilog -lib -specify +/xilinx/cells_sim.v; "
    "select -set kept =*; read_verilog -lib +/xilinx/cells_xtra.v; "
    "delete =* @kept %d =RAMB18E1 %d =RAMB36E1 %d; "
    "synth_xilinx -family xc7 -noiopad -noclkbuf{flags} -top {top} -run prepare:; "
    "tee -q -o {out} stat"
)
# A multiplier absorbs the registers of its factors and a sum of its products, which are in the
# module around it. Yosys merges them only within one module.
_DISSOLVED = (
    "proc; setattr -mod -set keep_hierarchy 1 *; select -set products t:$mul %m {products} %i; "
    "setattr -mod -unset keep_hierarchy @products; flatten; setattr -mod -unset keep_hierarchy *; "
)
_Cells = dict[str, Counter[str]]


@with_checked_arguments
def synthesize(
    folder: Path,
    project: Project,
    seconds: float = SYNTHESIS_SECONDS,
    has_multipliers: bool = True,
) -> list[dict[str, Any]]:
    """Counts the resources of a project with Yosys' `synth_xilinx`, without placement or timing.

    Instances of `chop_rom` are black boxes, because synthesis would spend most of its time on their
    contents. Their resources are estimated, see `chop.hardware.costs.estimate`.

    Args:
        folder: project folder.
        project: its content.
        seconds: time limit.
        has_multipliers: False if products are built from lookup tables.
    Returns: a row for each kind of module in the top: `module`, `instances`, the measured columns
        of `COLUMNS` without read-only memories, and the estimated `ROM_COLUMNS`; and a totals row,
        with `module` "all".
    Raises:
        UnavailableError: if Yosys is not installed or exceeds the time limit.
        ConfigError: if it rejects the design.
    """
    with scratch_folder("synthesis") as work:
        sources = list_sources(folder)
        elaborated, widths = _elaborate(folder, project.top, sources, work, seconds)
        without_files = _without_files(sources, widths, work)
        script = _SYNTHESIS.replace("{flags}", "" if has_multipliers else WITHOUT_MULTIPLIERS)
        dissolved = _DISSOLVED.replace("{products}", PRODUCTS) if has_multipliers else ""
        script = script.replace("{dissolved}", dissolved)
        cells = _run(folder, project.top, script, without_files, work, seconds)
    primitives = _by_module(cells, project.top)
    roms = _by_module(elaborated, project.top)
    memories = {file: _memory(folder / file, width) for file, width in widths.items()}
    return [_row(module, primitives[module], roms[module], memories) for module in primitives]


def _elaborate(
    folder: Path, top: str, sources: Sequence[Path], work: Path, seconds: float
) -> tuple[_Cells, dict[str, int]]:
    """Returns the cells of each module, and the widths of read-only memories in bits by file.

    Cells of the kind `chop_rom` are replaced by cells named after their file.
    """
    listed = work / "roms.txt"
    script = _ELABORATION.replace("{listed}", str(listed)).replace("{rom}", ROM)
    cells = _run(folder, top, script, sources, work, seconds)
    widths: dict[str, int] = {}
    for section in re.split(r"^module ", listed.read_text(), flags=re.MULTILINE)[1:]:
        roms = _LISTED_ROM.findall(section)
        kind = section.partition("\n")[0].removeprefix("\\")
        assert len(roms) == cells[kind].pop(ROM), f"read-only memories of {kind}"
        cells[kind].update(file for file, _ in roms)
        widths.update({file: int(width) for file, width in roms})
    return cells, widths


def _without_files(sources: Sequence[Path], files: Iterable[str], work: Path) -> list[Path]:
    """Returns sources in which modules no longer differ only by memory files.

    The files are in the project folder, the default of the top module's parameter.
    """
    rewritten = []
    for source in sources:
        text = changed = source_text(source)
        for file in files:
            changed = changed.replace(f'"{file.removeprefix(".")}"', '""')
        if changed != text:
            source = work / source.name
            source.write_text(changed)
        rewritten.append(source)
    return rewritten


def _memory(path: Path, width: int) -> Memory:
    return Memory(tuple(int(word, 16) for word in source_text(path).split()), width)


def _by_module(cells: _Cells, top: str) -> dict[str, Counter[str]]:
    """Returns primitives and `instances` of each kind of module in the top, and of the whole."""
    rows: dict[str, Counter[str]] = {}
    for kind, count in cells[top].items():
        counts = rows.setdefault(_module(kind) if kind in cells else "", Counter())
        counts.update({name: count * each for name, each in _primitives(kind, cells).items()})
        counts["instances"] += count
    own = rows.pop("", Counter())
    rows = {**dict(sorted(rows.items())), TOTAL: sum(rows.values(), own)}
    rows[TOTAL]["instances"] = 1
    return rows


def _module(kind: str) -> str:
    r"""Returns the source name of a module.

    >>> _module(r"$paramod\chop_skid\W=8"), _module(r"$paramod$12ab\chop_fifo"), _module("chop_a")
    ('chop_skid', 'chop_fifo', 'chop_a')
    """
    match = re.match(r"\$paramod(?:\$\w+)?\\(\w+)", kind)
    return match[1] if match else kind


def _row(
    module: str,
    counts: Mapping[str, int],
    roms: Mapping[str, int],
    memories: Mapping[str, Memory],
) -> dict[str, Any]:
    usage = {
        column: sum(units * counts.get(primitive, 0) for primitive, units in primitives.items())
        for column, primitives in COLUMNS.items()
    }
    units = (table_luts, table_registers, block_memories)
    estimated = {
        column: sum(roms.get(file, 0) * unit(memory) for file, memory in memories.items())
        for column, unit in zip(ROM_COLUMNS, units, strict=True)
    }
    return {"module": module, "instances": counts["instances"], **usage, **estimated}


def _primitives(kind: str, cells: _Cells) -> Counter[str]:
    """Counts the primitives of a cell, those of the modules in it included."""
    if kind not in cells:
        return Counter({kind: 1})
    counts: Counter[str] = Counter()
    for inner, count in cells[kind].items():
        counts.update({name: count * n for name, n in _primitives(inner, cells).items()})
    return counts


def _run(
    folder: Path, top: str, script: str, sources: Sequence[Path], work: Path, seconds: float
) -> _Cells:
    """Counts the cells of each kind in each module after a Yosys script."""
    out = work / "stat.txt"
    script = script.format(read=_read(folder, sources, work), top=top, out=out)
    done = run([tool_path("yosys"), "-q", "-p", script], folder, seconds)
    try:
        done.check_returncode()
    except subprocess.CalledProcessError as error:
        reason = first_error(error)
        raise ConfigError(f"Yosys does not accept the design: {reason}") from error
    return _parse_statistics(out.read_text())


def _read(folder: Path, sources: Sequence[Path], work: Path) -> str:
    """Returns the commands that read sources, with `chop_rom` as a black box."""
    box = work / "black_box.sv"
    roms = [source for source in sources if source.stem == ROM]
    box.write_text("".join(_BODY.sub(");\nendmodule", source_text(rom)) for rom in roms))
    # Yosys splits paths at blanks, which the folder may have.
    others = [
        source.relative_to(folder) if source.is_relative_to(folder) else source
        for source in sources
        if source not in roms
    ]
    return f"{read_command([box], '-lib')}; {read_command(others)}"


def _parse_statistics(text: str) -> _Cells:
    r"""Parses the cell counts of each module from the output of Yosys' command `stat`.

    >>> _parse_statistics("=== top ===\n\n   Number of cells:  3\n     LUT2  1\n     FDRE  2\n")
    {'top': Counter({'FDRE': 2, 'LUT2': 1})}
    """
    sections = re.split(r"^=== (.+) ===$", text, flags=re.MULTILINE)[1:]
    modules = {}
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        if name != "design hierarchy":
            listed = section.partition("Number of cells:")[2].partition("\n")[2]
            rows = re.findall(r"^ {5}(\S+) +(\d+)$", listed, re.MULTILINE)
            modules[name] = Counter({kind: int(count) for kind, count in rows})
    return modules
