"""Modules that a circuit's top module instantiates."""

from __future__ import annotations

from typing import Any

from chop.hardware.settings import EmitSettings
from chop.ir.graph import MaseGraph
from chop.passes.base import MASE_KEYS, graph_pass


@graph_pass(
    config=EmitSettings,
    requires=("add_common_metadata_analysis_pass",),
    takes_packed=True,
    ignores=MASE_KEYS,
)
def emit_internal_rtl_transform_pass(mg: MaseGraph, config: EmitSettings) -> dict[str, Any]:
    """Writes the modules below the top module of the graph's circuit, `rtl/NAME.sv`.

    `hardware/rtl`, MASE's path of the sources, is a link to the project's `rtl`.

    Returns:
        project_dir: the folder.
        modules: names of the files.

    Raises:
        ConfigError: if the graph has no integer form, or operators have no circuit.
        WriteError: if the folder cannot be written to.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.check.project import link_sources, write_design
    from chop.hardware.design.design import top_path
    from chop.hardware.design.emit import emit

    design = emit(mg, config.fold, config.top_name)
    own = {top_path(design.top), *design.memories}
    paths = [path for path in design.files if path not in own]
    write_design(design, config.project_dir, paths)
    link_sources(config.project_dir)
    modules = [path.removeprefix("rtl/") for path in paths]
    return {"project_dir": config.project_dir, "modules": modules}
