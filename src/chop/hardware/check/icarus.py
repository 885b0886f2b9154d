"""Simulation in Icarus Verilog with the self-checking testbench."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from chop.base.files.temporary import scratch_folder
from chop.hardware.check.project import list_sources
from chop.hardware.check.simulation import Simulation, Stimulus
from chop.hardware.check.testbench import (
    VECTORS,
    BenchRun,
    compile_testbench,
    run_testbench,
    testbench,
    vectors,
)
from chop.hardware.design.plan import RTL
from chop.hardware.design.verilog import sources
from chop.hardware.harness.top import AXI, CHECK, SIMULATION, simulation_top, violated_streams

TESTBENCH = "testbench"
PROGRAM = "simulation.vvp"
DIFFERENCE = r"^(\w+): sample (\d+), place (\d+): expected (-?\d+), got (-?\d+)$"
PROBLEM = r"^(?:\w+: (?:broke the rules|a beat too many)|timeout) .*$"
"""Lines in which a testbench reports stream errors."""


def simulate_by_icarus(stimulus: Stimulus) -> Simulation:
    """Compiles and runs the testbench in a folder with the project's memories.

    Raises:
        UnavailableError: if Icarus is not installed.
        ChopError: if it rejects a source.
    """
    project = stimulus.project
    with scratch_folder("icarus") as work:
        for part in stimulus.folder.iterdir():
            # Icarus reads memories relative to its working folder. Only the vectors are written
            # anew.
            if part.name != VECTORS:
                (work / part.name).symlink_to(part.absolute())
        (work / VECTORS).mkdir()
        for port in project.ports:
            text = vectors(port, torch.from_numpy(stimulus.beats[port.name]))
            (work / VECTORS / f"{port.name}.hex").write_text(text)
        compile_testbench(work, _sources(work, stimulus), PROGRAM)
        run = run_testbench(work, PROGRAM, stimulus.profile.name, stimulus.seed)
    return _parse_log(stimulus, run)


def _sources(work: Path, stimulus: Stimulus) -> list[Path]:
    """Returns the project's sources and those of the testbench, which are written into `work`."""
    project = stimulus.project
    bench = testbench(
        SIMULATION,
        project.ports,
        stimulus.samples,
        interval=project.interval,
        load=project.load,
    )
    texts = {
        SIMULATION: simulation_top(project),
        TESTBENCH: bench,
    }
    own = {path.name: path for path in list_sources(work)}
    # Later entries replace earlier ones: a module of the project is the one under test.
    checkers = {f"{name}.sv": RTL / f"{name}.sv" for name in (CHECK, *AXI)}
    paths = {**checkers, **sources(bench), **own}
    for module, text in texts.items():
        # The leading dot avoids the names of the linked project files.
        paths[f"{module}.sv"] = work / f".{module}.sv"
        paths[f"{module}.sv"].write_text(text)
    return list(paths.values())


def _parse_log(stimulus: Stimulus, run: BenchRun) -> Simulation:
    outputs = {port.name: port for port in stimulus.outputs}
    differences = [
        stimulus.difference(outputs[name], *map(int, numbers))
        for name, *numbers in re.findall(DIFFERENCE, run.log, re.MULTILINE)
    ]
    problems = [
        f"inner stream '{name}' withdrew or changed a beat" for name in violated_streams(run.log)
    ]
    problems += re.findall(PROBLEM, run.log, re.MULTILINE)
    if not run.passed and not differences and not problems:
        lines = run.log.splitlines() or ["no message"]
        reason = next((line for line in lines if "FATAL" in line or "ERROR" in line), lines[-1])
        problems.append(f"the testbench stopped: {reason}")
    codes = sum(len(ends) * outputs[n].beats * outputs[n].lanes for n, ends in run.ends.items())
    return stimulus.result("icarus", run.ends, codes, differences, problems)
