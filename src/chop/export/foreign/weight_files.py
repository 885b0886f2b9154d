"""Weight files of a folder that another tool wrote: safetensors alone, and inside the folder."""

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
    """A JSON object.

    Args:
        path: file to read.
        kind: a key of `chop.base.files.reading.BOUNDS`.
    Raises:
        CheckpointError: the file is missing, or holds none.
    """
    try:
        content: dict[str, Any] = read_json(path, kind)
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {first_line(error)}") from None
    return content


def list_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder by name.

    Args:
        folder: with `model.safetensors`, an index of several files, or files of other names.

    Raises:
        CheckpointError: there are none, or one is broken, is outside the folder, or has a tensor
            that another has too. Pickled weights are not read.
    """
    found: dict[str, Tensor] = {}
    for file in _files(folder):
        if not file.is_file():
            raise CheckpointError(f"'{file}' is missing, or no regular file.")
        with open_file(file) as opened:
            for name in opened.keys():  # noqa: SIM118
                if name in found:
                    raise CheckpointError(f"'{folder}' has the tensor '{name}' twice.")
                found[name] = opened.get_tensor(name)
    return found


def _files(folder: Path) -> list[Path]:
    if (folder / WHOLE).is_file():  # an index beside it is not read by transformers either
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
    """A file by the name that an index has; what a folder links to is its owner's matter."""
    home = Path(os.path.normpath(folder.absolute()))
    path = Path(os.path.normpath(home / name))
    if "\0" in name or not path.is_relative_to(home):
        raise CheckpointError(f"the index of '{folder}' names {name!r}, which is outside of it.")
    return path
