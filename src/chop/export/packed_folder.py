"""Packed folder: a transformers model with linear layers stored in another tool's tensors.

This module has the common part of these targets: selection of layers, reasons for rejections, and
replacement of chop's tensors file by file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.files import atomic_files, write_json
from chop.captured.layers.expert_linear import ExpertLinear
from chop.errors import ConfigError
from chop.export.coded import CodedWeight, coded_weight
from chop.export.file_names import expert_rows, float_layers
from chop.export.foreign.weight_files import INDEX, WEIGHTS
from chop.export.joined_layers import note_on_joined
from chop.export.packed_model import packed_layers, packed_model
from chop.export.refusals import refuse
from chop.formats import Quantizer, QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.ops import get_module_row
from chop.nn.packed import PackedExpertLinear, PackedOperator
from chop.nn.packed.state import BUFFER_NAMES
from chop.nn.transposed import stores_transposed

log = logging.getLogger("chop.export")


@dataclass(frozen=True)
class FolderKind:
    """Tool-specific part of a packed folder.

    Attributes:
        method: name in `quantization_config`.
        held: sentence on supported formats, for errors.
        get_scheme: (weight, model dtype) -> storage scheme, or the reason why there is none. A
            scheme has a `format` for messages, and `tensors`: (weight, dtype) -> tensors by name
            suffix.
        settings: (model, schemes by path) -> `quantization_config`.
        notes: (schemes by path, model) -> notes for users.
        refused: schemes by path -> modules with incompatible schemes, and reasons.
        scheme_with_inputs: `get_scheme` for layers with rounded inputs: (weight, input format,
            model dtype). None if inputs must be floats.
        takes_blocks: supports a scale for a block of several rows.
        files: (model, schemes by path) -> content of further JSON files by name.
    """

    method: str
    held: str
    get_scheme: Callable[[CodedWeight, torch.dtype], Any]
    settings: Callable[[nn.Module, Mapping[str, Any]], dict[str, Any]]
    notes: Callable[[Mapping[str, Any], Any], list[str]]
    refused: Callable[[Mapping[str, Any]], dict[str, str]] = lambda schemes: {}
    scheme_with_inputs: Callable[[CodedWeight, Quantizer, torch.dtype], Any] | None = None
    takes_blocks: bool = False
    files: Callable[[nn.Module, Mapping[str, Any]], dict[str, Any]] = lambda model, schemes: {}


@dataclass(frozen=True)
class Coded:
    """Module of a folder with codes.

    Attributes:
        layer: path of the packed layer, which may have several experts.
        weight: codes and scales.
        scheme: storage scheme of the weight.
    """

    layer: str
    weight: CodedWeight
    scheme: Any


def write_folder(
    kind: FolderKind, mg: MaseGraph, path: Path, tokenizer: Any = None
) -> dict[str, Any]:
    """Writes a folder with a tool's `quantization_config`.

    Weights of linear layers are the codes and scales of the graph. Embeddings are decoded to
    floats, since no engine reads packed ones. A packed head that was tied to an embedding is
    written separately.

    Args:
        kind: tool-specific part.
        mg: graph of a transformers model; it is not changed.
        path: path of the folder; its other files are preserved.
        tokenizer: tokenizer or processor to save as well, or None.
    Returns: `path`; `formats`, the layout of each packed module by path in files; `floats`, the
        decoded embeddings; `notes`; `files`.

    Raises:
        ConfigError: if the tool has no layout for some modules, which the message names, or if
            linear layers have other names in files than in the model.
    """
    from chop.ir.huggingface.card import CardFacts, write_card
    from chop.ir.huggingface.folder import remove_older, save_folder

    rounds_inputs = kind.scheme_with_inputs is not None
    model, reasons = packed_model(mg, kind.method, rounds_inputs)
    floats = _unpack_embeddings(model)
    modules, reasons = _coded_modules(kind, model, reasons)
    refuse(kind.method, reasons, kind.held)
    schemes = {path: one.scheme for path, one in modules.items()}
    if not schemes:
        raise ConfigError(f"{kind.method}: expected a packed linear layer, got none. {kind.held}")
    notes = [f"embeddings are written as floats: {', '.join(floats)}"] if floats else []
    notes += [*kind.notes(schemes, model), *note_on_joined(schemes, float_layers(model, schemes))]
    for note in notes:
        log.warning("%s: %s.", kind.method, note)
    settings, others = kind.settings(model, schemes), kind.files(model, schemes)
    head = model.get_output_embeddings()
    if isinstance(head, PackedOperator):
        model.config.tie_word_embeddings = False  # codes cannot be tied to floats
        bias = head.bias
        if isinstance(bias, nn.Parameter):  # nor is it then to that of the module around the head
            own = nn.Parameter(bias.detach().clone(), bias.requires_grad)
            head.register_parameter("bias", own)
    with atomic_files(path, "model") as fresh:
        save_folder(model, fresh, tokenizer, card=False)
        _Rewriter(kind, model, modules).rewrite(fresh)
        config = json.loads((fresh / "config.json").read_text())
        write_json(fresh / "config.json", {**config, "quantization_config": settings})
        for name, content in others.items():
            write_json(fresh / name, content)
        write_card(fresh, CardFacts().with_model(model), path)
        written = sorted(file.name for file in fresh.iterdir())
    remove_older(path, written)
    formats = {name: scheme.format for name, scheme in schemes.items()}
    files = [path / name for name in written]
    return {"path": path, "formats": formats, "floats": floats, "notes": notes, "files": files}


def refusals(kind: FolderKind, mg: MaseGraph) -> dict[str, str]:
    """Returns why a folder cannot store modules, by path; see `chop.export.target.Target`."""
    model, reasons = packed_model(mg, kind.method, kind.scheme_with_inputs is not None)
    _unpack_embeddings(model)
    return _coded_modules(kind, model, reasons)[1]


def _coded_modules(
    kind: FolderKind, model: Any, reasons: Mapping[str, str]
) -> tuple[dict[str, Coded], dict[str, str]]:
    """Returns modules by path in files, and by path of a layer the reasons why some have none."""
    modules, unheld, rows = dict[str, Coded](), dict[str, str](), expert_rows(model)
    for path, layer in packed_layers(model).items():
        whole = _matrix(kind, layer, has_names=path in rows)
        if isinstance(whole, str):
            unheld[path] = whole
            continue
        for name, (start, stop) in rows.get(path, {path: (0, whole.rows)}).items():
            weight = whole if path not in rows else whole.slice_rows(start, stop)
            inputs = _input_format(layer, start)
            scheme = (
                weight if isinstance(weight, str) else _scheme(kind, weight, inputs, model.dtype)
            )
            if isinstance(scheme, str) or isinstance(weight, str):
                unheld[path] = str(scheme)
                break
            modules[name] = Coded(path, weight, scheme)
    refused = kind.refused({name: one.scheme for name, one in modules.items()})
    return modules, {**refused, **unheld, **reasons}


def _unpack_embeddings(model: nn.Module) -> list[str]:
    """Decodes embeddings to floats and returns their paths."""
    tables = {p: x for p, x in packed_layers(model).items() if isinstance(x, nn.Embedding)}
    for path, layer in tables.items():
        plain = layer.unpack()
        model.set_submodule(path, plain.with_spec(QuantSpec()))
    return [*tables]


def _matrix(kind: FolderKind, layer: PackedOperator, has_names: bool) -> CodedWeight | str:
    """Returns the weight of a layer, or the reason why a folder cannot store it.

    Args:
        kind: tool-specific part.
        layer: packed layer.
        has_names: files have a matrix for each of its experts.
    """
    if isinstance(layer, ExpertLinear) and not has_names:
        return (
            "files of this architecture have all experts in one tensor, or experts with biases; "
            "expected one matrix per expert, as in Mixtral and Qwen3-MoE"
        )
    if not get_module_row(layer).is_linear:
        return f"it is a {type(layer).__name__} instead of a linear layer"
    if stores_transposed(layer):
        return "its class stores weights as (inputs, outputs), unlike torch's linear layer"
    return coded_weight(layer, blocks=kind.takes_blocks)


def _input_format(layer: PackedOperator, row: int) -> Quantizer:
    """Returns the input format of a layer, or of the expert that a row of its weight belongs to."""
    if isinstance(layer, PackedExpertLinear):
        return layer.input_format(row // layer.out_features)
    return layer.operand_format("data_in")


def _scheme(kind: FolderKind, weight: CodedWeight, inputs: Quantizer, dtype: torch.dtype) -> Any:
    """Returns the scheme of a weight, or the reason why it has none."""
    if kind.scheme_with_inputs is None or inputs.is_identity:
        return kind.get_scheme(weight, dtype)
    return kind.scheme_with_inputs(weight, inputs, dtype)


@dataclass(frozen=True)
class _Rewriter:
    """Replaces chop's codes and scales by the tool's tensors, file by file."""

    kind: FolderKind
    model: Any
    modules: Mapping[str, Coded]

    def rewrite(self, folder: Path) -> None:
        """Rewrites every weight file, and the index of several files."""
        from safetensors.torch import load_file, save_file

        places: dict[str, str] = {}
        for file in sorted(folder.glob(WEIGHTS)):
            tensors = load_file(file)
            rewritten = dict(self._tensors(tensors))
            save_file(rewritten, file, metadata={"format": "pt"})
            places.update(dict.fromkeys(rewritten, file.name))
        index = folder / INDEX
        if index.exists():
            write_json(index, {**json.loads(index.read_text()), "weight_map": places})

    def _tensors(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        from chop.ir.huggingface.conversions import names_in

        names = names_in(self.model, tensors)
        _refuse_renamed(self.kind.method, self.model, names)
        layers: dict[str, list[str]] = {}
        for path, one in self.modules.items():
            layers.setdefault(one.layer, []).append(path)
        for name, x in tensors.items():
            path, _, last = names[name].rpartition(".")
            operand = next((o for o, buffers in BUFFER_NAMES.items() if last in buffers), None)
            if path not in layers or operand is None:
                yield name, x
            elif last == BUFFER_NAMES[operand][0]:
                for own in layers[path]:
                    yield from ((f"{own}.{end}", y) for end, y in self._parts(own, operand))

    def _parts(self, path: str, operand: str) -> Iterator[tuple[str, Tensor]]:
        one = self.modules[path]
        if operand == "weight":
            yield from one.scheme.tensors(one.weight, self.model.dtype).items()
        else:
            layer: Any = self.model.get_submodule(one.layer)
            yield operand, layer.bias.detach().as_subclass(Tensor).contiguous()


def _refuse_renamed(method: str, model: nn.Module, names: Mapping[str, str]) -> None:
    """Rejects models whose linear layers have other names in files than in memory."""
    linear = {path for path, x in model.named_modules() if isinstance(x, nn.Linear)}
    other = next(
        (x for x, own in names.items() if x != own and own.rpartition(".")[0] in linear), None
    )
    if other is not None:
        raise ConfigError(
            f"{method}: transformers converts weights of a {type(model).__name__} when loading "
            f"('{other}' to '{names[other]}'), which is not supported; the onnx target supports "
            "any model."
        )
