"""Testbenches of a circuit with input vectors and expected outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch

from chop.base.files import make_folder, write_text
from chop.config import Range, check_fields
from chop.hardware.settings import EmitSettings
from chop.ir.batches import Batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.passes.base import MASE_KEYS, graph_pass

NAME = "emit_cocotb_transform_pass"


@dataclass(frozen=True)
class EmitCocotbConfig(EmitSettings):
    """Settings of `emit_cocotb_transform_pass`.

    Attributes:
        batches: inputs of the model by name, in the sizes of the graph; default, random inputs.
        num_batches: number of random batches if there are no `batches`.
    """

    batches: Batches | None = None
    num_batches: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, NAME)


@graph_pass(
    config=EmitCocotbConfig,
    requires=("add_common_metadata_analysis_pass",),
    takes_packed=True,
    ignores=(*MASE_KEYS, "wait_time", "wait_unit"),
)
def emit_cocotb_transform_pass(mg: MaseGraph, config: EmitCocotbConfig) -> dict[str, Any]:
    """Writes vectors and testbenches of the graph's circuit.

    `vectors/*.hex` has the beats of every port, computed by the integer graph;
    `testbench/testbench.sv` is a self-checking testbench in SystemVerilog, with four profiles of
    stalls; `testbench/test_TOP.py` and `testbench/Makefile` are a test for cocotb 1.9.
    `chop.actions.emit.simulate` runs the vectors through the faster harness.

    Returns:
        project_dir: the folder.
        samples: number of samples in the vectors.

    Raises:
        ConfigError: if the graph has no integer form, or operators have no circuit.
        WriteError: if the folder cannot be written to.
    Warns: nearly all numbers of an input in `batches` are far outside of the range of its format.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.check.cocotb import FOLDER, cocotb_files
    from chop.hardware.check.project import describe_project, write_design
    from chop.hardware.check.testbench import testbench_files
    from chop.hardware.check.vectors import get_codes, write_vectors
    from chop.hardware.design.emit import emit
    from chop.hardware.integer_form import example_batch, integer_form
    from chop.integer.golden import golden_values
    from chop.integer.outside import warn_about_outside

    integer = integer_form(mg)
    design = emit(integer, config.fold, config.top_name)
    inputs = [example_batch(integer, seed) for seed in range(config.num_batches)]
    if config.batches is not None:
        inputs = list(select_inputs(integer, config.batches, f"{NAME}.batches"))
    project = describe_project(design)
    codes_by_batch = [get_codes(project, golden_values(integer, batch)) for batch in inputs]
    if config.batches is not None:
        warn_about_outside(integer, inputs, f"{NAME}.batches")
    codes = {
        port.name: torch.cat([one[port.name] for one in codes_by_batch]) for port in project.ports
    }
    samples = len(codes[project.ports[0].name])
    write_vectors(design, codes, config.project_dir)
    make_folder(config.project_dir / FOLDER)
    bench = testbench_files(
        design.top,
        design.ports,
        samples,
        design.interval,
        design.memories,
        load=project.load,
    )
    for name, text in bench.items():
        write_text(config.project_dir / FOLDER / name, text)
    for path, text in cocotb_files(project, samples).items():
        write_text(config.project_dir / path, text)
    write_design(design, config.project_dir, ())
    return {"project_dir": config.project_dir, "samples": samples}
