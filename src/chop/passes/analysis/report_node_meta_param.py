"""Table of the metadata of each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from chop.base.tables import print_table
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import Record
from chop.passes.base import graph_pass

Which = Literal["common", "software", "hardware"]
SECTIONS: tuple[Which, ...] = ("common", "software", "hardware")


@dataclass(frozen=True)
class ReportMetadataConfig:
    """Settings of `report_node_meta_param_analysis_pass`.

    Attributes:
        which: metadata to show; `("all",)` shows everything.
        save_path: additional text file for the table.
    """

    which: tuple[Which | Literal["all"], ...] = ("all",)
    save_path: Path | None = None


@graph_pass(config=ReportMetadataConfig, requires=("init_metadata_analysis_pass",))
def report_node_meta_param_analysis_pass(
    mg: MaseGraph, config: ReportMetadataConfig
) -> dict[str, Any]:
    """Prints a table of metadata with a row per node.

    Returns:
        rows: one dict per node: its name, operator and type, and the chosen metadata as plain
            nested dicts. Tensors are described rather than copied.
    """
    chosen = [section for section in SECTIONS if section in config.which or "all" in config.which]
    rows = []
    for node in mg.nodes:
        metadata, row = node_metadata(node), mg.operator(node)
        entry: dict[str, Any] = {section: _plain(metadata[section]) for section in chosen}
        names = {"node": node.name, "operator": row.name, "mase_type": row.mase_type}
        rows.append({**names, **entry})
    texts = [{**row, **{section: _as_text(row[section]) for section in chosen}} for row in rows]
    columns = ("node", "operator", "mase_type", *chosen)
    print_table("Node metadata", texts, columns, config.save_path)
    return {"rows": rows}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {value.dtype}"
    return value


def _as_text(value: Any, indent: str = "") -> str:
    """Formats nested dicts as indented lines."""
    lines = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            lines += [f"{indent}{name}:", _as_text(item, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {item}")
    return "\n".join(lines)
