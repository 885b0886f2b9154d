"""Safetensors files of weights: which tensors are where, and parts of them.

A file is opened for one tensor at a time and mapped no longer than that.
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
"""The floating-point types that whole models are in, by safetensors' names."""


def read_slices(
    path: Path,
    name: str,
    slices: Slices,
    dtype: torch.dtype | None = None,
    transposed: bool = False,
) -> Tensor:
    """A part of one tensor of a safetensors file, contiguous and in memory of its own.

    Args:
        path: the file; it is not mapped any more when the function returns.
        name: the tensor's in the file.
        slices: one per dimension, of step one.
        dtype: of the result, if the tensor is one of floating-point numbers.
        transposed: whether the file has the matrix the other way round.

    Raises:
        CheckpointError: the file cannot be read, or the tensor has other dimensions.
    """
    if transposed:
        return read_slices(path, name, slices[::-1], dtype).t().contiguous()
    with open_file(path) as file:
        mapped = file.get_slice(name)
        shape = mapped.get_shape()
        if len(slices) != len(shape) or any(s.stop > n for s, n in zip(slices, shape, strict=True)):
            raise CheckpointError(
                f"tensor '{name}' of '{path}' has the shape {tuple(shape)}, which has no part "
                f"{[(s.start, s.stop) for s in slices]}."
            )
        part: Tensor = mapped[slices]
        wanted = dtype if dtype is not None and part.is_floating_point() else part.dtype
        return torch.empty(part.shape, dtype=wanted).copy_(part)


def read_experts(stored: Stored, slices: Slices) -> Tensor:
    """A part of the matrices of experts, which a file has in three dimensions or each by itself.

    Args:
        stored: the tensor, (experts, outputs, inputs), or where it is transposed (experts, inputs,
            outputs).
        slices: of (experts * outputs, inputs) where it `has_experts`, or else of its shape; of step
            one.

    Raises:
        CheckpointError: the file cannot be read.
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
    """The dtype of the first floating-point tensor of a safetensors file or Hugging Face folder.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    for file in _files(Path(path)):
        with open_file(file) as opened:
            for name in opened.offset_keys():
                if (found := opened.get_slice(name).get_dtype()) in FLOATING:
                    return FLOATING[found]
    return None


def stored_dtypes(path: str | Path) -> dict[str, str]:
    """The type of every tensor of a safetensors file or Hugging Face folder, by its name there.

    Returns: safetensors' names, such as "F32" and "I8".

    Raises:
        CheckpointError: a file is missing or broken.
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
        file: where it is.
        name: its name there.
        shape: its whole shape.
        dtype: what to read it in; None: as it is stored.
        transposed: whether a graph has the matrix the other way round.
        has_experts: whether a graph has its matrices one below the other.
        parts: the matrices that it is put together from, in the order of their rows; empty where
            the file has it whole.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    transposed: bool = False
    has_experts: bool = False
    parts: tuple[Stored, ...] = ()

    @classmethod
    def of_experts(cls, parts: Mapping[tuple[int, ...], Stored]) -> Self:
        """Matrices one below the other, (experts, outputs, inputs).

        Args:
            parts: by the number of the expert, and the place within.

        Raises:
            CheckpointError: experts have other shapes than the first.
        """
        experts: dict[int, list[Stored]] = {}
        for place in sorted(parts):
            experts.setdefault(place[0], []).append(parts[place])
        (first, *_), shapes = experts.values(), [[x.shape for x in e] for e in experts.values()]
        other = next((e for e, shape in zip(experts, shapes, strict=True) if shape != shapes[0]), 0)
        if other or any(len(x.shape) != 2 or x.shape[1] != first[0].shape[1] for x in first):
            raise CheckpointError(
                f"the matrices of expert {other} of '{first[0].file}', beside "
                f"'{first[0].name}', are not those of the first."
            )
        outputs = sum(x.shape[0] for x in first)
        shape = (len(experts), outputs, first[0].shape[1])
        ordered = tuple(x for expert in experts.values() for x in expert)
        return cls(first[0].file, first[0].name, shape, parts=ordered)


def stored_tensors(path: str | Path) -> Iterator[tuple[str, Stored]]:
    """Every tensor of a safetensors file or Hugging Face folder, by its name there.

    Of a folder with an index, those that the index names.

    Raises:
        CheckpointError: a file is missing or broken, or lacks a tensor that the index has there.
    """
    for file, names in _files(Path(path)).items():
        with open_file(file) as opened:
            there = opened.offset_keys()
            missing = sorted(set(names or ()).difference(there))
            if missing:
                raise CheckpointError(
                    f"'{file}' lacks the tensor '{missing[0]}', which {INDEX} says is in it; fetch "
                    "the folder again."
                )
            for name in there if names is None else names:
                yield name, Stored(file, name, tuple(opened.get_slice(name).get_shape()))


def _files(path: Path) -> dict[Path, list[str] | None]:
    """The files of weights; per file the tensors that count, None: all."""
    if path.is_file():
        return {path: None}
    if (path / WEIGHTS).is_file():
        return {path / WEIGHTS: None}
    index = path / INDEX
    if not index.is_file():
        raise CheckpointError(
            f"'{path}' holds no weights: expected a safetensors file, or a folder with {WEIGHTS} "
            f"or {INDEX}; save_pretrained writes them."
        )
    shards: dict[Path, list[str]] = {}
    try:
        for name, file in read_json(index, "index")["weight_map"].items():
            if Path(file).name != file:
                raise ConfigError(f"'{file}' is no file of the folder")
            shards.setdefault(path / file, []).append(name)
    except ConfigError as error:
        raise CheckpointError(f"'{index}' is no index of weights: {error}.") from None
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"'{index}' is no index of weights: {error!r}.") from None
    missing = sorted(file.name for file in shards if not file.is_file())
    if missing:
        raise CheckpointError(
            f"'{path}' lacks {len(missing)} of the {len(shards)} files that {INDEX} names, the "
            f"first is '{missing[0]}'; fetch the folder again."
        )
    return {**shards}


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that is most like another one, for messages."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)), "none")
