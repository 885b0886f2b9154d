"""Weight files: safetensors and `torch.save`, read without running code."""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from chop.base.files import is_readable_file
from chop.config import with_checked_arguments
from chop.distributed.weight_files import INDEX, Stored, read_slices, stored_tensors
from chop.errors import (
    CheckpointError,
    ConfigError,
    describe,
    enumerate_names,
    first_line,
)
from chop.ir.graph import MaseGraph
from chop.ir.storage.torch_file import read_torch_file
from chop.runs import MANIFEST

LoadType = Literal["mz", "pt", "pl"]
NESTED = ("state_dict", "model")
"""Keys under which training scripts store the tensors in a larger file."""
NO_CODE = "expected only tensors, as written by torch.save(model.state_dict(), ...) or safetensors"
DICTIONARY = b"\x80\x02}"
"""First bytes of a dictionary in the pickle protocol of `torch.save`."""
READ_TWICE = 2**28
"""Maximum bytes of a weight file that is also checked before the data are read."""
MAX_NAMES = 5


@with_checked_arguments
def load_checkpoint(
    load_name: str | Path, load_type: LoadType = "mz", model: nn.Module | None = None
) -> nn.Module:
    """Loads a checkpoint into a model.

    Args:
        load_name: the file; for `mz`, the name given to `MaseGraph.export`.
        load_type: `mz`, a graph of `MaseGraph.export`; `pt`, a state dict of torch or safetensors;
            `pl`, a checkpoint of PyTorch Lightning whose module calls it `model`.
        model: model that gets the weights of `pt` and `pl`, in place.

    Returns: the graph's model, or `model`.

    Raises:
        ConfigError: if the type is unknown, or a state dict is given without a model.
        CheckpointError: if the file is missing or broken, would run code, or does not fit the
            model.
    """
    if load_type == "mz":
        return MaseGraph.from_checkpoint(load_name).model
    if model is None:
        raise ConfigError(f"load_type '{load_type}' contains only weights: pass model=.")
    return load_weights(model, load_name, prefix="model." if load_type == "pl" else "")


def load_weights(model: nn.Module, path: str | Path, prefix: str = "") -> nn.Module:
    """Loads the weights of a file into a model.

    Args:
        model: model that gets the weights.
        path: a file with tensors by name, directly, under `state_dict` or `model`, or in its only
            nested mapping with tensors; or a Hugging Face folder, or its index of shards.
        prefix: prefix of the names in the file. Default: the common prefix of the model's names
            there (`module.` of `DataParallel`, `_orig_mod.` of `torch.compile`, the attribute of
            the model in a Lightning module).

    Raises:
        CheckpointError: if the file is missing or broken, would run code, or does not fit the
            model.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a module, got {describe(model)}.")
    own = model.state_dict()
    state = {name.removeprefix(prefix): x for name, x in _read_state(Path(path)).items()}
    before = _get_prefix(own, state)
    state = {name.removeprefix(before): x for name, x in state.items()}
    differences = _differences(own, state)
    if differences:
        raise CheckpointError(
            f"'{path}' does not fit the model {type(model).__name__}: {'; '.join(differences)}."
            f"{_advise_run(Path(path))}"
        )
    model.load_state_dict(state)
    return model


def check_readable(path: str | Path) -> None:
    """Checks that a weight file or folder exists and, unless it is large, can be read.

    Raises:
        CheckpointError: if it is missing or broken, or would run code.
    """
    path = Path(path)
    if not path.is_dir() and (not path.is_file() or path.stat().st_size < READ_TWICE):
        _read_state(path)


def _get_prefix(own: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Returns the common prefix of a model's names in a file; empty if a name is missing."""
    first = next(iter(own), "")
    ends = [name for name in state if name.endswith(f".{first}")] if first not in state else []
    prefixes = (name.removesuffix(first) for name in ends)
    return next((start for start in prefixes if all(start + name in state for name in own)), "")


def _differences(own: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    both = own.keys() & state.keys()
    differing = {
        "missing": own.keys() - state.keys(),
        "unexpected": state.keys() - own.keys(),
        "of another shape": {key for key in both if _shape(own[key]) != _shape(state[key])},
    }
    both -= differing["of another shape"]
    differing["of another kind"] = {key for key in both if not _is_of_kind(state[key], own[key])}
    texts = [
        f"{what} {enumerate_names(sorted(names), MAX_NAMES)}"
        for what, names in differing.items()
        if names
    ]
    described = [(name, _describe_shape) for name in sorted(differing["of another shape"])]
    described += [(name, _describe_kind) for name in sorted(differing["of another kind"])]
    values = [
        f"{name} {show(state[name])} in the file, {show(own[name])} in the model"
        for name, show in described[:MAX_NAMES]
    ]
    return [*texts[:-1], f"{texts[-1]} ({'; '.join(values)})"] if values else texts


def _describe_shape(value: Any) -> str:
    shape = _shape(value)
    return "no tensor" if shape is None else str(tuple(shape))


def _describe_kind(value: Tensor) -> str:
    more = [value.layout] * (value.layout != torch.strided) + ["without data"] * value.is_meta
    return " ".join(map(str, [value.dtype, *more])).replace("torch.", "")


def _is_of_kind(given: Any, own: Any) -> bool:
    """Returns whether numbers keep their meaning in another dtype or layout; codes do not."""
    if not isinstance(given, Tensor) or not isinstance(own, Tensor):
        return True
    is_code = given.dtype in (torch.int8, torch.uint8) and own.is_floating_point()
    is_cut = given.is_complex() and not own.is_complex()
    same_layout = (given.layout, given.is_quantized) == (own.layout, own.is_quantized)
    has_data = own.is_meta or not given.is_meta
    return same_layout and has_data and not is_code and not is_cut


def _shape(value: Any) -> torch.Size | None:
    return value.shape if isinstance(value, Tensor) else None


def _read_state(path: Path) -> Mapping[str, Any]:
    """Returns the tensors of a file by name, at the top level or nested."""
    state = _read(path)
    if isinstance(state, Mapping):
        nested = (state[key] for key in NESTED if key in state)
        inner = next((inner for inner in nested if not isinstance(inner, Tensor)), None)
        state = _only_nested(path, state) if inner is None else inner
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise CheckpointError(f"'{path}' contains a {kind}, expected tensors by name.")
    if wrong := [repr(key) for key in state if not isinstance(key, str)]:
        raise CheckpointError(
            f"'{path}' has tensors under {enumerate_names(wrong, MAX_NAMES)}, expected names."
        )
    return state


def _only_nested(path: Path, state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns the only nested mapping with tensors, or the mapping itself."""
    if any(isinstance(x, Tensor) for x in state.values()):
        return state
    nested = {key: x for key, x in state.items() if isinstance(x, Mapping) and _has_tensors(x)}
    if len(nested) > 1:
        raise CheckpointError(
            f"'{path}' contains weights under {enumerate_names([*map(str, nested)], MAX_NAMES)}: "
            "save each model in its own file."
        )
    return next(iter(nested.values()), state)


def _has_tensors(mapping: Mapping[Any, Any]) -> bool:
    return any(isinstance(x, Tensor) for x in mapping.values())


def _read(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    is_file = is_readable_file(path)
    is_run = path.is_dir() and (path / MANIFEST).is_file()
    if is_run or (is_file and path.suffix == ".mz"):
        raise CheckpointError(f"weights '{path}': expected float weights.{_advise_run(path)}")
    if path.is_dir() or (path.name == INDEX and is_file):
        tensors = stored_tensors(path.parent if is_file else path)
        return {name: read_slices(x.file, name, _whole(x)) for name, x in tensors}
    if not is_file:
        raise CheckpointError(f"weights '{path}': there is no such file.")
    try:
        return load_file(path)
    except SafetensorError as error:  # a file of torch.save, or cut off
        reason = first_line(error).rstrip(".")
    try:
        return read_torch_file(path)
    except CheckpointError:
        raise
    except Exception as error:  # torch's unpickler raises various errors
        if path.suffix == ".safetensors" and not zipfile.is_zipfile(path):
            raise CheckpointError(
                f"'{path}' cannot be read as safetensors ({reason}); it may be cut off: copy or "
                "download it again."
            ) from error
        raise CheckpointError(
            f"'{path}' contains no readable weights: {NO_CODE}{_describe_object(error, path)}."
        ) from error


def _advise_run(path: Path) -> str:
    """Returns the way to use weights that chop has packed, or no text for other files."""
    run = next((x for x in (path, path.parent) if (x / MANIFEST).is_file()), None)
    if run is None and not path.with_suffix(".mz").is_file():
        return ""
    if run is not None and not (run / "model.mz").is_file():
        return f" '{run}' is the output folder of a chop command: pass the float file."
    use = (
        f"MaseGraph.from_checkpoint('{path.with_suffix('')}') loads it"
        if run is None
        else f"pass the run itself in place of --model, as in chop evaluate {run}"
    )
    return (
        f" chop wrote it, and compressed weights are packed codes: {use}, or pass the float file."
    )


def _whole(stored: Stored) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in stored.shape)


def _describe_object(error: Exception, path: Path) -> str:
    """Describes an object in a file that is not a tensor; "" if torch does not name it."""
    text = str(error)
    named = re.search(r"GLOBAL (\S+) was not an allowed", text)
    if named is None:
        return "; it is a TorchScript program" if "TorchScript archive" in text else ""
    key = _key_of_weights(path)
    if key is None:
        return f"; it names '{named[1]}', which is code, as written by torch.save(model, ...)"
    return (
        f"; it is a dictionary with an object that is not a tensor, '{named[1]}'. If you trust the "
        "file, load it with checkpoint = torch.load(..., weights_only=False), and save its weights "
        f"by themselves: torch.save(checkpoint[{key}], ...)"
    )


def _key_of_weights(path: Path) -> str | None:
    """Returns the usual key of the weights in a pickled dictionary, or None for other objects."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        content = archive.read(name)
    if not content.startswith(DICTIONARY):
        return None
    # In a pickle, a text of up to 4 GiB is the letter X, its length and its bytes.
    texts = {key: b"X" + struct.pack("<I", len(key)) + key.encode() for key in NESTED}
    return next((f"'{key}'" for key, text in texts.items() if text in content), "key")
