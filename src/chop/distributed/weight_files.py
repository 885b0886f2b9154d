"""Safetensors weight files: locations of tensors, and reading of their parts.

A file is opened and mapped for one tensor at a time.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from chop.base.files.documents import read_json
from chop.errors import CheckpointError, ConfigError
from chop.ir.huggingface.folder_files import check_shards
from chop.ir.storage.tensor_store import open_file

Slices = tuple[slice, ...]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATING = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Floating-point dtypes of models, by safetensors name."""


def read_slices(
    path: Path,
    name: str,
    slices: Slices,
    dtype: torch.dtype | None = None,
    transposed: bool = False,
) -> Tensor:
    """Reads a part of one tensor of a safetensors file into new, contiguous memory.

    Args:
        path: the file; it is unmapped when the function returns.
        name: tensor name in the file.
        slices: one per dimension, with step one.
        dtype: dtype of the result, if the tensor is floating-point.
        transposed: the file stores the transposed matrix.

    Raises:
        CheckpointError: if the file cannot be read, or the tensor has other dimensions.
    """
    if transposed:
        return read_slices(path, name, slices[::-1], dtype).t().contiguous()
    with open_file(path) as file:
        mapped = file.get_slice(name)
        shape = mapped.get_shape()
        if len(slices) != len(shape) or any(s.stop > n for s, n in zip(slices, shape, strict=True)):
            raise CheckpointError(
                f"tensor '{name}' of '{path}' has the shape {tuple(shape)}, without a part "
                f"{[(s.start, s.stop) for s in slices]}."
            )
        part: Tensor = mapped[slices]
        wanted = dtype if dtype is not None and part.is_floating_point() else part.dtype
        # `part` maps the file, which is closed with the block.
        return torch.empty(part.shape, dtype=wanted).copy_(part)


def read_experts(stored: Stored, slices: Slices) -> Tensor:
    """Reads a part of expert matrices, stored in one three-dimensional tensor or separately.

    Args:
        stored: the tensor, (experts, outputs, inputs), or (experts, inputs, outputs) if transposed.
        slices: slices of (experts * outputs, inputs) if it `has_experts`, otherwise of its shape;
            with step one.

    Raises:
        CheckpointError: if the file cannot be read.
    """
    if stored.parts:
        rows = torch.cat([_read_whole(x, stored.dtype) for x in stored.parts])
        stacked = rows.view(stored.shape)
    else:
        stacked = _read_whole(stored, stored.dtype)
    if stored.has_experts:
        stacked = (stacked.mT if stored.transposed else stacked).flatten(0, 1)
    part = stacked[slices]
    if part.numel() == stacked.numel() and part.is_contiguous():
        return part  # already a copy
    return part.clone(memory_format=torch.contiguous_format)


def _read_whole(stored: Stored, dtype: torch.dtype | None) -> Tensor:
    whole = tuple(slice(0, size) for size in stored.shape)
    return read_slices(stored.file, stored.name, whole, dtype)


def stored_dtype(path: str | Path) -> torch.dtype | None:
    """Returns the dtype of the first floating-point tensor in a file or Hugging Face folder.

    Raises:
        CheckpointError: if a file is missing or damaged.
    """
    for file in _files(Path(path)):
        with open_file(file) as opened:
            for name in opened.offset_keys():
                if (dtype := opened.get_slice(name).get_dtype()) in FLOATING:
                    return FLOATING[dtype]
    return None


def stored_dtypes(path: str | Path) -> dict[str, str]:
    """Returns the tensor types of a safetensors file or Hugging Face folder, by tensor name.

    Returns: safetensors' type names, such as "F32" and "I8".

    Raises:
        CheckpointError: if a file is missing or damaged.
    """
    dtypes: dict[str, str] = {}
    for file in _files(Path(path)):
        with open_file(file) as opened:
            dtypes |= {x: str(opened.get_slice(x).get_dtype()) for x in opened.offset_keys()}
    return dtypes


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        file: path of the file.
        name: tensor name in the file.
        shape: whole shape.
        dtype: dtype to read; None: as stored.
        transposed: the graph has the transposed matrix.
        has_experts: the graph stacks the matrices of experts along the rows.
        parts: matrices that form the tensor, in row order; empty if the file has it whole.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    transposed: bool = False
    has_experts: bool = False
    parts: tuple[Stored, ...] = ()

    @classmethod
    def from_experts(cls, parts: Mapping[tuple[int, ...], Stored]) -> Self:
        """Stacks expert matrices to (experts, outputs, inputs).

        Args:
            parts: matrices by expert number and position within the expert.

        Raises:
            CheckpointError: if experts differ in shape.
        """
        experts: dict[int, list[Stored]] = {}
        for place in sorted(parts):
            experts.setdefault(place[0], []).append(parts[place])
        (first, *_), shapes = experts.values(), [[x.shape for x in e] for e in experts.values()]
        other = next((e for e, shape in zip(experts, shapes, strict=True) if shape != shapes[0]), 0)
        if other or any(len(x.shape) != 2 or x.shape[1] != first[0].shape[1] for x in first):
            raise CheckpointError(
                f"the matrices of expert {other} of '{first[0].file}', next to '{first[0].name}', "
                "differ in shape from those of the first expert."
            )
        outputs = sum(x.shape[0] for x in first)
        shape = (len(experts), outputs, first[0].shape[1])
        ordered = tuple(x for expert in experts.values() for x in expert)
        return cls(first[0].file, first[0].name, shape, parts=ordered)


def stored_tensors(path: str | Path) -> Iterator[tuple[str, Stored]]:
    """Returns every tensor of a safetensors file or Hugging Face folder, by tensor name.

    For a folder with an index, these are the tensors that the index lists.

    Raises:
        CheckpointError: if a file is missing or damaged, or lacks a tensor listed in the index.
    """
    for file, names in _files(Path(path)).items():
        with open_file(file) as opened:
            there = opened.offset_keys()
            missing = sorted(set(names or ()).difference(there))
            if missing:
                raise CheckpointError(
                    f"'{file}' lacks the tensor '{missing[0]}', which {INDEX} lists; fetch "
                    "the folder again."
                )
            for name in there if names is None else names:
                yield name, Stored(file, name, tuple(opened.get_slice(name).get_shape()))


def _files(path: Path) -> dict[Path, list[str] | None]:
    """Returns the weight files, with the tensors to use from each; None for all."""
    if path.is_file():
        return {path: None}
    if (path / WEIGHTS).is_file():
        return {path / WEIGHTS: None}
    index = path / INDEX
    if not index.is_file():
        raise CheckpointError(
            f"'{path}' has no weights: expected a safetensors file, or a folder with {WEIGHTS} "
            f"or {INDEX}; save_pretrained writes them."
        )
    shards: dict[Path, list[str]] = {}
    try:
        for name, file in read_json(index, "index")["weight_map"].items():
            # An index must not name files outside of its folder.
            if Path(file).name != file:
                raise ConfigError(f"'{file}' is not a file of the folder")
            shards.setdefault(path / file, []).append(name)
    except ConfigError as error:
        raise CheckpointError(f"'{index}' is not a valid index of weights: {error}.") from None
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"'{index}' is not a valid index of weights: {error!r}.") from None
    check_shards(index, [file.name for file in shards])
    return {**shards}


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the most similar name, for messages."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)), "none")
