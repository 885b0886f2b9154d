"""Weights by slices: each process of a sharded model reads what it keeps of every tensor.

Files are opened for one tensor at a time and mapped no longer than that, so that a process has
never more in memory than its own slices and one tensor: the pages of a whole tensor are touched
where its slices are cut along another dimension than the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.joined import joined_names
from chop.captured.layers.expert_linear import stacked_shape, stacks_transposed
from chop.distributed.plan import named_tensors
from chop.distributed.weight_files import (
    Slices,
    Stored,
    nearest,
    read_experts,
    read_slices,
    stored_tensors,
)
from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from chop.ir.storage.checkpoint import open_checkpoint
from chop.ir.storage.tensor_store import STORABLE, open_file, restore_one, unpack_inline
from chop.nn.transposed import stores_transposed

PlaceOfExpert = Callable[[str], tuple[int, ...] | None]
"""By the name of a tensor in a file, the number of its expert and its place within; or None."""


class SafetensorsSource:
    """The weights of a model on the meta device, in safetensors files.

    Tensors are looked up when the source is made: by the model's names, or else by those with one
    step more or less in front, as files of a model's body and of the whole model have them
    (`encoder.x` and `bert.encoder.x`). What is tied to another tensor may be stored once.

    Args:
        path: a Hugging Face folder, with `model.safetensors` or with
            `model.safetensors.index.json` and its shards; or one file.
        model: its tensors on the meta device are those that are looked for; those of floating-point
            numbers come in the model's dtype.
        rename: from a name in the file to one of the model, where they differ otherwise.
        place_of_expert: of a matrix that is one of several which make up a tensor of the model.

    Raises:
        CheckpointError: a file is missing or broken, or lacks a tensor of the model, has it in
            another shape, or has two that may be it.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module,
        rename: Callable[[str], str] = str,
        place_of_expert: PlaceOfExpert = lambda _: None,
    ) -> None:
        stored = dict(stored_tensors(path))
        self._stored = _look_up(model, stored, rename, place_of_expert, path)

    def read(self, name: str, slices: Slices) -> Tensor:
        """A part of a tensor, contiguous and in memory of its own.

        Args:
            name: the tensor's path in the model.
            slices: one per dimension, of step one.

        Raises:
            CheckpointError: the model had no such tensor on the meta device, or the file has been
                removed since.
        """
        if name not in self._stored:
            raise CheckpointError(f"no weights of '{name}' were looked up: the model lacks it.")
        stored = self._stored[name]
        if stored.has_experts or stored.parts:
            return read_experts(stored, slices)
        return read_slices(stored.file, stored.name, slices, stored.dtype, stored.transposed)


class CheckpointSource:
    """The tensors of a checkpoint of chop, by their paths in the graph's model.

    Args:
        checkpoint: the name given to `MaseGraph.export`, with or without a suffix.
        verify: compares the digest of all tensors, which reads them once; one process of those
            that read the same files is enough. The others compare their size.

    Raises:
        CheckpointError: a file is missing, cut off, corrupt, foreign or from a later version.
    """

    def __init__(self, checkpoint: str | Path, verify: bool = True) -> None:
        self._file, document = open_checkpoint(checkpoint, verify)
        self._table: Mapping[str, Mapping[str, Any]] = document["tensors"]
        self._inline: Mapping[str, str] = document.get("inline", {})
        self._same = {x["path"]: x["same_as"] for x in document["modules"] if "same_as" in x}
        self._keys = dict(_keys_by_path(document["modules"]))

    def read(self, name: str, slices: Slices) -> Tensor:
        """A part of a tensor, contiguous, in memory of its own and as it is stored.

        Codes of packed layers have one dimension; a chunk of them is that of the weight's rows
        where these divide.

        Args:
            name: the tensor's path in the model, any of its paths where it is tied.
            slices: one per dimension, of step one.

        Raises:
            CheckpointError: the checkpoint has no such tensor.
        """
        path = self._first_path(name)
        if path not in self._keys:
            raise CheckpointError(
                f"'{self._file}' has no tensor '{name}'; the nearest is "
                f"'{nearest(name, self._keys)}'."
            )
        key = self._keys[path]
        key = self._table[key].get("storage_of", key)
        if key not in self._inline and getattr(torch, self._table[key]["dtype"]) in STORABLE:
            is_transposed = self._table[key].get("transposed") is True
            return read_slices(self._file, key, slices, transposed=is_transposed)
        whole = restore_one(key, self._table[key], {key: self._bytes(key)})
        return whole[slices].clone(memory_format=torch.contiguous_format)

    def _bytes(self, key: str) -> Tensor:
        """A tensor that is in the document, or of a type that the file's format lacks."""
        if key in self._inline:
            return unpack_inline({key: self._inline[key]}, self._table)[key]
        with open_file(self._file) as file:
            data: Tensor = file.get_tensor(key)
            return data

    def _first_path(self, name: str) -> str:
        """The path at which a tensor of a shared module is described."""
        *steps, last = name.split(".")
        path = ""
        for step in steps:
            path = f"{path}.{step}" if path else step
            path = self._same.get(path, path)
        return f"{path}.{last}" if path else last


def meta_graph(checkpoint: str | Path, allow: Iterable[Any] = ()) -> MaseGraph:
    """The graph of a checkpoint of chop without its weights, which `CheckpointSource` reads.

    Args:
        checkpoint: the name given to `MaseGraph.export`, with or without a suffix.
        allow: module classes and functions of your own that the checkpoint may contain.
    Returns: a graph whose parameters and buffers are on the meta device; real are those only that
        an attribute of a module shares.

    Raises:
        CheckpointError: files are missing, broken, or name a class that is not allowed.
    """
    return MaseGraph.from_checkpoint(checkpoint, allow=allow, meta=True)


def _look_up(
    model: nn.Module,
    stored: Mapping[str, Stored],
    rename: Callable[[str], str],
    place_of_expert: PlaceOfExpert,
    path: str | Path,
) -> dict[str, Stored]:
    """Where each of the model's tensors on the meta device is."""
    tensors = {name: x for name, x in named_tensors(model) if x.is_meta}
    found = _by_path(tensors, stored, rename, place_of_expert, _joined_names(model))
    modules = dict(model.named_modules(remove_duplicate=False))
    tied: dict[int, Stored] = {id(tensors[name]): place for name, place in found.items()}
    for name, tensor in tensors.items():
        place = found.get(name) or tied.get(id(tensor))
        if place is None:
            raise CheckpointError(
                f"'{path}' lacks the tensor '{name}' of the model; the nearest that it has is "
                f"'{nearest(name, stored)}'."
            )
        owner, _, own = name.rpartition(".")
        is_weight = own == "weight"
        is_transposed = is_weight and stores_transposed(modules[owner])
        expected = tuple(tensor.shape)[::-1] if is_transposed else tuple(tensor.shape)
        stacked = stacked_shape(modules[owner]) if is_weight else None
        if stacked is not None:
            is_transposed, expected = bool(stacks_transposed(modules[owner])), stacked
        if place.shape != expected:
            raise CheckpointError(
                f"tensor '{name}': the model has the shape {expected}, '{place.file}' "
                f"has {place.shape}."
            )
        found[name] = replace(
            place,
            dtype=tensor.dtype if tensor.is_floating_point() else None,
            transposed=is_transposed,
            has_experts=stacked is not None,
        )
    return found


def _joined_names(model: nn.Module) -> dict[str, str]:
    """By name of a tensor in state dicts, the one parameter that it is of, where it is renamed."""
    return {
        f"{path}.{name}".lstrip("."): f"{path}.{parts[0]}".lstrip(".")
        for path, module in model.named_modules()
        for name, parts in joined_names(module).items()
        if len(parts) == 1
    }


def _by_path(
    tensors: Mapping[str, Tensor],
    stored: Mapping[str, Stored],
    rename: Callable[[str], str],
    place_of_expert: PlaceOfExpert,
    joined: Mapping[str, str],
) -> dict[str, Stored]:
    """Where the model's tensors are, by its names: the same in the file, or the likeness of one."""
    found = {name: place for name, place in stored.items() if name in tensors}
    exact = set(found)
    firsts = dict.fromkeys(name.partition(".")[0] for name in tensors)
    experts: dict[str, dict[tuple[int, ...], Stored]] = {}
    for name, place in stored.items():
        if name in exact:
            continue
        new = rename(name)
        names = (new, new.partition(".")[2], *(f"{first}.{new}" for first in firsts))
        own = (joined.get(path, path) for path in names)
        path = next((path for path in own if path in tensors), None)
        if path is None or path in exact:
            continue
        expert = place_of_expert(name)
        if expert is not None:
            experts.setdefault(path, {})[expert] = place
            continue
        if found.setdefault(path, place) is not place:
            raise CheckpointError(
                f"both '{found[path].name}' and '{name}' of '{place.file.parent}' may be the "
                f"model's '{path}'; expected one tensor of that name."
            )
    return found | {path: Stored.of_experts(parts) for path, parts in experts.items()}


def _keys_by_path(records: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The name in the table of each parameter and buffer, by its path."""
    for record in records:
        prefix = f"{record['path']}." if record["path"] else ""
        for kind in ("parameters", "buffers"):
            for name, key in record.get(kind, {}).items():
                if key is not None:
                    yield prefix + name, key
