"""Weight files of a folder: names and shapes of tensors, checked against a model."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.errors import CheckpointError, did_you_mean
from chop.ir.huggingface.misfits import NO_FLOATS, describe_non_floats
from chop.ir.huggingface.tools import find_tool
from chop.ir.storage.tensor_store import open_file
from chop.nn.packed import PackedOperator
from chop.private.modules import own_buffers, own_parameters
from chop.private.transformers_api import may_be_missing, may_be_unexpected

DTYPES = {torch.uint8: "U8", torch.float32: "F32"}
"""Dtypes of codes and scales, by safetensors' names."""
NamesIn = Callable[[Any, Iterable[str]], Mapping[str, str]]
"""(model, names in files) -> mapping from names in files to names in the model."""
FREE_ELEMENTS = 2**20
"""Elements of a layer that is built regardless of the files, to report its expected shape."""


class StoredTensors:
    """Names, types and shapes of the tensors in a folder's safetensors files.

    Args:
        model: Hugging Face model to be loaded.
        files: the files.
        names_in: maps names in the files to names in the model.

    Raises:
        CheckpointError: if a file is outside the folder, or not a safetensors file.
    """

    def __init__(self, model: Any, files: Sequence[str], names_in: NamesIn) -> None:
        _check_inside(model.config.name_or_path, files)
        self._prefix, self._known = model.base_model_prefix, {*model.state_dict()}
        self._stored: dict[str, tuple[str, list[int]]] = {}
        self._files: dict[str, Path] = {}
        for file in files:
            with open_file(Path(file)) as opened:
                for name in opened.offset_keys():
                    part = opened.get_slice(name)
                    self._stored[name] = part.get_dtype(), list(part.get_shape())
                    self._files[name] = Path(file)
        self._size = sum(math.prod(shape) for _, shape in self._stored.values())
        self._names_in = names_in
        self._own = names_in(model, self._stored)
        self._renamed = {own: name for name, own in self._own.items()}

    def has(self, key: str) -> bool:
        """Returns whether the files have a model's tensor, with or without the body's prefix."""
        return self._find(key) is not None

    def check_float(self, model: Any) -> None:
        """Checks the types of tensors for a model with floats only.

        Raises:
            CheckpointError: if there are codes without formats, or integers in place of floats.
        """
        floats = {name for name, x in model.state_dict().items() if x.is_floating_point()}
        for name, own in self._own.items():
            kind = self._stored[name][0]
            if own in floats and kind.startswith(NO_FLOATS):
                raise describe_non_floats(name, kind, f"'{model.config.name_or_path}'")
        coded = next((name for own, name in self._renamed.items() if self._is_coded(own)), None)
        if coded is None:
            return
        lacking = "no quantization_config says how to decode them"
        if find_tool(coded) == "chop":
            lacking = "its quantization_config lacks the 'modules' that say what codes mean"
        raise CheckpointError(
            f"the folder's weights have '{coded}', but {lacking}; expected float weights."
        )

    def _is_coded(self, own: str) -> bool:
        return own not in self._known and find_tool(own) is not None

    def differ(self, key: str, other: str) -> bool:
        """Returns whether the files have two different tensors of these names."""
        names = self._name(key), self._name(other)
        if None in names or names[0] == names[1]:
            return False
        tensors = []
        for name in names:
            with open_file(self._files[str(name)]) as opened:
                tensors.append(opened.get_tensor(name))
        return not torch.equal(*tensors)

    def _name(self, key: str) -> str | None:
        names = (key, key.removeprefix(f"{self._prefix}."), f"{self._prefix}.{key}")
        own = next((name for name in names if name in self._stored), None)
        return own or next((self._renamed[name] for name in names if name in self._renamed), None)

    def _find(self, key: str) -> tuple[str, list[int]] | None:
        name = self._name(key)
        return None if name is None else self._stored[name]

    def check_room(self, path: str, module: nn.Module) -> None:
        """Checks the size of a layer's codes before the layer, without data, is packed.

        A number takes at least one bit. The sizes in a folder are arbitrary, and packing a layer
        takes memory of that size.

        Raises:
            CheckpointError: if the folder has fewer bits than the layer has numbers.
        """
        for name, x in own_parameters(module).items():
            if x is None or x.numel() <= FREE_ELEMENTS:
                continue
            stored = self._find(f"{path}.{name}_codes") or self._find(f"{path}.{name}")
            # The codes of a tied layer are stored under the other layer's name.
            size = math.prod(stored[1]) if stored else self._size
            if x.numel() > 8 * size:
                raise CheckpointError(
                    f"'{path}.{name}' has {x.numel()} numbers by the folder's config.json, its "
                    f"weights have {size} bytes of codes."
                )

    def check(self, path: str, module: PackedOperator) -> None:
        """Raises CheckpointError if codes are missing or have another size."""
        for name, buffer in own_buffers(module).items():
            if buffer is None:
                continue
            stored = self._find(f"{path}.{name}")
            expected = DTYPES.get(buffer.dtype), [*buffer.shape]
            if stored is None:
                raise CheckpointError(
                    f"the folder's weights lack '{path}.{name}', which its quantization_config "
                    "lists."
                )
            if stored != expected:
                raise CheckpointError(
                    f"'{path}.{name}': the format in quantization_config has {expected[1]} of "
                    f"{expected[0]}, the folder's weights {stored[1]} of {stored[0]}."
                )

    def check_complete(self, model: Any, whole: bool) -> None:
        """Checks that the files have all tensors of a model, so that no layer starts at random.

        Args:
            model: model with its quantized modules, without data.
            whole: True if it has the saved class; otherwise only the body must be complete.

        Raises:
            CheckpointError: if a tensor is missing, or is not part of the model.
        """
        given = self._names_in(model, self._stored)
        needed = set(model.state_dict()) - set(model.all_tied_weights_keys)
        if not whole:
            body = "" if model.base_model is model else f"{self._prefix}."
            needed = {name for name in needed if name.startswith(body)}
        missing = exclude_matching(needed - {*given.values()}, may_be_missing(model))
        kind = type(model).__name__
        if missing:
            raise CheckpointError(
                f"the folder's weights lack '{missing[0]}', which {kind} needs; its "
                "quantization_config lists what is packed."
            )
        known = {*model.state_dict(), *model.all_tied_weights_keys}
        known |= {name for name, _ in model.named_buffers()}
        extra = {name for name, own in given.items() if own not in known} if whole else set()
        unexpected = exclude_matching(extra, may_be_unexpected(model))
        if unexpected:
            raise CheckpointError(
                f"the folder's weights have '{unexpected[0]}', for which {kind} has no place: "
                f"{did_you_mean(unexpected[0], known)}"
            )


def _check_inside(folder: str, files: Sequence[str]) -> None:
    """Raises CheckpointError if an index refers to a file outside its folder."""
    if not Path(folder).is_dir():  # a hub name, whose files are in the cache
        return
    home = os.path.normpath(Path(folder).absolute())
    for file in files:  # by name: links within the folder may lead anywhere
        if not Path(os.path.normpath(Path(file).absolute())).is_relative_to(home):
            raise CheckpointError(
                f"the index of {folder} names '{file}', which is outside of that folder."
            )


def exclude_matching(names: Iterable[str], ignored: Iterable[str] | None) -> list[str]:
    """Returns the names that no pattern matches, sorted."""
    patterns = [*(ignored or ())]
    return sorted(x for x in names if not any(re.search(pattern, x) for pattern in patterns))
