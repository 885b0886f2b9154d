"""Top module of a circuit."""

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
def emit_verilog_top_transform_pass(mg: MaseGraph, config: EmitSettings) -> dict[str, Any]:
    """Writes the top module of the graph's circuit, `rtl/TOP.sv`, and `design.json`.

    Every integer operator becomes an instance of its component, with forks, lane converters and
    FIFOs in between. A quantized graph is lowered to integers first, in a copy.

    `hardware/rtl`, MASE's path of the sources, is a link to the project's `rtl`.

    Returns:
        project_dir: the folder.
        components: number of instances.
        interval: cycles between two samples without stalls.

    Raises:
        ConfigError: if the graph has no integer form, or operators have no circuit.
        WriteError: if the folder cannot be written to.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.check.project import link_sources, write_design
    from chop.hardware.design.emit import emit

    design = emit(mg, config.fold, config.top_name)
    write_design(design, config.project_dir, [f"rtl/{config.top_name}.sv"])
    link_sources(config.project_dir)
    parts = len(design.netlist.instances)
    return {
        "project_dir": config.project_dir,
        "components": parts,
        "interval": design.interval,
    }
