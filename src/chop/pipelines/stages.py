"""Stages of a pipeline: passes with settings, and the files from which a run resumes.

A stage writes its graph, `01_name.pt` and `01_name.mz`, and last a line of `stages.jsonl`. The line
has a key: the digest of the first graph and of all stages up to this one.
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
from chop.errors import CheckpointError, ConfigError, check_known, describe
from chop.ir.graph import MaseGraph
from chop.passes import PASSES

log = logging.getLogger(__name__)
Pass = str | Callable[..., tuple[MaseGraph, dict[str, Any]]]
"""Pass or its name."""
MOST_NUMBERS = 10_000
"""Maximum size of stored tensors in results; larger ones, such as activations, are described."""


@dataclass(frozen=True)
class Stage:
    """Pass and its settings.

    Attributes:
        name: name of the pass.
        function: function of the pass.
        config: its settings, or None.
    """

    name: str
    function: Callable[..., tuple[MaseGraph, dict[str, Any]]]
    config: Any = None

    @classmethod
    def of(cls, step: Pass | tuple[Pass, Any] | Stage) -> Stage:
        """Builds a stage from a pass or its name, optionally with settings.

        Raises:
            ConfigError: if the name is unknown. The message suggests the nearest name.
        """
        if isinstance(step, Stage):
            return step
        given = (step,) if callable(step) or isinstance(step, str) else step
        is_pair = isinstance(given, tuple | list) and len(given) in (1, 2)
        if not is_pair or not (callable(given[0]) or isinstance(given[0], str)):
            raise ConfigError(
                f"Pipeline: expected a pass, its name, or (pass, settings), got {describe(step)}."
            )
        chosen, config = (*given, None)[:2]
        if callable(chosen):
            return cls(getattr(chosen, "__name__", type(chosen).__name__), chosen, config)
        # MASE's functions that are not passes here, but may be listed.
        others = {name: x for name, x in vars(chop.passes).items() if name.endswith("_pass")}
        check_known(chosen, {*PASSES, *others}, "no pass is called")
        return cls(chosen, PASSES[chosen] if chosen in PASSES else others[chosen], config)

    def run(self, mg: MaseGraph) -> tuple[MaseGraph, dict[str, Any]]:
        """Runs the pass.

        Raises:
            ConfigError: if it does not return a graph and its results.
        """
        made = self.function(mg) if self.config is None else self.function(mg, self.config)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise ConfigError(
                f"{self.name}: expected a pass that returns (mg, results), got {describe(made)}; "
                "return mg, {}."
            )
        mg, results = made
        return mg, results


def check_is_list(stages: Any, who: str) -> None:
    """Raises ConfigError for a single pass, with or without settings, or no list."""
    is_stage = isinstance(stages, tuple) and any(isinstance(x, Mapping | None) for x in stages[1:])
    if is_stage or isinstance(stages, str | Mapping) or not isinstance(stages, Iterable):
        raise ConfigError(
            f"{who}: expected a list of passes, got {describe(stages)}; pass [pass], or "
            "[(pass, settings)]."
        )


class StageJournal:
    """Files of one pipeline run in a folder.

    Args:
        folder: destination; created if missing.
        mg: the input graph.
        stages: stages to run.
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
        """Returns the graph after the last finished stage, and the results up to it."""
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
        """Records a finished stage and discards records of later ones."""
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
    """Returns the passes and their settings for a manifest; tensors are described."""
    tables = [{"pass": stage.name, "config": stage.config} for stage in stages]
    document: dict[str, Any] = runs.as_json({"stages": tables}, _shape_or_class)
    return document


def findings_as_json(value: Any) -> Any:
    """Returns the JSON representation of a pass's results; small tensors become lists."""
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
    """Yields nodes, modules and tensors; not the provenance, which has example inputs."""
    model = mg.model
    for node in mg.nodes:
        called = getattr(node.target, "__qualname__", node.target)
        yield f"{node.name} {node.op} {called} {node.args} {node.kwargs}".encode()
    yield f"{model} {model.training}".encode()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield from _parts(name, tensor.requires_grad, tensor)


def _parts(*values: Any) -> Iterator[bytes]:
    """Yields the content of settings; a unique object for those that cannot be compared."""
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
