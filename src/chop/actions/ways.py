"""Ways to run a compressed model: as it was saved, frozen, compiled, and by other engines."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from chop import passes
from chop.bench.outputs import copied, largest_difference
from chop.bench.timing import surroundings
from chop.errors import UnavailableError, enumerate_names, first_line, shorten
from chop.export.onnx import session
from chop.export.onnx.qdq import MissingFormsError
from chop.export.onnx.session import Run
from chop.installed import require
from chop.ir.graph import MaseGraph
from chop.notices import at_level

SAVED, COMPILED = "compressed", "compiled"
"""The names of the saved model in tables, and of one that takes long to make."""
LOADED = "MaseGraph.from_checkpoint('{folder}/model')"
RUNNING = "running it"
ONNX = "{folder}/model.onnx, which chop compress --onnx writes"
MOST_FORMATS = 3
FROZEN = f"freeze_transform_pass({LOADED}"


@dataclass(frozen=True)
class Way:
    """One way to run a model.

    Attributes:
        make: takes the packed graph and gives what is called with inputs by name; what it raises
            says why not.
        command: how a user does it, with `{folder}` for the output folder.
        is_on_cpu: it runs on CPUs only.
    """

    make: Callable[[MaseGraph], nn.Module]
    command: str
    is_on_cpu: bool = False


class Engine(nn.Module):
    """A file that another library runs, called as a module; outputs are in the file's order.

    Args:
        opened: makes of the file what takes inputs by name and gives the outputs.
        mg: the graph, which becomes a file.

    Attributes:
        file_bytes: its size.
    """

    def __init__(self, opened: Callable[[Path], Run], mg: MaseGraph) -> None:
        super().__init__()
        # What is logged is about a file that is kept.
        with (
            tempfile.TemporaryDirectory() as folder,
            at_level(logging.ERROR, "chop.export.onnx.export"),
        ):
            # Batches are whole texts, and outputs are compared with those of the graph in order.
            settings = {"path": Path(folder) / "model.onnx", "cache": False}
            _, info = passes.export_onnx_interface_pass(mg.sharing_copy(), settings)
            self.run, self.file_bytes = opened(info["path"]), info["size_bytes"]

    def forward(self, **inputs: Tensor) -> list[Tensor]:
        """The outputs for inputs by name."""
        return self.run(inputs)


def make_ways(
    mg: MaseGraph,
    names: Sequence[str],
    device: str,
    batches: Sequence[Mapping[str, Tensor]],
    threads: int,
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """A compressed model in some ways, in evaluation, each of which has run every batch once.

    Args:
        mg: the packed graph; it stays as it is.
        names: of `WAYS`.
        device: where it runs.
        batches: inputs by name.
        threads: of torch and of engines.
    Returns: what is called, by name; and for each other way why it is not there, in a sentence.
    """
    made, missing = {}, {}
    with surroundings(threads, inference=True):
        expected = [copied(mg.model(**inputs)) for inputs in batches]
        for name in names:
            try:
                if WAYS[name].is_on_cpu and torch.device(device).type != "cpu":
                    raise UnavailableError(f"it runs on the CPU, not on {device}.")
                with torch.inference_mode(False):
                    model = WAYS[name].make(mg).eval()
                for inputs, right in zip(batches, expected, strict=True):
                    largest_difference(copied(model(**inputs)), right, name)
                made[name] = model
            except Exception as error:
                # Engines and compilers have no class of errors in common; what was compressed
                # is not to be lost for one of them.
                missing[name] = _why_not(error)
    return made, missing


def _why_not(error: Exception) -> str:
    if isinstance(error, MissingFormsError):
        return f"ONNX has no form in integers of {enumerate_names(error.formats, MOST_FORMATS)}"
    return shorten(first_line(error))


def _frozen(mg: MaseGraph) -> nn.Module:
    frozen, _ = passes.freeze_transform_pass(mg)
    model: nn.Module = frozen.model
    return model


def _compiled(mg: MaseGraph) -> nn.Module:
    _, info = passes.freeze_transform_pass(mg, {"compile": True})
    model: nn.Module = info["compiled"]
    return model


def _in_onnxruntime(mg: MaseGraph) -> nn.Module:
    require(RUNNING, "onnxruntime", extra="onnx")
    return Engine(session.opened, mg)


def _in_openvino(mg: MaseGraph) -> nn.Module:
    require(RUNNING, "openvino", extra="openvino")
    return Engine(session.opened_by_openvino, mg)


WAYS = {
    "frozen": Way(_frozen, f"{FROZEN})"),
    COMPILED: Way(_compiled, f"{FROZEN}, {{'compile': True}})[1]['compiled']"),
    "onnxruntime": Way(
        _in_onnxruntime, f"onnxruntime with {ONNX}, and the session entries that it prints", True
    ),
    "openvino": Way(_in_openvino, f"OpenVINO with {ONNX}", True),
}
"""Beside the saved model itself, by name."""
COMMANDS = {SAVED: LOADED, **{name: way.command for name, way in WAYS.items()}}
"""How a user runs each of them."""
