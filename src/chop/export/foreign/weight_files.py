"""Weight files of other tools' folders: safetensors files inside the folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.base.files.documents import read_json
from chop.errors import CheckpointError, ConfigError, first_line
from chop.ir.storage.tensor_store import open_file

WEIGHTS = "*.safetensors"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def document(path: Path, kind: str = "config") -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        path: file to read.
        kind: key of `chop.base.files.reading.BOUNDS`.
    Raises:
        CheckpointError: if the file is missing or does not contain a JSON object.
    """
    try:
        content: dict[str, Any] = read_json(path, kind)
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {first_line(error)}") from None
    return content


def list_tensors(folder: Path) -> dict[str, Tensor]:
    """Returns all tensors of a folder by name.

    Args:
        folder: folder with `model.safetensors`, an index of several files, or other file names.

    Raises:
        CheckpointError: if there are no tensors, or if a file is broken, is outside the folder, or
            repeats a tensor. Pickled weights are not read.
    """
    tensors: dict[str, Tensor] = {}
    for file in _files(folder):
        if not file.is_file():
            raise CheckpointError(f"'{file}' is missing or not a regular file.")
        with open_file(file) as opened:
            for name in opened.keys():  # noqa: SIM118
                if name in tensors:
                    raise CheckpointError(f"'{folder}' has the tensor '{name}' twice.")
                tensors[name] = opened.get_tensor(name)
    return tensors


def _files(folder: Path) -> list[Path]:
    if (folder / WHOLE).is_file():  # an index next to it is not read by transformers either
        return [folder / WHOLE]
    if (folder / INDEX).is_file():
        return [_inside(folder, name) for name in _indexed(folder / INDEX)]
    files = sorted(folder.glob(WEIGHTS))
    if not files:
        raise CheckpointError(f"'{folder}' has no weights: expected {WEIGHTS}.")
    return files


def _indexed(index: Path) -> list[str]:
    places = document(index, "index").get("weight_map")
    if not isinstance(places, Mapping) or not places:
        raise CheckpointError(f"'{index}': expected the files of tensors in its weight_map.")
    names = [*dict.fromkeys(map(str, places.values()))]
    return sorted(names)


def _inside(folder: Path, name: str) -> Path:
    """Returns the file of an index entry inside the folder. The folder may contain links."""
    home = Path(os.path.normpath(folder.absolute()))
    path = Path(os.path.normpath(home / name))
    if "\0" in name or not path.is_relative_to(home):
        raise CheckpointError(
            f"the index of '{folder}' names {name!r}, which is outside of the folder."
        )
    return path
