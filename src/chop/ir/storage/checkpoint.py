"""Checkpoint: a graph in two files, without pickle.

`name.pt` is a safetensors file with parameters, buffers and constants. `name.mz` is readable JSON
with nodes, module tree, number formats and guards on inputs. Only node metadata are compressed,
which would be most of the file for a small model. The JSON ends with its own SHA-256, and contains
that of the safetensors file.

Reading runs no code from the files: functions and classes are resolved by name in an allowlist
(`chop.ir.storage.allowed`), and modules are assembled from their attributes. The graph is not run,
so that time and memory are bounded by the size of the files. Missing shapes are derived on tensors
without data (`chop.ir.storage.shapes`).

There are two kinds. `full_model` stores every tensor once. `state_dict` uses the names and contents
of `model.state_dict()`, so that the `.pt` loads into the original model:
`model.load_state_dict(safetensors.torch.load_file("name.pt"))`. The few tensors outside a state
dict (non-persistent buffers, constants, statistics) are in the `.mz`. Both kinds can be read back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from chop.base.files import atomic_files, is_readable_file, latest, shared_lock
from chop.base.files.reading import BOUNDS, open_regular
from chop.captured.guards.shape_guards import compile_guard
from chop.captured.module import CapturedModule
from chop.captured.record import CaptureRecord
from chop.errors import CheckpointError, describe, did_you_mean
from chop.ir.metadata import Provenance
from chop.ir.storage.allowed import AllowList
from chop.ir.storage.codec import Decoder, Encoder, Json, NotPlainError
from chop.ir.storage.configs import ConfigReader, ConfigWriter
from chop.ir.storage.document import read_document, render
from chop.ir.storage.graph_codec import decode_graph, encode_graph, fold_metadata, unfold_metadata
from chop.ir.storage.module_codec import decode_tree, encode_tree
from chop.ir.storage.shapes import describe_missing
from chop.ir.storage.tensor_store import (
    TensorStore,
    as_stored,
    pack_inline,
    read_file,
    restore,
    unpack_inline,
)
from chop.nn.quantized.masks import has_unapplied_mask
from chop.nn.quantized.replicas import keep_ranges_local
from chop.nn.transposed import stores_transposed

SUFFIXES = (".pt", ".mz")
FOREIGN = (".onnx", ".gguf", ".safetensors", ".pth", ".ckpt", ".pkl", ".h5", ".bin")
"""Suffixes of files of other tools, which a checkpoint is not."""
FILE_IN_RUN = "model"
"""Name of the checkpoint in a run's folder, without a suffix."""
MAX_MESSAGE = 600
LONG_WORD = re.compile(r"\S{200,}")
SaveFormat = Literal["full_model", "state_dict"]


def export(
    model: CapturedModule,
    provenance: Sequence[Provenance],
    fname: str | Path,
    save_format: SaveFormat = "full_model",
) -> None:
    """Writes `fname.pt` and `fname.mz` atomically; after a failure, older files are unchanged.

    Missing folders are created.

    Args:
        model: the captured model; it is not changed.
        provenance: passes applied to the graph.
        fname: any path. Only the suffixes `.pt` and `.mz` are removed; other dots belong to the
            name.
        save_format: see the module docstring.

    Raises:
        CheckpointError: if an object in the graph has no plain form; the message names it. Also if
            the name is that of a folder, or has the suffix of another format.
        WriteError: if the disk is full or read-only.
    """
    if save_format not in get_args(SaveFormat):
        choice = did_you_mean(save_format, get_args(SaveFormat))
        raise CheckpointError(f"save_format: got {describe(save_format)}: {choice}")
    tensor_path, graph_path = checkpoint_paths(fname)
    if Path(fname).suffix in FOREIGN:
        raise CheckpointError(
            f"'{fname}': a checkpoint is two files of chop, .pt and .mz; leave "
            f"{Path(fname).suffix} out. chop.passes.export_interface_pass writes other formats."
        )
    store = TensorStore()
    document = fold_metadata(_describe(model, provenance, store))
    tensors = store.tensors
    if save_format == "state_dict":
        state = _state_dict(model)
        document["inline"] = pack_inline(
            {name: tensor for name, tensor in tensors.items() if name not in state}
        )
        tensors = state
        _mark_transposed(model, document["tensors"])
    with atomic_files(tensor_path.parent, tensor_path.stem) as folder:
        written = folder / tensor_path.name
        _save_tensors(tensors, written)
        document["tensor_file"] = {"sha256": _digest(written), "size_bytes": written.stat().st_size}
        text = render({"save_format": save_format, **document})
        if len(text) > (BOUNDS["checkpoint"] or len(text)):
            raise CheckpointError(
                f"'{graph_path}' would have {len(text):,} bytes, more than are read again: its "
                "graph has large tensors outside of the state dict; use save_format='full_model'."
            )
        (folder / graph_path.name).write_bytes(text)


def read_checkpoint(
    checkpoint: str | Path,
    propagate_missing_metadata: bool = True,
    allow: Iterable[Any] = (),
    meta: bool = False,
) -> tuple[CapturedModule, list[Provenance]]:
    """Reads a checkpoint of `export`.

    The graph computes bit-identical results in the same mode, and can be trained and exported
    again.

    Args:
        checkpoint: the name given to `export`, with or without a suffix.
        propagate_missing_metadata: add operator, shapes and dtypes to nodes without metadata if
            other nodes have some.
        allow: your own module classes, functions and `autograd.Function`s that the checkpoint may
            contain.
        meta: create parameters and buffers on the meta device without reading their data, except
            for data in the `.mz` and data that decoding needs. The digest of the tensors is not
            checked, since that would read them.
    Returns: the captured model, and the passes applied to its graph.

    Raises:
        CheckpointError: if a file is missing, truncated, corrupt, foreign or from a later version,
            or names code that is not allowed.
    """
    with _reading_errors(checkpoint):
        document, stored, on_meta = _read(checkpoint, meta)
        model, provenance = _rebuild(document, stored, AllowList(allow), on_meta)
        if propagate_missing_metadata:
            describe_missing(model)
    return model, provenance


def open_checkpoint(checkpoint: str | Path, verify: bool = True) -> tuple[Path, dict[str, Json]]:
    """Opens the files of a checkpoint to read single tensors.

    Args:
        checkpoint: the name given to `export`, with or without a suffix.
        verify: compare the digest of all tensors, which reads them once; otherwise only their size.
    Returns: the safetensors file, and the document that describes it: `tensors`, `inline` and
        `modules` locate each parameter and buffer.

    Raises:
        CheckpointError: if a file is missing, truncated, corrupt, foreign or from a later version.
    """
    with _reading_errors(checkpoint), shared_lock(checkpoint_paths(checkpoint)[0].parent):
        return _open(checkpoint, verify)


@contextmanager
def _reading_errors(checkpoint: str | Path) -> Iterator[None]:
    """Converts any exception caused by a malformed file to a one-sentence CheckpointError."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(_sanitize(str(error))) from error.__cause__
    except (MemoryError, OSError):
        raise
    except Exception as error:
        # Code that expects a well-formed document may raise any exception for others.
        where = f"'{checkpoint_paths(checkpoint)[1]}' is malformed"
        raise CheckpointError(_sanitize(f"{where} ({type(error).__name__}: {error}).")) from error


def _sanitize(text: str) -> str:
    """Sanitizes a message that may quote a file: shortens it and removes control characters."""
    text = LONG_WORD.sub(lambda word: f"{word[0][:60]}...{word[0][-20:]}", text)[:MAX_MESSAGE]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# --- the document ------------------------------------------------------------------------------


def _describe(
    model: CapturedModule, provenance: Sequence[Provenance], store: TensorStore
) -> dict[str, Json]:
    """Returns the graph as plain data; its tensors are added to `store`."""
    configs = ConfigWriter()
    names = itertools.count()

    def add(tensor: Tensor) -> Json:
        # The empty path component cannot clash with a parameter of the model.
        return {"$tensor": store.add(f"attribute..{next(names)}", tensor)}

    encode = Encoder({nn.Module: _refuse, Tensor: add, **configs.rules})
    modules = encode_tree(model, store, encode)
    return {
        "model": model.record.class_name,
        "torch": torch.__version__,
        "attributes": {
            name: _encode_attribute(name, getattr(model.record, name), encode)
            for name in _root_attributes()
        },
        "provenance": [[step.name, step.config] for step in provenance],
        **encode_graph(model.graph, encode, Encoder({Tensor: _optional(add)}, functions=False)),
        "modules": modules,
        "tensors": store.table,
        "configs": configs.plain,
    }


def _refuse(module: nn.Module) -> Json:
    raise NotPlainError(f"a module ({type(module).__name__}) that is not registered as a child")


def _optional(add: Callable[[Tensor], Json]) -> Callable[[Tensor], Json]:
    """Wraps `add` for optional tensors: those without plain data cause no error."""

    def try_to_add(tensor: Tensor) -> Json:
        try:
            return add(tensor)
        except CheckpointError as error:
            raise NotPlainError(str(error)) from None

    return try_to_add


def _root_attributes() -> list[str]:
    return [field.name for field in dataclasses.fields(CaptureRecord)]


def _encode_attribute(name: str, value: Any, encode: Encoder) -> Json:
    try:
        return encode(value)
    except NotPlainError as error:
        if name == "config" and hasattr(value, "__dict__"):
            # A custom settings class: its attributes are plain data, the class is code.
            return {"$namespace": encode.leniently(vars(value))}
        raise CheckpointError(f"the model's '{name}' cannot be exported: it is {error}.") from None


def _rebuild(
    document: Json, stored: Mapping[str, Tensor], allowed: AllowList, on_meta: Collection[str]
) -> tuple[CapturedModule, list[Provenance]]:
    inline = unpack_inline(document.get("inline", {}), document["tensors"])
    tensors = restore(document["tensors"], {**stored, **inline}, on_meta)
    configs = ConfigReader(document["configs"], allowed)
    decode = Decoder(allowed, {"$tensor": tensors.__getitem__, **configs.rules})
    model = CapturedModule(str(document["model"]))
    paths = decode_tree(model, document["modules"], tensors, allowed, decode)
    keep_ranges_local(model)
    for name in _root_attributes():
        if name in document["attributes"]:
            setattr(model.record, name, decode(document["attributes"][name]))
    for guard in (*model.record.guards, *model.record.training_guards):
        compile_guard(guard)
    model.graph = decode_graph(document, paths, allowed, decode)
    model.record.check()
    recorded = [*model.record.optional_inputs]
    optional = [str(x.target) for x in model.graph.nodes if x.op == "placeholder" and x.args]
    if optional != recorded:
        raise CheckpointError(
            f"of the graph's inputs {optional} are optional, expected {recorded}."
        )
    steps = [Provenance(str(name), str(config)) for name, config in document["provenance"]]
    return model, steps


# --- the files ---------------------------------------------------------------------------------


def checkpoint_paths(name: str | Path) -> tuple[Path, Path]:
    """Returns the paths of the two files of a checkpoint, `name.pt` and `name.mz`.

    Raises:
        CheckpointError: if the name is that of a folder.
    """
    path = Path(name).expanduser()
    if path.suffix in SUFFIXES:
        path = path.with_suffix("")
    if not path.name or str(name).endswith(("/", os.sep)):
        raise CheckpointError(f"'{name}': expected a path with a file name, such as runs/small.")
    tensor_path, graph_path = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return tensor_path, graph_path


def _read(
    checkpoint: str | Path, meta: bool
) -> tuple[dict[str, Json], dict[str, Tensor], frozenset[str]]:
    """Reads the document and the tensors; also returns the names of tensors on meta."""
    with shared_lock(checkpoint_paths(checkpoint)[0].parent):
        tensor_path, document = _open(checkpoint, verify=not meta)
        on_meta = _module_only_tensors(document) if meta else frozenset()
        return document, read_file(tensor_path, on_meta), on_meta


def _open(checkpoint: str | Path, verify: bool) -> tuple[Path, dict[str, Json]]:
    """Opens the tensor file and the document of one export.

    Inside `shared_lock`, another export cannot replace the files meanwhile.
    """
    tensor_path, graph_path = map(latest, checkpoint_paths(checkpoint))
    _require(tensor_path, graph_path)
    document = read_document(graph_path)
    _check_tensor_file(tensor_path, graph_path, document, verify)
    unfold_metadata(document)
    return tensor_path, document


def _module_only_tensors(document: Json) -> frozenset[str]:
    """Returns the stored tensors that are only parameters or buffers of modules."""
    alone: set[str] = set()
    needed = set(document.get("inline", ())) | _tensors_in(document)
    for record in document["modules"]:
        named = {**record.get("parameters", {}), **record.get("buffers", {})}
        keys = {key for key in named.values() if key is not None}
        masks_on_load = has_unapplied_mask(record.get("buffers", {}))
        (needed if masks_on_load else alone).update(keys)
    table = document["tensors"]
    # A tensor that shares memory is read from the tensor that was stored.
    needed |= {table[key].get("storage_of", key) for key in needed}
    return frozenset(key for key in alone - needed if table[key].get("storage_of") not in needed)


def _tensors_in(plain: Json) -> set[str]:
    """Returns the names of all tensors in values, such as attributes of modules."""
    if isinstance(plain, dict):
        if "$tensor" in plain:
            return {str(plain["$tensor"])}
        plain = list(plain.values())
    return set().union(*map(_tensors_in, plain)) if isinstance(plain, list) else set()


def find_checkpoint(name: str | Path) -> Path | None:
    """Returns the checkpoint at a path, with or without a suffix, or in a run's folder.

    A checkpoint without its graph file is found too, so that reading says which file is missing.
    Exceptions are folders of transformers, words without a slash, which may name a model, and
    weights of `torch.save`, which are zip files.

    Returns: its path without a suffix, or None.
    """
    path = Path(name).expanduser()
    stem = path.with_suffix("") if path.suffix in SUFFIXES else path
    inside = path / FILE_IN_RUN
    places = [place for place in (inside, stem) if place.name]
    whole = [place for place in places if place.with_name(f"{place.name}.mz").is_file()]
    is_word = len(path.parts) < 2 and stem == path
    may_lack = [] if (path / "config.json").exists() else [inside, *([stem] * (not is_word))]
    partial = [place for place in may_lack if _has_tensors(place.with_name(f"{place.name}.pt"))]
    return next(iter(whole + partial), None)


def _has_tensors(path: Path) -> bool:
    return path.is_file() and not zipfile.is_zipfile(path)


def _require(tensor_path: Path, graph_path: Path) -> None:
    missing = [path for path in (tensor_path, graph_path) if not is_readable_file(path)]
    if not missing:
        return
    if len(missing) == 2:
        folder = tensor_path.with_suffix("")
        inside = sorted(folder.glob("*.mz"))
        others = [path.with_suffix("") for path in tensor_path.parent.glob("*.mz")]
        hint = f" {did_you_mean(folder, others)}" if others else ""
        if inside:
            hint = f" did you mean '{inside[0].with_suffix('')}'?"
        path = tensor_path.with_suffix("")
        if path.is_file():
            raise CheckpointError(f"file '{path}' is no checkpoint of chop (.pt and .mz).{hint}")
        if path.is_dir():
            raise CheckpointError(f"folder '{path}' has no checkpoint (.pt and .mz).{hint}")
        if path.parent.is_file():
            raise CheckpointError(
                f"'{path.parent}' is a file, expected the folder of a checkpoint."
            )
        if not path.parent.exists():
            hint = f" The folder '{path.parent}' does not exist."
        raise CheckpointError(f"there is no checkpoint '{path}'.{hint}")
    raise CheckpointError(
        f"'{missing[0]}' is missing: a checkpoint is two files, .pt with weights and .mz with the "
        "graph. Copy both, or write it again. Files of torch.save are not checkpoints of chop."
    )


def _check_tensor_file(tensor_path: Path, graph_path: Path, document: Json, verify: bool) -> None:
    expected = document.get("tensor_file")
    if not isinstance(expected, dict):
        raise CheckpointError(f"'{graph_path}' is malformed: it does not describe its tensors.")
    size = tensor_path.stat().st_size
    is_whole = size == expected.get("size_bytes")
    if is_whole and (not verify or _digest(tensor_path) == expected.get("sha256")):
        return
    length = f"it has {size} bytes, expected {expected.get('size_bytes')}"
    raise CheckpointError(
        f"'{tensor_path}' does not belong to '{graph_path}', or is cut off or corrupt: "
        f"{'its contents differ' if is_whole else length}."
    )


def _digest(path: Path) -> str:
    with open_regular(path, "weights") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Returns `model.state_dict()`; tied tensors get their own memory, as safetensors requires."""
    tensors = {name: x for name, x in model.state_dict().items() if isinstance(x, Tensor)}
    for name, tensor in tensors.items():
        if as_stored(tensor).dtype != tensor.dtype:
            raise CheckpointError(
                f"tensor '{name}': safetensors has no {tensor.dtype}, so a state dict cannot store "
                "it; use save_format='full_model'."
            )
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _mark_transposed(model: nn.Module, table: dict[str, Json]) -> None:
    """Records the tensors that a state dict stores transposed."""
    for path, module in model.named_modules():
        name = f"{path}.weight"
        if stores_transposed(module) and name in table:
            table[name]["transposed"] = True


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    stored = {name: as_stored(tensor) for name, tensor in tensors.items()}
    save_file(_copy_shared(stored), path, metadata={"format": "pt"})


def _copy_shared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors that share memory, which safetensors cannot write."""
    owners: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        is_view = storage.data_ptr() in owners or storage.nbytes() != tensor.nbytes
        owners.add(storage.data_ptr())
        apart[name] = tensor.clone() if is_view else tensor
    return apart
