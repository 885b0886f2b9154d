"""Stages of a pipeline: a pass and its settings, and the files from which another run resumes.

A stage leaves `01_name.pt` and `01_name.mz`, its graph, and last a line of `stages.jsonl`, which
vouches for them with a key: the digest of the first graph and of all stages up to this one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

import chop.passes
from chop import runs
from chop.errors import CheckpointError, check_known
from chop.ir.graph import MaseGraph
from chop.passes import PASSES

log = logging.getLogger(__name__)
Pass = str | Callable[..., tuple[MaseGraph, dict[str, Any]]]
"""A pass or its name."""
MOST_NUMBERS = 10_000
"""Larger tensors among the findings, such as recorded activations, are only described."""


@dataclass(frozen=True)
class Stage:
    """One pass and its settings.

    Attributes:
        name: the pass.
        function: what is called.
        config: its settings; None for none.
    """

    name: str
    function: Callable[..., tuple[MaseGraph, dict[str, Any]]]
    config: Any = None

    @classmethod
    def of(cls, step: Pass | tuple[Pass, Any] | Stage) -> Stage:
        """From a pass or its name, alone or with settings.

        Raises:
            ConfigError: there is no pass of that name; the message names the nearest.
        """
        if isinstance(step, Stage):
            return step
        chosen, config = step if isinstance(step, tuple) else (step, None)
        if callable(chosen):
            return cls(getattr(chosen, "__name__", type(chosen).__name__), chosen, config)
        # MASE's functions that are no passes here, but may be listed.
        others = {name: x for name, x in vars(chop.passes).items() if name.endswith("_pass")}
        check_known(chosen, {*PASSES, *others}, "no pass is called")
        return cls(chosen, PASSES[chosen] if chosen in PASSES else others[chosen], config)

    def run(self, mg: MaseGraph) -> tuple[MaseGraph, dict[str, Any]]:
        """Runs the pass."""
        return self.function(mg) if self.config is None else self.function(mg, self.config)


class StageJournal:
    """The files of one pipeline in one folder.

    Args:
        folder: made if missing.
        mg: the graph that goes in.
        stages: what is done with it.
        allow: see `MaseGraph.from_checkpoint`.
    """

    def __init__(
        self, folder: Path, mg: MaseGraph, stages: Sequence[Stage], allow: Iterable[Any]
    ) -> None:
        self.folder, self.allow = folder, tuple(allow)
        self.device = next(mg.model.parameters(), torch.empty(0)).device
        self.paths = [folder / f"{i:02}_{stage.name}" for i, stage in enumerate(stages, start=1)]
        self.keys = list(_keys(mg, stages))
        self.journal = runs.Journal(folder / "stages.jsonl")

    def resume(self) -> tuple[MaseGraph, list[Any]] | None:
        """The graph after the last stage that is done, and the findings of all up to it."""
        infos = list(self._finished())
        while infos:
            try:
                path = self.paths[len(infos) - 1]
                mg = MaseGraph.from_checkpoint(path, allow=self.allow)
                mg.model.to(self.device)
                return mg, infos
            except CheckpointError as error:
                log.warning("stage %d runs again: %s", len(infos), error)
                infos.pop()
        return None

    def record(self, index: int, mg: MaseGraph, info: Any) -> None:
        """Writes down a stage that is done; what was known of later ones is void."""
        for path in self.paths[index:]:
            self.journal.remove({"stage": path.name})
        mg.export(self.paths[index])
        entry = {"key": self.keys[index], "info": findings_as_json(info)}
        self.journal.add({"stage": self.paths[index].name}, entry)

    def _finished(self) -> Iterator[Any]:
        for path, key in zip(self.paths, self.keys, strict=True):
            entry = self.journal.find({"stage": path.name}, lambda entry: "info" in entry)
            if entry is None or entry.get("key") != key:
                return
            yield entry["info"]


def stages_as_json(stages: Sequence[Stage]) -> dict[str, Any]:
    """The passes and their settings for a manifest; tensors, such as batches, are described."""
    tables = [{"pass": stage.name, "config": stage.config} for stage in stages]
    found: dict[str, Any] = runs.as_json({"stages": tables}, _shape_or_class)
    return found


def findings_as_json(value: Any) -> Any:
    """What JSON can hold of a pass's findings; small tensors are lists."""
    return runs.as_json(value, _describe)


def _describe(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return runs.class_name(value)
    if value.numel() > MOST_NUMBERS:
        return _shape_or_class(value)
    return runs.as_json(value.tolist())


def _shape_or_class(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {value.dtype}"
    return runs.class_name(value)


def _keys(mg: MaseGraph, stages: Sequence[Stage]) -> Iterator[str]:
    digest = hashlib.sha256()
    for part in _graph_parts(mg):
        digest.update(part)
    for stage in stages:
        for part in _parts(stage.name, stage.config):
            digest.update(part)
        yield digest.hexdigest()


def _graph_parts(mg: MaseGraph) -> Iterator[bytes]:
    """Nodes, modules and tensors; not the provenance, which has example inputs in it."""
    model = mg.model
    for node in mg.nodes:
        called = getattr(node.target, "__qualname__", node.target)
        yield f"{node.name} {node.op} {called} {node.args} {node.kwargs}".encode()
    yield f"{model} {model.training}".encode()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield from _parts(name, tensor.requires_grad, tensor)


def _parts(*values: Any) -> Iterator[bytes]:
    """The content of settings; for what has none that can be compared, something unique."""
    for value in values:
        yield type(value).__name__.encode()
        if isinstance(value, runs.PLAIN):
            yield repr(value).encode()
        elif isinstance(value, Mapping):
            yield from _parts(*(part for item in value.items() for part in item))
        elif isinstance(value, list | tuple):
            yield from _parts(len(value), *value)
        elif isinstance(value, Tensor):
            yield f"{tuple(value.shape)} {value.dtype}".encode()
            flat = value.detach().cpu().contiguous().flatten()
            yield flat.view(torch.uint8).numpy().tobytes()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _parts(*(getattr(value, f.name) for f in dataclasses.fields(value)))
        elif isinstance(value, type | FunctionType | Path | torch.dtype):
            yield str(getattr(value, "__qualname__", value)).encode()
        else:
            yield uuid.uuid4().bytes
