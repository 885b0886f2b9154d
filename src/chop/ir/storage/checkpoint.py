"""Checkpoint: writes a graph to two files and reads it back, without pickle.

`name.pt` is a safetensors file: parameters, buffers and constants. `name.mz` is JSON that a person
can read: the nodes, the module tree, number formats and conditions on inputs. Only what passes
noted of the nodes is compressed: of a small model it would be most of the file. The JSON ends with
its own SHA-256, and has that of the safetensors file.

Reading runs no code that a file brings: functions and classes are looked up by name in a closed
list (`chop.ir.storage.allowed`), and modules are put together from their attributes. Nor does it
compute what a file asks for: the graph is not run, and time and memory follow the size of the
files. Only shapes that nodes lack are derived, on tensors without data (`chop.ir.storage.shapes`).

There are two kinds. `full_model` stores every tensor once. `state_dict` keeps to the names and
contents of `model.state_dict()`, so that the `.pt` alone loads into the original model:
`model.load_state_dict(safetensors.torch.load_file("name.pt"))`; the few tensors that a state dict
leaves out (not persistent buffers, constants, statistics) are in the `.mz`. Both can be read back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
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
from chop.errors import CheckpointError, did_you_mean
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
MAX_MESSAGE = 600
LONG_WORD = re.compile(r"\S{200,}")
SaveFormat = Literal["full_model", "state_dict"]


def export(
    model: CapturedModule,
    provenance: Sequence[Provenance],
    fname: str | Path,
    save_format: SaveFormat = "full_model",
) -> None:
    """Writes `fname.pt` and `fname.mz`, both or none: killed or failed, it leaves older ones alone.

    Missing folders are made.

    Args:
        model: the captured model; it is not changed.
        provenance: the passes that the graph went through.
        fname: any path. Of a suffix only `.pt` and `.mz` count, other dots are part of the name.
        save_format: see the module's text.

    Raises:
        CheckpointError: something in the graph has no plain form; the message names it.
        WriteError: the disk is full or read-only.
    """
    if save_format not in get_args(SaveFormat):
        choice = did_you_mean(save_format, get_args(SaveFormat))
        raise CheckpointError(f"save_format: got {save_format!r}: {choice}")
    tensor_path, graph_path = _paths(fname)
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
                "graph has large tensors beside the state dict; use save_format='full_model'."
            )
        (folder / graph_path.name).write_bytes(text)


def read_checkpoint(
    checkpoint: str | Path,
    propagate_missing_metadata: bool = True,
    allow: Iterable[Any] = (),
    meta: bool = False,
) -> tuple[CapturedModule, list[Provenance]]:
    """Reads what `export` wrote.

    The graph computes the same bits, in the same mode, and can be trained and exported again.

    Args:
        checkpoint: the name given to `export`, with or without a suffix.
        propagate_missing_metadata: where some nodes have metadata and others, put in later, have
            none, notes operator, shapes and dtypes of those.
        allow: module classes, functions and `autograd.Function`s of your own that the checkpoint
            may contain.
        meta: leaves the parameters and buffers on the meta device, and reads none of their data.
            Real are only those whose data the `.mz` holds, or decoding needs. The digest of the
            tensors is not compared, which would read them all.
    Returns: the captured model, and the passes that its graph went through.

    Raises:
        CheckpointError: a file is missing, cut off, corrupt, foreign or from a later version, or
            names code that is not allowed.
    """
    with _reading_errors(checkpoint):
        document, stored, on_meta = _read(checkpoint, meta)
        model, provenance = _rebuild(document, stored, AllowList(allow), on_meta)
        if propagate_missing_metadata:
            describe_missing(model)
    return model, provenance


def open_checkpoint(checkpoint: str | Path, verify: bool = True) -> tuple[Path, dict[str, Json]]:
    """The files of a checkpoint, for those who read single tensors of it.

    Args:
        checkpoint: the name given to `export`, with or without a suffix.
        verify: compares the digest of all tensors, which reads them once; else their size alone.
    Returns: the safetensors file, and the document that describes it: `tensors`, `inline` and
        `modules` say where each parameter and buffer is.

    Raises:
        CheckpointError: a file is missing, cut off, corrupt, foreign or from a later version.
    """
    with _reading_errors(checkpoint), shared_lock(_paths(checkpoint)[0].parent):
        return _open(checkpoint, verify)


@contextmanager
def _reading_errors(checkpoint: str | Path) -> Iterator[None]:
    """Inside, whatever a malformed file makes code raise is a CheckpointError of one sentence."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(_sentence(str(error))) from error.__cause__
    except (MemoryError, OSError):
        raise
    except Exception as error:
        # Code that expects a well-formed document can raise anything when it meets another one.
        where = f"'{_paths(checkpoint)[1]}' is malformed"
        raise CheckpointError(_sentence(f"{where} ({type(error).__name__}: {error}).")) from error


def _sentence(text: str) -> str:
    """A message that may quote a file: short, and without what a terminal would act upon."""
    text = LONG_WORD.sub(lambda word: f"{word[0][:60]}...{word[0][-20:]}", text)[:MAX_MESSAGE]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# --- the document ------------------------------------------------------------------------------


def _describe(
    model: CapturedModule, provenance: Sequence[Provenance], store: TensorStore
) -> dict[str, Json]:
    """The graph as plain data; its tensors go into `store`."""
    configs = ConfigWriter()
    names = itertools.count()

    def add(tensor: Tensor) -> Json:
        # An empty step, so that no parameter of the model can have the name.
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
        **encode_graph(model.graph, encode, Encoder({Tensor: _where_plain(add)}, functions=False)),
        "modules": modules,
        "tensors": store.table,
        "configs": configs.plain,
    }


def _refuse(module: nn.Module) -> Json:
    raise NotPlainError(f"a module ({type(module).__name__}) that is not registered as a child")


def _where_plain(add: Callable[[Tensor], Json]) -> Callable[[Tensor], Json]:
    """For tensors that may be left out: those without plain data are no error."""

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
            # A model's own class of settings: the settings are plain, the class is code.
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
    noted = [*model.record.optional_inputs]
    found = [str(x.target) for x in model.graph.nodes if x.op == "placeholder" and x.args]
    if found != noted:
        raise CheckpointError(f"of the graph's inputs {found} are optional, expected {noted}.")
    steps = [Provenance(str(name), str(config)) for name, config in document["provenance"]]
    return model, steps


# --- the files ---------------------------------------------------------------------------------


def _paths(name: str | Path) -> tuple[Path, Path]:
    path = Path(name).expanduser()
    if path.suffix in SUFFIXES:
        path = path.with_suffix("")
    tensor_path, graph_path = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return tensor_path, graph_path


def _read(
    checkpoint: str | Path, meta: bool
) -> tuple[dict[str, Json], dict[str, Tensor], frozenset[str]]:
    """The document, the tensors that were read, and the names of those that stay on meta."""
    with shared_lock(_paths(checkpoint)[0].parent):
        tensor_path, document = _open(checkpoint, verify=not meta)
        on_meta = _data_of_modules_alone(document) if meta else frozenset()
        return document, read_file(tensor_path, on_meta), on_meta


def _open(checkpoint: str | Path, verify: bool) -> tuple[Path, dict[str, Json]]:
    """The tensor file and the document of one export.

    Inside `shared_lock` another export cannot put its own in their places meanwhile.
    """
    tensor_path, graph_path = map(latest, _paths(checkpoint))
    _require(tensor_path, graph_path)
    document = read_document(graph_path)
    _check_tensor_file(tensor_path, graph_path, document, verify)
    unfold_metadata(document)
    return tensor_path, document


def _data_of_modules_alone(document: Json) -> frozenset[str]:
    """The stored tensors that are parameters and buffers, and that nothing else reads."""
    alone: set[str] = set()
    needed = set(document.get("inline", ())) | _tensors_in(document)
    for record in document["modules"]:
        named = {**record.get("parameters", {}), **record.get("buffers", {})}
        keys = {key for key in named.values() if key is not None}
        masks_on_load = has_unapplied_mask(record.get("buffers", {}))
        (needed if masks_on_load else alone).update(keys)
    table = document["tensors"]
    # What shares memory with a tensor that is read comes from the one that was stored.
    needed |= {table[key].get("storage_of", key) for key in needed}
    return frozenset(key for key in alone - needed if table[key].get("storage_of") not in needed)


def _tensors_in(plain: Json) -> set[str]:
    """The names of all tensors that values name, such as attributes of modules."""
    if isinstance(plain, dict):
        if "$tensor" in plain:
            return {str(plain["$tensor"])}
        plain = list(plain.values())
    return set().union(*map(_tensors_in, plain)) if isinstance(plain, list) else set()


def _require(tensor_path: Path, graph_path: Path) -> None:
    missing = [path for path in (tensor_path, graph_path) if not is_readable_file(path)]
    if not missing:
        return
    if len(missing) == 2:
        folder = tensor_path.with_suffix("")
        inside = sorted(folder.glob("*.mz"))
        others = [path.stem for path in tensor_path.parent.glob("*.mz")]
        hint = f" {did_you_mean(tensor_path.stem, others)}" if others else ""
        if inside:
            hint = f" did you mean '{inside[0].with_suffix('')}'?"
        raise CheckpointError(f"there is no checkpoint '{tensor_path.with_suffix('')}'.{hint}")
    raise CheckpointError(
        f"a checkpoint is two files, and '{missing[0]}' is missing; export writes both."
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
    """`model.state_dict()`; tied tensors get memory of their own, as safetensors asks for."""
    tensors = {name: x for name, x in model.state_dict().items() if isinstance(x, Tensor)}
    for name, tensor in tensors.items():
        if as_stored(tensor).dtype != tensor.dtype:
            raise CheckpointError(
                f"tensor '{name}': safetensors has no {tensor.dtype}, so a state dict cannot hold "
                "it; use save_format='full_model'."
            )
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _mark_transposed(model: nn.Module, table: dict[str, Json]) -> None:
    """Notes which tensors a state dict has the other way round."""
    for path, module in model.named_modules():
        name = f"{path}.weight"
        if stores_transposed(module) and name in table:
            table[name]["transposed"] = True


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    stored = {name: as_stored(tensor) for name, tensor in tensors.items()}
    save_file(_apart(stored), path, metadata={"format": "pt"})


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Views of one memory become tensors of their own; safetensors refuses to write them."""
    owners: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        is_view = storage.data_ptr() in owners or storage.nbytes() != tensor.nbytes
        owners.add(storage.data_ptr())
        apart[name] = tensor.clone() if is_view else tensor
    return apart
