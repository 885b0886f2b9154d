"""Sliced loading of weights: each process of a sharded model reads only its parts.

Files are opened and mapped for one tensor at a time. A process therefore never has more in memory
than its own slices and one tensor, whose pages are all touched if it is cut along another dimension
than the first.
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
"""Returns expert index and position from a tensor name in a file, or None."""


class SafetensorsSource:
    """Safetensors files with the weights of a model on the meta device.

    Tensors are looked up in the constructor, by the model's names or by names with one more or one
    fewer prefix, since files of a model's body and of the whole model differ in that
    (`encoder.x` and `bert.encoder.x`). Tied tensors may be stored once.

    Args:
        path: a Hugging Face folder, with `model.safetensors` or with
            `model.safetensors.index.json` and its shards; or one file.
        model: model whose tensors on the meta device are looked up. Floating-point tensors are
            loaded in the model's dtype.
        rename: maps a file's tensor name to the model's, if they differ otherwise.
        place_of_expert: position of an expert matrix within a stacked tensor of the model.

    Raises:
        CheckpointError: if a file is missing or damaged, or a tensor of the model is missing, has
            another shape or has two candidates.
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
        """Reads a part of a tensor into new, contiguous memory.

        Args:
            name: the tensor's path in the model.
            slices: one per dimension, with step one.

        Raises:
            CheckpointError: if the model had no such tensor on the meta device, or the file has
                been removed since.
        """
        if name not in self._stored:
            raise CheckpointError(f"'{name}' is not a tensor of the model on the meta device.")
        stored = self._stored[name]
        if stored.has_experts or stored.parts:
            return read_experts(stored, slices)
        return read_slices(stored.file, stored.name, slices, stored.dtype, stored.transposed)


class CheckpointSource:
    """Tensors of a chop checkpoint, by their paths in the graph's model.

    Args:
        checkpoint: name given to `MaseGraph.export`, with or without a suffix.
        verify: checks the digest of all tensors, which reads them once. One process per set of
            files is enough; the others compare file sizes.

    Raises:
        CheckpointError: if a file is missing, truncated, corrupt, foreign or of a later version.
    """

    def __init__(self, checkpoint: str | Path, verify: bool = True) -> None:
        self._file, document = open_checkpoint(checkpoint, verify)
        self._table: Mapping[str, Mapping[str, Any]] = document["tensors"]
        self._inline: Mapping[str, str] = document.get("inline", {})
        self._same = {x["path"]: x["same_as"] for x in document["modules"] if "same_as" in x}
        self._keys = dict(_keys_by_path(document["modules"]))

    def read(self, name: str, slices: Slices) -> Tensor:
        """Reads a part of a tensor, as stored, into new, contiguous memory.

        Codes of packed layers have one dimension. A chunk of them has the codes of a chunk of
        weight rows, if the rows divide.

        Args:
            name: the tensor's path in the model; any of its paths if it is tied.
            slices: one per dimension, with step one.

        Raises:
            CheckpointError: if the checkpoint has no such tensor.
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
        # Other types are converted as a whole, because the file has no slices of them.
        whole = restore_one(key, self._table[key], {key: self._bytes(key)})
        return whole[slices].clone(memory_format=torch.contiguous_format)

    def _bytes(self, key: str) -> Tensor:
        """Reads a tensor stored in the document, or of a type that the file format lacks."""
        if key in self._inline:
            return unpack_inline({key: self._inline[key]}, self._table)[key]
        with open_file(self._file) as file:
            data: Tensor = file.get_tensor(key)
            return data

    def _first_path(self, name: str) -> str:
        """Returns the path under which a shared module's tensor is stored."""
        *steps, last = name.split(".")
        path = ""
        for step in steps:
            path = f"{path}.{step}" if path else step
            # A module inside a shared module is stored under the first path of that module.
            path = self._same.get(path, path)
        return f"{path}.{last}" if path else last


def meta_graph(checkpoint: str | Path, allow: Iterable[Any] = ()) -> MaseGraph:
    """Returns the graph of a chop checkpoint without weights, for `CheckpointSource`.

    Args:
        checkpoint: name given to `MaseGraph.export`, with or without a suffix.
        allow: your module classes and functions that the checkpoint may contain.
    Returns: a graph with parameters and buffers on the meta device, except tensors that a module
        attribute shares.

    Raises:
        CheckpointError: if files are missing, damaged, or name a class that is not allowed.
    """
    return MaseGraph.from_checkpoint(checkpoint, allow=allow, meta=True)


def _look_up(
    model: nn.Module,
    stored: Mapping[str, Stored],
    rename: Callable[[str], str],
    place_of_expert: PlaceOfExpert,
    path: str | Path,
) -> dict[str, Stored]:
    """Returns the file location of each of the model's tensors on the meta device."""
    tensors = {name: x for name, x in named_tensors(model) if x.is_meta}
    places = _by_path(tensors, stored, rename, place_of_expert, _joined_names(model))
    modules = dict(model.named_modules(remove_duplicate=False))
    tied: dict[int, Stored] = {id(tensors[name]): place for name, place in places.items()}
    for name, tensor in tensors.items():
        place = places.get(name) or tied.get(id(tensor))
        if place is None:
            raise CheckpointError(
                f"'{path}' lacks the model's tensor '{name}'; the nearest is "
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
        places[name] = replace(
            place,
            dtype=tensor.dtype if tensor.is_floating_point() else None,
            transposed=is_transposed,
            has_experts=stacked is not None,
        )
    return places


def _joined_names(model: nn.Module) -> dict[str, str]:
    """Returns, by state-dict name of a tensor, the single renamed parameter that it belongs to."""
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
    """Returns file locations by the model's tensor names, exact or with another prefix."""
    places = {name: place for name, place in stored.items() if name in tensors}
    # Exact names come before names with another prefix.
    exact = set(places)
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
        if places.setdefault(path, place) is not place:
            raise CheckpointError(
                f"both '{places[path].name}' and '{name}' of '{place.file.parent}' may be the "
                f"model's '{path}'; expected one tensor of that name."
            )
    return places | {path: Stored.from_experts(parts) for path, parts in experts.items()}


def _keys_by_path(records: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Returns the table key of each parameter and buffer, by path."""
    for record in records:
        prefix = f"{record['path']}." if record["path"] else ""
        for kind in ("parameters", "buffers"):
            for name, key in record.get(kind, {}).items():
                if key is not None:
                    yield prefix + name, key
