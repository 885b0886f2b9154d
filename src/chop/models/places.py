"""Location of models: a path, or the local hub cache for models of other tools."""

from __future__ import annotations

import re
from pathlib import Path

from chop.base.hub import hub_file, hub_folder
from chop.errors import ConfigError, UnavailableError, enumerate_names
from chop.export.foreign.readers import get_reader
from chop.export.gguf.header import SUFFIX
from chop.ir.huggingface.config_file import CONFIG

REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
FILE = re.compile(rf"(?P<repo>\w[\w.-]*/\w[\w.-]*)/(?P<file>\w[\w./-]*\{SUFFIX})")
FETCHED = ("*.json", "*.safetensors", "*.jinja", "*.model")
"""Files to download from a repository of another tool."""
MOST_NAMES = 8


def get_place(name: str) -> Path:
    """Returns the path or name of a model, or its folder in the hub cache if another tool wrote it.

    Args:
        name: a path, a hub name, or a GGUF file on the hub, "org/model/file.gguf".

    Raises:
        UnavailableError: if another tool wrote it, and its weights are neither in the hub cache nor
            on a reachable hub.
        ConfigError: if the cache has several GGUF files, and the name does not select one.
    """
    path, file = Path(name), FILE.fullmatch(name)
    if path.exists() or (file is None and not REPOSITORY.fullmatch(name)):
        return path
    if file is not None:
        local = hub_file(file["repo"], file["file"])
        if local is None:
            raise _unavailable(name, f"{file['repo']} {file['file']}")
        return local
    config = hub_file(name, CONFIG)
    if config is not None and get_reader(config.parent) is not None:
        return _coded_folder(name)
    return _gguf_in(name) or path


def _coded_folder(name: str) -> Path:
    folder = hub_folder(name, FETCHED)
    if folder is None or not any(folder.glob("*.safetensors")):
        raise _unavailable(name, name)
    return folder


def _gguf_in(name: str) -> Path | None:
    """Returns the only GGUF file in the cache of a repository without other weights."""
    folder = hub_folder(name)
    if folder is None or any(any(folder.glob(f"*.{x}")) for x in ("safetensors", "bin")):
        return None
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        names = enumerate_names([f"{name}/{file.name}" for file in files], MOST_NAMES)
        raise ConfigError(f"'{name}' has {len(files)} files in the hub cache: name one of {names}.")
    return files[0] if files else None


def _unavailable(name: str, what: str) -> UnavailableError:
    return UnavailableError(
        f"'{name}' is neither a local path nor in the hub cache with its weights, and the hub "
        f"cannot be reached: run 'hf download {what}' where one can be, or pass a local path."
    )
