"""Backends for a compressed model: frozen, compiled, and other engines."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from chop import passes
from chop.base.files.temporary import scratch_folder
from chop.base.installed import require
from chop.base.notices import at_level
from chop.base.trust import confirmation
from chop.bench.outputs import copied, largest_difference
from chop.bench.record import format_bytes
from chop.bench.timing import surroundings
from chop.errors import UnavailableError, enumerate_names, first_line, shorten
from chop.export.graphs.cache import has_cache
from chop.export.onnx import session
from chop.export.onnx.files import DATA
from chop.export.onnx.qdq import MissingFormsError
from chop.export.onnx.session import Run
from chop.ir.graph import MaseGraph
from chop.quantization.compilation import compiled_model
from chop.studies.model import weight_bytes

SAVED, COMPILED, ONNXRUNTIME = "compressed", "compiled", "onnxruntime"
"""Names of the saved model, of the compiled one and of onnxruntime in tables."""
LOADED = "MaseGraph.from_checkpoint('{folder}/model')"
RUNNING = "running it"
ONNX = "{folder}/model.onnx"
MOST_FORMATS = 3
NO_FORM = "ONNX has no integer form of"
LARGEST_PEER = 2 * 10**9
"""Maximum size of float weights in bytes for a float file that is only measured."""
FROZEN = f"freeze_transform_pass({LOADED}"


@dataclass(frozen=True)
class Backend:
    """Backend that runs a model.

    Attributes:
        make: function from the packed graph and its ONNX file, if any, to a module with inputs by
            name; raises if the backend is not available.
        command: code for users, with `{folder}` for the output folder.
        is_onnx: runs an ONNX file on the CPU.
        make_float: function from the float graph to a module in the same engine. None: the engine
            is PyTorch, which runs the float model itself.
        peer: name of the float model in the same engine.
    """

    make: Callable[[MaseGraph, Path | None], nn.Module]
    command: str
    is_onnx: bool = False
    make_float: Callable[[MaseGraph], nn.Module] | None = None
    peer: str = ""


class Engine(nn.Module):
    """Module that runs an ONNX file in another engine. Outputs have the order of the file.

    Args:
        opened: function that opens the file and returns a function from inputs by name to outputs.
        mg: graph to export.
        file: existing file of the graph. Default: a temporary one.

    Attributes:
        file_bytes: its size.
    """

    def __init__(
        self, opened: Callable[[Path], Run], mg: MaseGraph, file: Path | None = None
    ) -> None:
        super().__init__()
        if file is not None:
            self.run, self.file_bytes = opened(file), _size_of_file(file)
            return
        # Logs would refer to a temporary file.
        with (
            scratch_folder("export") as folder,
            at_level(logging.ERROR, "chop.export.onnx.export"),
        ):
            # Batches are whole texts, and outputs are compared with those of the graph in order.
            settings = {"path": folder / "model.onnx", "cache": False}
            _, info = passes.export_onnx_interface_pass(mg.sharing_copy(), settings)
            self.run, self.file_bytes = opened(info["path"]), info["size_bytes"]

    def forward(self, **inputs: Tensor) -> list[Tensor]:
        """Returns the outputs for inputs by name."""
        return self.run(inputs)


def _size_of_file(path: Path) -> int:
    """Returns the bytes of an ONNX file with its external weights."""
    beside = path.with_name(path.name + DATA)
    return sum(file.stat().st_size for file in (path, beside) if file.is_file())


def build_backends(
    mg: MaseGraph,
    names: Sequence[str],
    device: str,
    batches: Sequence[Mapping[str, Tensor]],
    threads: int,
    onnx: Path | None = None,
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Builds a compressed model in several backends, in evaluation mode, and runs every batch once.

    Args:
        mg: the packed graph, unchanged.
        names: keys of `BACKENDS`.
        device: torch device.
        batches: inputs by name.
        threads: threads of torch and of engines.
        onnx: file of the graph, if it was written; files with a key-value cache have other inputs
            and are not used.
    Returns: modules by name; and the reason for each missing backend.
    """
    made, missing = {}, {}
    file = None if onnx is None or has_cache(mg) else onnx
    with surroundings(threads, inference=True):
        expected = [copied(mg.model(**inputs)) for inputs in batches]
        for name in names:
            try:
                if BACKENDS[name].is_onnx and torch.device(device).type != "cpu":
                    raise UnavailableError(f"it runs on the CPU, not on {device}.")
                with torch.inference_mode(False):
                    model = BACKENDS[name].make(mg, file).eval()
                for inputs, right in zip(batches, expected, strict=True):
                    largest_difference(copied(model(**inputs)), right, name)
                made[name] = model
            except Exception as error:
                # Engines and compilers share no error class, and a failing one must not lose the
                # compressed model.
                missing[name] = why_not(error)
    return made, missing


def make_peers(
    exact: MaseGraph,
    names: Iterable[str],
    batches: Sequence[Mapping[str, Tensor]],
    threads: int,
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Builds the float model in other engines, as the baseline for their speed.

    Args:
        exact: the float graph, unchanged.
        names: names in `BACKENDS`. Those in PyTorch have the float model itself.
        batches: inputs by name.
        threads: number of threads of torch and of engines.
    Returns: callable models by `Backend.peer`, and a reason for each peer that is not available.
    """
    made, missing = {}, {}
    backends = [BACKENDS[name] for name in names]
    size = weight_bytes(exact.model)
    with surroundings(threads, inference=True):
        for backend in backends:
            if backend.make_float is None:
                continue
            try:
                if size > LARGEST_PEER:
                    raise UnavailableError(f"its weights are {format_bytes(size)}.")
                with torch.inference_mode(False):
                    model = backend.make_float(exact).eval()
                for inputs in batches:
                    model(**inputs)
                made[backend.peer] = model
            except Exception as error:  # as above
                missing[backend.peer] = why_not(error)
    return made, missing


def why_not(error: Exception) -> str:
    """Shortens an error to the reason why a backend is not available."""
    if isinstance(error, MissingFormsError):
        return f"{NO_FORM} {enumerate_names(error.formats, MOST_FORMATS)}"
    return shorten(first_line(error))


def _frozen(mg: MaseGraph, file: Path | None) -> nn.Module:
    frozen, _ = passes.freeze_transform_pass(mg)
    model: nn.Module = frozen.model
    return model


def _compiled(mg: MaseGraph, file: Path | None) -> nn.Module:
    _, info = passes.freeze_transform_pass(mg, {"compile": True})
    model: nn.Module = info["compiled"]
    return model


def _compiled_float(exact: MaseGraph) -> nn.Module:
    model: nn.Module = compiled_model(exact.model)
    return model


def _in_onnxruntime(mg: MaseGraph, file: Path | None = None) -> nn.Module:
    require(RUNNING, ONNXRUNTIME, extra="")
    return Engine(session.opened, mg, file)


def _in_openvino(mg: MaseGraph, file: Path | None = None) -> nn.Module:
    require(RUNNING, "openvino", extra="openvino")
    return Engine(session.opened_by_openvino, mg, file)


BACKENDS = {
    "frozen": Backend(_frozen, f"{FROZEN})"),
    COMPILED: Backend(
        _compiled,
        f"{FROZEN}, {{'compile': True}})[1]['compiled']",
        make_float=_compiled_float,
        peer="float compiled",
    ),
    ONNXRUNTIME: Backend(
        _in_onnxruntime,
        f"chop.export.onnx.session.opened('{ONNX}')",
        is_onnx=True,
        make_float=_in_onnxruntime,
        peer="float in onnxruntime",
    ),
    "openvino": Backend(
        _in_openvino,
        f"chop.export.onnx.session.opened_by_openvino('{ONNX}')",
        is_onnx=True,
        make_float=_in_openvino,
        peer="float in openvino",
    ),
}
"""Backends by name, in addition to the saved model itself."""
COMMANDS = {SAVED: LOADED, **{name: each.command for name, each in BACKENDS.items()}}
"""Code for users by backend."""


def in_folder(template: str, folder: str | Path) -> str:
    """Fills a folder into a line of `COMMANDS`, quoted for Python.

    >>> print(in_folder(LOADED, "runs/it's"))
    MaseGraph.from_checkpoint("runs/it's/model")
    """
    quoted = re.sub(r"'{folder}([^']*)'", lambda match: repr(f"{folder}{match[1]}"), template)
    return quoted.replace("{folder}", str(folder))


def bench_command(folder: str | Path, model: str = "") -> str:
    """Returns the shell command that measures the model in a folder of `chop compress`.

    Args:
        folder: output folder of the run.
        model: original model; user code needs an option.

    >>> bench_command("my runs/a", "net.py:Net")
    "chop bench model 'my runs/a' --trust-code"
    """
    return f"chop bench model {shlex.quote(str(folder))}{confirmation(model)}"
