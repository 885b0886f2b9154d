"""Files of a compressed model: checkpoint, transformers folder, ONNX file and graph picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop import passes
from chop.actions.bench.ways import LARGEST_PEER, why_not
from chop.actions.compress.page import charts_of_model
from chop.actions.compress.sensitivity import exact_weights
from chop.actions.compress.table import Candidate
from chop.base.files import discard_older
from chop.base.files.temporary import scratch_folder
from chop.export.onnx.files import DATA
from chop.ir.graph import MaseGraph
from chop.nn.packed import why_not_packable
from chop.quantization.summary import layer_rows
from chop.report.charts.chart import Chart
from chop.report.report import announce, say
from chop.studies.model import weight_bytes
from chop.workloads.hf_folder import write_model_folder, write_processor
from chop.workloads.workload import Workload

if TYPE_CHECKING:
    from chop.actions.compress.settings import CompressConfig

MODEL_FILES = ("model.pt", "model.mz")
"""Tensors, and the graph with its metadata."""
ONNX_FILE = "model.onnx"
GRAPH_FILE = "graph.svg"


@dataclass(frozen=True)
class Saved:
    """The saved model.

    Attributes:
        chosen: the measured candidate.
        layers: weight errors, one row per layer.
        charts: histograms and the graph, for the page.
        packed: the graph with packed weights.
        packed_share: share of packed parameters, 0 to 1.
        float_layers: other parameters: path, kind, elements and reason.
        folder: folder of the files.
        why_no_folder: reason why there is no transformers folder; None if there is one.
        onnx: facts about the ONNX file; None if there is none.
        why_no_onnx: reason why there is none, if its speed would be measured.
    """

    chosen: Candidate
    layers: list[dict[str, Any]]
    charts: list[Chart]
    packed: MaseGraph
    packed_share: float
    float_layers: list[dict[str, Any]]
    folder: Path
    why_no_folder: str | None
    onnx: dict[str, Any] | None
    why_no_onnx: str


def save_model(
    exact: Candidate, chosen: Candidate, workload: Workload, config: CompressConfig, folder: Path
) -> Saved:
    """Writes a measured model and its picture.

    Args:
        exact: the float model.
        chosen: the model to save.
        workload: title of the run, and rows for the charts of inputs.
        config: settings of the job.
        folder: folder for the files.
    Raises:
        WriteError: if the disk is full or read-only.
    """
    announce(workload.title, "saving the model and measuring its speed")
    weights = exact_weights(config.method, chosen.row.method, exact.graph)
    layers = [dataclasses.asdict(row) for row in layer_rows(chosen.graph, weights)]
    # The charts run the model and the tokenizer is loaded before packed weights take memory.
    charts = charts_of_model(layers, chosen.graph, workload.example())
    why_no_folder = write_processor(chosen.graph, config, folder)
    packed, share, float_layers = _packed(chosen.graph)
    why_no_folder = write_model_folder(packed, folder, why_no_folder)
    packed.export(folder / "model")
    onnx, why_no_onnx = _write_onnx(chosen.graph, folder / ONNX_FILE, config)
    names = (ONNX_FILE, f"{ONNX_FILE}{DATA}")
    discard_older(folder, *(name for name in names if not (folder / name).is_file()))
    packed.draw(folder / GRAPH_FILE)
    return Saved(
        chosen=chosen,
        layers=layers,
        charts=charts,
        packed=packed,
        packed_share=share,
        float_layers=float_layers,
        folder=folder,
        why_no_folder=why_no_folder,
        onnx=onnx,
        why_no_onnx=why_no_onnx,
    )


def _packed(mg: MaseGraph) -> tuple[MaseGraph, float, list[dict[str, Any]]]:
    """Returns the graph with packed weights, their share, and the float layers."""
    if not any(why_not_packable(module) is None for module in mg.model.modules()):
        return mg, 0.0, []
    packed, info = passes.pack_transform_pass(mg.sharing_copy(), {"silent": True}, inplace=True)
    names = ("layer", "kind", "elements", "why_float", "parameters")
    floats = [{n: row[n] for n in names} for row in info["rows"] if row["why_float"]]
    return packed, info["packed_share"], floats


def _write_onnx(
    mg: MaseGraph, path: Path, config: CompressConfig
) -> tuple[dict[str, Any] | None, str]:
    """Exports a graph and describes which of its formats are integers or floats in ONNX.

    Without --onnx the file is written only if all its formats can be integers.

    Returns: facts about the file, or None if there is none; and the reason for a missing file if
        its speed would be measured.
    """
    if config.onnx is None:
        return _write_onnx_if_possible(mg, path) if config.bench_seconds else (None, "")
    if not config.onnx:
        return None, "--no-onnx skips the file"
    _, info = passes.export_onnx_interface_pass(mg, {"path": path, "float_fallback": True})
    if info["fallback"]:
        say(f"{path.name}: {len(info['fallback'])} operands are floats: ONNX lacks their formats.")
    return _about_onnx(info), ""


def _write_onnx_if_possible(mg: MaseGraph, path: Path) -> tuple[dict[str, Any] | None, str]:
    size = weight_bytes(mg.model)
    if size > LARGEST_PEER:
        return None, f"its float weights are {size / 1e9:.1f} GB; --onnx writes the file anyway"
    try:
        _, info = passes.export_onnx_interface_pass(_on_cpu(mg), {"path": path})
    except Exception as error:  # exporters share no error class
        return None, why_not(error)
    return _about_onnx(info), ""


def _on_cpu(mg: MaseGraph) -> MaseGraph:
    """Returns the graph, or a copy if it is on another device."""
    if all(x.device.type == "cpu" for x in mg.model.state_dict().values()):
        return mg
    mg = mg.copy()
    mg.model.cpu()
    return mg


def _about_onnx(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in ("quantized", "fallback", "size_bytes", "session_config")}


def exported_bytes(mg: MaseGraph) -> dict[str, int]:
    """Returns the file sizes of a graph's checkpoint in bytes."""
    with scratch_folder("sizes") as folder:
        mg.export(folder / "model")
        return file_bytes(folder)


def file_bytes(folder: Path) -> dict[str, int]:
    """Returns the sizes of a checkpoint's files in bytes."""
    return {name: (folder / name).stat().st_size for name in MODEL_FILES}
