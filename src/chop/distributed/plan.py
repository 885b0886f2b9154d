"""Sharding plan: process mesh, parameter placements, and input layouts of nodes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from chop.base.files import atomic_file
from chop.base.files.documents import read_json
from chop.distributed.placements import REPLICATED, normalized, shard_dim
from chop.errors import ConfigError, PlanError, describe, did_you_mean
from chop.ir.graph import MaseGraph

FORMAT = "chop sharding plan"
VERSION = 1
Placements = tuple[str, ...]
"""One text per mesh axis: "R", or "S" and the sharded dimension."""


@dataclass(frozen=True)
class ShardingPlan:
    """Placements of a model's parameters, and layouts in which nodes read their inputs.

    A plan affects layouts, never results. Tensors keep their global shapes, and inputs in a layout
    that a node cannot compute in are redistributed.

    Attributes:
        mesh: processes along each axis.
        parameters: placements of parameters and buffers by dotted path; others are replicated.
        reads: by node, the placement in which it reads each input node; default: as produced.
        name: name in reports.
    """

    mesh: tuple[int, ...]
    parameters: Mapping[str, Placements] = field(default_factory=dict)
    reads: Mapping[str, Mapping[str, Placements]] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", parse_mesh(self.mesh))

    @property
    def processes(self) -> int:
        """Number of processes."""
        return math.prod(self.mesh)

    def placement(self, parameter: str) -> Placements:
        """Returns the placements of a parameter or buffer."""
        return self.parameters.get(parameter, (REPLICATED,) * len(self.mesh))

    def checked(self, mg: MaseGraph) -> ShardingPlan:
        """Validates the plan for a graph and returns it with non-negative dimensions.

        Raises:
            PlanError: if it names a parameter or node that the graph lacks or a dimension that a
                parameter lacks, its number of placements differs from the mesh axes, or tied
                parameters differ.
        """
        model = mg.model
        tensors = dict(named_tensors(model))
        unknown = [path for path in self.parameters if path not in tensors]
        if len(unknown) > 1 and 2 * len(unknown) > len(self.parameters):
            raise PlanError(
                f"the plan is for another model: {len(unknown)} of its {len(self.parameters)} "
                f"parameters do not exist in this model, such as '{unknown[0]}'."
            )
        for path in unknown:
            _check_name("parameter", path, tensors)
        self._check_nodes(mg)
        parameters = {
            path: normalized(self._whole(path, texts), tensors[path].ndim, f"parameter '{path}'")
            for path, texts in self.parameters.items()
        }
        plan = dataclasses.replace(self, parameters=parameters)
        plan._check_ties(model)
        return plan

    def _check_nodes(self, mg: MaseGraph) -> None:
        nodes = {node.name: node for node in mg.nodes}
        for name, sources in self.reads.items():
            _check_name("node", name, nodes)
            inputs = {source.name for source in nodes[name].all_input_nodes}
            for source, texts in sources.items():
                _check_name(f"node '{name}': input", source, inputs)
                for text in self._whole(f"{name} <- {source}", texts):
                    shard_dim(text)

    def _whole(self, where: str, texts: Placements) -> Placements:
        if isinstance(texts, str):
            example = (texts, *(REPLICATED,) * (len(self.mesh) - 1))
            raise PlanError(
                f"{where}: expected a tuple with one text per axis of the mesh "
                f"{format_mesh(self.mesh)}, such as {example}, got {texts!r}."
            )
        if len(texts) != len(self.mesh):
            raise PlanError(
                f"{where}: expected {len(self.mesh)} placements, one per axis of the mesh "
                f"{format_mesh(self.mesh)}, got {len(texts)}."
            )
        return texts

    def _check_ties(self, model: nn.Module) -> None:
        first: dict[int, str] = {}
        for path, tensor in named_tensors(model):
            other = first.setdefault(id(tensor), path)
            if self.placement(path) != self.placement(other):
                raise PlanError(
                    f"'{path}' and '{other}' are one parameter, but the plan has "
                    f"{self.placement(path)} and {self.placement(other)} for them."
                )

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as plain data."""
        own = {
            "mesh": list(self.mesh),
            "name": self.name,
            "parameters": {path: list(texts) for path, texts in self.parameters.items()},
            "reads": {
                node: {source: list(texts) for source, texts in sources.items()}
                for node, sources in self.reads.items()
            },
        }
        return {"format": FORMAT, "version": VERSION, **own}

    @classmethod
    def from_json(cls, document: Any, where: str = "plan") -> ShardingPlan:
        """Builds a plan from plain data. Inverse of `to_json`.

        Raises:
            PlanError: if the data are invalid; the message says where.
        """
        if not isinstance(document, Mapping) or document.get("format", FORMAT) != FORMAT:
            raise PlanError(f"{where}: expected an object with format '{FORMAT}'.")
        if document.get("version", VERSION) != VERSION:
            raise PlanError(f"{where}: expected version {VERSION}, got {document['version']}.")
        known = {entry.name for entry in dataclasses.fields(cls)}
        for key in document.keys() - {"format", "version"}:
            _check_name(f"{where}: key", key, known)
        reads = _mapping(document.get("reads", {}), f"{where}.reads")
        return cls(
            parse_mesh(document.get("mesh"), f"{where}.mesh"),
            _placements(document.get("parameters", {}), f"{where}.parameters"),
            {node: _placements(given, f"{where}.reads.{node}") for node, given in reads.items()},
            str(document.get("name", "")),
        )

    def write(self, path: str | Path) -> None:
        """Writes the plan as JSON. An existing file is replaced atomically."""
        with atomic_file(Path(path)) as temporary:
            temporary.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> ShardingPlan:
        """Reads a plan from a file of `write`.

        Raises:
            PlanError: if the file does not exist or has no valid plan.
        """
        try:
            document = read_json(path, "plan", None)
        except OSError as error:
            raise PlanError(f"plan '{path}' cannot be read: {error.strerror}.") from None
        except ConfigError as error:
            raise PlanError(f"plan '{path}' is not valid JSON: {error}.") from None
        return cls.from_json(document, f"plan '{path}'")


MOST_PROCESSES = 2**14
"""Maximum size of a mesh; plans and tables have a row for each process."""


def parse_mesh(value: Any, where: str = "mesh") -> tuple[int, ...]:
    """Parses a mesh shape from numbers, or from text such as "2x4".

    >>> parse_mesh("2x4"), parse_mesh(2)
    ((2, 4), (2,))

    Raises:
        PlanError: if it is neither, or a number is below one.
    """
    sizes = value.lower().split("x") if isinstance(value, str) else value
    sizes = [sizes] if isinstance(sizes, int) else sizes
    try:
        mesh = tuple(int(size) for size in sizes if not isinstance(size, float | bool))
    except (TypeError, ValueError):
        mesh = ()
    if not mesh or min(mesh) < 1 or len(mesh) < len(sizes):
        raise PlanError(
            f"{where}: expected the processes per axis, such as 4 or 2x2, got {describe(value)}."
        )
    if math.prod(mesh) > MOST_PROCESSES:
        raise PlanError(
            f"{where}: got {math.prod(mesh):,} processes, expected at most {MOST_PROCESSES:,}."
        )
    return mesh


def format_mesh(mesh: tuple[int, ...]) -> str:
    """Formats a mesh shape.

    >>> format_mesh((2, 4))
    '2x4'
    """
    return "x".join(map(str, mesh))


def named_tensors(model: nn.Module) -> list[tuple[str, Any]]:
    """Returns parameters and buffers by dotted path; tied ones at each of their paths."""
    parameters = model.named_parameters(remove_duplicate=False)
    return [*parameters, *model.named_buffers(remove_duplicate=False)]


def _check_name(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise PlanError(f"{what} '{name}' does not exist: {did_you_mean(name, known)}")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where}: expected an object, got {describe(value)}.")
    return value


def _placements(value: Any, where: str) -> dict[str, Placements]:
    placements = {}
    for name, texts in _mapping(value, where).items():
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
            raise PlanError(
                f"{where}.{name}: expected texts such as ['S0'], got {describe(texts)}."
            )
        placements[name] = tuple(texts)
    return placements
