"""Synthesis results of a project from Yosys, under MASE's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.errors import ConfigError, describe
from chop.hardware.settings import PROJECT, TOP
from chop.ir.graph import MaseGraph

TARGETS = ("xc7",)


def get_synthesis_results(
    model_name: str = TOP,
    mg: MaseGraph | None = None,
    target: str = TARGETS[0],
    output_dir: str | Path = PROJECT,
) -> dict[str, Any]:
    """Synthesizes the project in a folder and counts its resources.

    Args:
        model_name: name of the top module.
        mg: unused; accepted for compatibility with MASE. The project in the folder is synthesized.
        target: device family: "xc7", Xilinx 7-series FPGAs.
        output_dir: folder of the project.
    Returns: the row of the complete design from `chop.hardware.costs.synth.synthesize`.
    Raises:
        CheckpointError: if the folder has no project.
        ConfigError: if the project has another top module, or the target is not supported.
        UnavailableError: if Yosys is not installed.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.check.project import read_project
    from chop.hardware.costs.synth import synthesize

    if target not in TARGETS:
        raise ConfigError(f"get_synthesis_results: target: got '{target}', expected 'xc7'.")
    folder = Path(output_dir).expanduser()
    project = read_project(folder)
    if project.top != model_name:
        raise ConfigError(
            f"get_synthesis_results: model_name: got {describe(model_name)}, and '{folder}' has "
            f"'{project.top}'."
        )
    (whole,) = (row for row in synthesize(folder, project) if row["module"] == "all")
    return whole
