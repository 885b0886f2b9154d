"""Programs for `tests/test_killed_commands.py` that run what no command line can ask for in little
time: `python tests/killed_programs.py NAME OUT`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

PAUSE = 0.05


class Points(nn.Module):
    """A model that is emitted in little time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.act(self.first(x)))
        return found


def emit(out: Path, **more: Any) -> None:
    """`chop emit` of a model of its own.

    Args:
        out: its folder.
        more: further settings.
    """
    from chop.actions.emit.job import emit
    from chop.actions.emit.settings import EmitConfig
    from chop.workloads.workload import Workload

    torch.manual_seed(0)
    x, labels = torch.randn(60, 4), torch.arange(60) % 2
    rows = (x[:40], labels[:40]), (x[40:], labels[40:])
    settings: dict[str, Any] = {"samples": 4, "icarus_samples": 0, "synthesis": False}
    config = EmitConfig(out=out, fold=12, calibration_rows=40, force=True, **settings | more)
    emit(config, Workload.of(Points(), *rows, device="cpu"))


def build(out: Path) -> None:
    """Native code, in several files."""
    import ctypes

    from chop.base.native import Sources, compiler

    out.mkdir(exist_ok=True)
    files = []
    for number in range(3):
        files.append(out / f"part{number}.cpp")
        text = f'#include <map>\nextern "C" int part{number}() {{ return {number}; }}\n'
        if not files[-1].exists() or files[-1].read_text() != text:
            files[-1].write_text(text)
    found = compiler()
    assert found is not None
    path = Sources("killed", tuple(files)).compiled(found, ("-fPIC",))
    assert ctypes.CDLL(str(path)).part2() == 2


def docs(out: Path) -> None:
    """The site, by a stand-in for Sphinx."""
    import sphinx.cmd.build

    from docs.site import __main__ as site

    def build_main(options: list[str]) -> int:
        made = Path(options[-1])
        made.mkdir(parents=True)
        for number in range(20):
            (made / f"{number}.html").write_text(f"page {number}")
            time.sleep(PAUSE / 2)
        return 0

    sphinx.cmd.build.build_main = build_main
    site.stage = lambda *_: None
    site.links.problems = lambda _: []
    assert not site.build(out, with_runs=False)


def sphinx(out: Path) -> None:
    """The site of a few pages, by Sphinx itself."""
    from docs.site import __main__ as site

    def stage(folder: Path, *_: Any) -> None:
        folder.mkdir()
        names = [f"page{number}" for number in range(40)]
        listed = "\n".join(names)
        (folder / "index.md").write_text(f"# Pages\n\n```{{toctree}}\n\n{listed}\n```\n")
        for name in names:
            (folder / f"{name}.md").write_text(f"# {name}\n\n" + f"`chop {name}` [all](index.md)\n")

    site.stage = stage
    assert not site.build(out, with_runs=False)


def nextpnr(out: Path) -> None:
    """`chop emit --place` by nextpnr itself."""
    emit(out, place=True, place_on="ecp5-25", place_seeds=2)


def place(out: Path) -> None:
    """Placement, by a stand-in for nextpnr."""
    from chop.hardware.check.project import Project
    from chop.hardware.costs import place as placement
    from chop.hardware.design.port import Port

    (out / "rtl").mkdir(parents=True, exist_ok=True)
    (out / "rtl" / "top.sv").write_text("module top; endmodule\n")

    def run(command: list[str], folder: Path, *_: Any) -> Any:
        time.sleep(PAUSE)
        report = {"fmax": {"clk": {"achieved": 50.0}}, "critical_paths": [], "utilization": {}}
        for name, text in (("report.json", json.dumps(report)), ("routed.config", "routed" * 9999)):
            (folder / name).write_text(text)
        (folder / "packed.bit").write_text("packed" * 9999)
        return type("Done", (), {"returncode": 0, "stdout": "", "stderr": ""})

    def synthesize(*given: Any) -> str:
        (given[3] / "netlist.json").write_text('{"modules": {"top": {"cells": {}}}}')
        return "0123456789abcdef"

    placement.run, placement._synthesize = run, synthesize
    placement.tool_versions, placement._command = lambda _: {}, lambda tool: [tool]
    ports = (Port("data_in_0", 1, 8, 1, True), Port("data_out_0", 1, 8, 1, False))
    found = placement.place(out, Project("top", ports, (), 1, {}), "ecp5-25", 5, 2.0)
    assert (out / found["bitstream"]).read_text() == "packed" * 9999


def nothing(out: Path) -> None:
    """Starts and ends."""


STAND_INS = {"docs": docs, "place": place}
PROGRAMS = {"nothing": nothing, "emit": emit, "build": build, "sphinx": sphinx, "nextpnr": nextpnr}
PROGRAMS |= STAND_INS

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
