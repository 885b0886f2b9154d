"""Designs of several operators under all stalls, and the marker of tests that need the tools."""

from typing import NamedTuple

import pytest
from torch import Tensor

from chop.hardware.check import profiles as stalls
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Check, check_sources, run_check
from chop.hardware.design.design import Design
from chop.hardware.design.emit import emit
from chop.integer.golden import golden_values
from chop.testing.circuit_bench import PROFILES, Bench, CompiledBench, check_module
from chop.testing.components import Case, Driven, check_interval, planned_cycles
from chop.testing.components import check_component as check
from chop.testing.components import draw_codes as drawn

__all__ = [
    "PROFILES",
    "TOOLS",
    "Bench",
    "Case",
    "CompiledBench",
    "Driven",
    "check",
    "check_graph",
    "check_interval",
    "check_module",
    "drawn",
    "needs_tools",
    "planned_cycles",
]

TOOLS = ("iverilog", "verilator", "yosys")
needs_tools = pytest.mark.tools(*TOOLS)


class Built(NamedTuple):
    """A circuit, its outputs, and its cycles where nothing stalls."""

    design: Design
    outputs: Tensor
    interval: float
    latency: int


def check_graph(integer, batch, fold, folder, simulator="icarus") -> Built:
    """Asserts that the circuit of a graph of integers computes what the graph does.

    Args:
        integer: the graph, of one output.
        batch: its inputs by name.
        fold: most cycles for a sample.
        folder: an empty one.
        simulator: that runs the circuit under each profile of stalls.
    """
    design = emit(integer, fold=fold)
    assert dict(emit(integer, fold=fold).files) == dict(design.files)
    project, golden = describe_project(design), golden_values(integer, batch)
    codes = get_codes(project, golden)
    write_circuit(design, codes, folder)
    check_sources(folder, project)
    (outputs,) = (value for name, value in golden.items() if name.startswith("outputs."))
    count = len(next(iter(codes.values())))
    runs = {
        profile.name: run_check(folder, project, codes, Check(simulator, profile, count, 1))
        for profile in stalls.PROFILES
    }
    assert {found.equal for found in runs.values()} == {outputs.numel()}
    return Built(design, outputs, runs["none"].interval, runs["none"].latency)
