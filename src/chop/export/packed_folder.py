"""Packed folder: a transformers model with linear layers stored in another tool's tensors.

This module has the common part of these targets: selection of layers, reasons for rejections, and
replacement of chop's tensors file by file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.files import atomic_files, write_json
from chop.captured.layers.expert_linear import ExpertLinear
from chop.errors import ConfigError
from chop.export.coded import CodedWeight, coded_weight
from chop.export.foreign.weight_files import INDEX, WEIGHTS
from chop.export.joined_layers import note_on_joined
from chop.export.packed_model import packed_layers, packed_model
from chop.export.refusals import refuse
from chop.formats import Quantizer, QuantSpec
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator
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
    Returns: `path`; `formats`, the layout of each packed module by path; `floats`, the decoded
        embeddings; `notes`; `files`.

    Raises:
        ConfigError: if the tool has no layout for some modules, which the message names, or if
            transformers converts the model's weights when loading, as for mixtures of experts.
    """
    from chop.ir.huggingface.card import CardFacts, write_card
    from chop.ir.huggingface.folder import remove_older, save_folder

    rounds_inputs = kind.scheme_with_inputs is not None
    model, reasons = packed_model(mg, kind.method, rounds_inputs)
    floats = _unpack_embeddings(model)
    weights, schemes, reasons = _schemes(kind, model, reasons)
    refuse(kind.method, reasons, kind.held)
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
        _Rewriter(kind, model, weights, schemes).rewrite(fresh)
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
    """Returns why a tool's folder cannot hold modules, by path; see `chop.export.target.Target`."""
    model, reasons = packed_model(mg, kind.method, kind.scheme_with_inputs is not None)
    _unpack_embeddings(model)
    return _schemes(kind, model, reasons)[2]


def float_layers(model: nn.Module, schemes: Collection[str]) -> list[str]:
    """Returns the linear layers that stay floats."""
    return [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.Linear) and path not in schemes
    ]


def _schemes(
    kind: FolderKind, model: Any, reasons: Mapping[str, str]
) -> tuple[dict[str, CodedWeight], dict[str, Any], dict[str, str]]:
    """Returns weights and schemes by path, and the reasons why other modules have none."""
    weights, schemes, unheld = dict[str, CodedWeight](), dict[str, Any](), dict[str, str]()
    for name, layer in packed_layers(model).items():
        weight_and_scheme = _stored(kind, layer, model.dtype)
        if isinstance(weight_and_scheme, str):
            unheld[name] = weight_and_scheme
        else:
            weights[name], schemes[name] = weight_and_scheme
    return weights, schemes, {**kind.refused(schemes), **unheld, **reasons}


def _unpack_embeddings(model: nn.Module) -> list[str]:
    """Decodes embeddings to floats and returns their paths."""
    tables = {p: x for p, x in packed_layers(model).items() if isinstance(x, nn.Embedding)}
    for path, layer in tables.items():
        plain = layer.unpack()
        model.set_submodule(path, plain.with_spec(QuantSpec()))
    return [*tables]


def _stored(
    kind: FolderKind, layer: PackedOperator, dtype: torch.dtype
) -> tuple[CodedWeight, Any] | str:
    if isinstance(layer, ExpertLinear):
        return (
            "it has several experts, and transformers reads codes of single experts only, with the "
            "names of the model's own files and dequantize=True"
        )
    if not isinstance(layer, nn.Linear):
        return f"it is a {type(layer).__name__} instead of a linear layer"
    if stores_transposed(layer):
        return "its class stores weights as (inputs, outputs), unlike torch's linear layer"
    weight = coded_weight(layer, blocks=kind.takes_blocks)
    if isinstance(weight, str):
        return weight
    inputs = layer.operand_format("data_in")
    if kind.scheme_with_inputs is None or inputs.is_identity:
        scheme = kind.get_scheme(weight, dtype)
    else:
        scheme = kind.scheme_with_inputs(weight, inputs, dtype)
    return scheme if isinstance(scheme, str) else (weight, scheme)


@dataclass(frozen=True)
class _Rewriter:
    """Replaces chop's codes and scales by the tool's tensors, file by file."""

    kind: FolderKind
    model: Any
    weights: Mapping[str, CodedWeight]
    schemes: Mapping[str, Any]

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
        _refuse_converted(self.kind.method, self.model, names)
        for name, x in tensors.items():
            path, _, last = names[name].rpartition(".")
            operand = next((o for o, buffers in BUFFER_NAMES.items() if last in buffers), None)
            if path not in self.weights or operand is None:
                yield name, x
            elif last == BUFFER_NAMES[operand][0]:
                prefix = name.removesuffix(last)
                yield from ((f"{prefix}{end}", y) for end, y in self._layer_tensors(path, operand))

    def _layer_tensors(self, path: str, operand: str) -> Iterator[tuple[str, Tensor]]:
        dtype = self.model.dtype
        if operand == "weight":
            yield from self.schemes[path].tensors(self.weights[path], dtype).items()
        else:
            layer: Any = self.model.get_submodule(path)
            yield operand, layer.bias.detach().as_subclass(Tensor).contiguous()


def _refuse_converted(method: str, model: nn.Module, names: Mapping[str, str]) -> None:
    """Rejects models with other tensor names or parts in files than in memory."""
    other = next((name for name, own in names.items() if name != own), None)
    if other is not None:
        raise ConfigError(
            f"{method}: transformers converts weights of a {type(model).__name__} when loading "
            f"('{other}' to '{names[other]}'), which is not supported; the onnx target supports "
            "any model."
        )
