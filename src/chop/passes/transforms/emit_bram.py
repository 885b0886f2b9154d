"""Contents of a circuit's read-only memories."""

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
def emit_bram_transform_pass(mg: MaseGraph, config: EmitSettings) -> dict[str, Any]:
    """Writes weights, biases and tables of the graph's circuit, `memory/*.hex`, for `$readmemh`.

    Returns:
        project_dir: the folder.
        memories: names of the files.
        bits: size of all memories.

    Raises:
        ConfigError: if the graph has no integer form, or operators have no circuit.
        WriteError: if the folder cannot be written to.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.check.project import write_design
    from chop.hardware.design.emit import emit

    design = emit(mg, config.fold, config.top_name)
    paths = [path for path in design.files if path.startswith("memory/")]
    write_design(design, config.project_dir, paths)
    memories = [
        memory for part in design.netlist.instances for memory in part.plan.memories.values()
    ]
    return {
        "project_dir": config.project_dir,
        "memories": [path.removeprefix("memory/") for path in paths],
        "bits": sum(memory.bits for memory in memories),
    }
