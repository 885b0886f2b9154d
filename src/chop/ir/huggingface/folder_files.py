"""Checks of the files in a Hugging Face folder before a library opens them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from chop.base.files.documents import read_json
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import POINTER, open_regular
from chop.errors import CheckpointError
from chop.ir.storage.torch_file import check_torch_file

KINDS = {
    "*.index.json": "index",
    "tokenizer.json": "tokenizer",
    "vocab.*": "tokenizer",
    "merges.txt": "tokenizer",
    "added_tokens.json": "tokenizer",
    "tekken.json": "tokenizer",
    "*.model": "tokenizer",
    "*.tiktoken": "tokenizer",
    "config.json": "config",
    "*_config.json": "config",
    "special_tokens_map.json": "config",
    "chat_template.*": "config",
    "*.safetensors": "weights",
    "*.bin": "weights",
    "*.gguf": "gguf",
}
"""Files that transformers may open in a folder: name pattern -> kind in `BOUNDS`."""
PICKLED = ".bin"


def check_folder_files(folder: Path) -> None:
    """Checks that files which a library may open are regular and within their size limits.

    Raises:
        CheckpointError: if such a file is a pipe, socket, device or pointer of Git LFS, is larger
            than its kind allows, unpacks to more than its size, or is an index of files elsewhere.
    """
    for path in sorted(folder.iterdir()):
        kind = next((kind for name, kind in KINDS.items() if fnmatch(path.name, name)), None)
        if kind is None or path.is_dir():
            continue
        with library_errors(path):
            with open_regular(path, kind) as file:
                is_pointer = file.read(len(POINTER)) == POINTER
            if is_pointer:
                raise CheckpointError(
                    f"'{path}' is a pointer of Git LFS, not the file: run git lfs pull in the "
                    "folder, or fetch the folder again."
                )
            if path.suffix == PICKLED:
                check_torch_file(path)
        if kind == "index":
            _check_index(path)


def check_shards(index: Path, names: Iterable[str]) -> None:
    """Raises CheckpointError if files that an index lists are missing.

    Args:
        index: path of the index.
        names: names of the files, which may repeat.
    """
    every = {*names}
    missing = sorted(name for name in every if not (index.parent / name).is_file())
    if missing:
        raise CheckpointError(
            f"'{index.parent}' lacks {len(missing)} of the {len(every)} files that {index.name} "
            f"lists, the first is '{missing[0]}'; fetch the folder again."
        )


def _check_index(path: Path) -> None:
    """Raises CheckpointError if an index refers to anything but files of its folder."""
    with library_errors(path):
        document = read_json(path, "index")
    places = document.get("weight_map")
    if not isinstance(places, dict) or not isinstance(document.get("metadata", {}), dict):
        raise CheckpointError(f"'{path}': expected the files of tensors, by name, in a weight_map.")
    for name in places.values():
        is_name = isinstance(name, str) and "\0" not in name and name not in ("", "..")
        if not is_name or Path(name).name != name:
            raise CheckpointError(
                f"'{path}' names {name!r:.80}, which is not a file of the folder."
            )
