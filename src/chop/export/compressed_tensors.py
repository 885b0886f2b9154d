"""compressed-tensors: folders of safetensors that vLLM, SGLang and transformers read.

The layout is that of compressed-tensors 0.20: a `quantization_config` with groups of modules in
`config.json`, and per module `weight_packed` and `weight_scale`, or a `weight` of eight bits.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.export.coded import CodedWeight, coded_weight
from chop.export.target import (
    Runner,
    Target,
    packed_layers,
    packed_model,
    refuse,
    runner_of,
)
from chop.files import atomic_files, write_json
from chop.formats import QuantSpec
from chop.formats.elements import Fixed, Minifloat
from chop.formats.packing import pack_bits
from chop.formats.scaling import ScaledFloatScale
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator
from chop.nn.packed.base import BUFFER_NAMES
from chop.nn.transposed import stores_transposed

log = logging.getLogger(__name__)

METHOD = "compressed-tensors"
INTEGERS, MX4, MX8, NV4 = (
    "pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "nvfp4-pack-quantized",
)
"""Formats of weights, as the library calls them."""
MIXED = "mixed-precision"
WEIGHTS = "*.safetensors"
INDEX = "model.safetensors.index.json"
WORD = 32
"""Bits of a word of packed codes."""
FP4, FP8 = Minifloat(2, 1, 1, "finite"), Minifloat(4, 3, 7, "fn")
MX_BLOCK, NV_BLOCK = 32, 16
HELD = (
    "It holds linear layers in integers with a scale for a group of a row, a row or all "
    "(mxint:width=8, group_integer:width=4, scale_integer), mxfp:width=4, mxfp:width=8 and nvfp4, "
    "with float inputs; choose one of these for the modules above, or leave them float."
)


@dataclass(frozen=True)
class Scheme:
    """How a weight is stored: what modules of one group have in common.

    Attributes:
        format: as the library calls it.
        bits: of a code.
        kind: `int` or `float`.
        strategy: what shares a scale: `tensor`, `channel` for a row, `group`, or `tensor_group`.
        group_size: columns that share a scale; None with one for a row or all.
        scale_dtype: of scales that are stored otherwise than in the model's dtype.
        tensors: the coded weight and the model's dtype -> tensors by the end of their names.
    """

    format: str
    bits: int
    kind: str
    strategy: str
    group_size: int | None
    scale_dtype: str | None
    tensors: Callable[[CodedWeight, torch.dtype], dict[str, Tensor]] = field(compare=False)

    def plain(self, targets: list[str]) -> dict[str, Any]:
        """The group of `quantization_config` for these modules or classes."""
        weights = {
            "num_bits": self.bits,
            "type": self.kind,
            "symmetric": True,
            "strategy": self.strategy,
            "group_size": self.group_size,
            "dynamic": False,
            "scale_dtype": self.scale_dtype,
        }
        return {"targets": targets, "weights": weights, "format": self.format}


def scheme_of(weight: CodedWeight, dtype: torch.dtype) -> Scheme | str:
    """How the library stores a weight, or why it cannot.

    Args:
        weight: codes and scales.
        dtype: of the model, which integers' scales are stored in.
    """
    groups = weight.groups
    if groups > 1 and weight.columns % weight.group:
        return f"{weight.columns} columns are no multiple of its groups of {weight.group}"
    element = weight.element
    if isinstance(element, Fixed):
        return _integers(weight, element, dtype)
    if weight.is_e8m0 and weight.group == MX_BLOCK and element in (FP4, FP8):
        if bool((weight.exponents == 255).any()):
            return "a block of its weight is NaN"
        name = MX4 if element == FP4 else MX8
        write = _mxfp4 if element == FP4 else _mxfp8
        return Scheme(name, element.width, "float", "group", MX_BLOCK, "torch.uint8", write)
    is_nvfp4 = isinstance(weight.scaling, ScaledFloatScale) and weight.scaling.element == FP8
    if is_nvfp4 and element == FP4 and weight.group == NV_BLOCK:
        if bool(weight.scales.isnan().any()):
            return "a block of its weight is NaN"
        strategy, scale = "tensor_group", "torch.float8_e4m3fn"
        return Scheme(NV4, 4, "float", strategy, NV_BLOCK, scale, _nvfp4)
    return "the library has no layout for its elements and scales"


def _integers(weight: CodedWeight, element: Fixed, dtype: torch.dtype) -> Scheme | str:
    if element.code != "twos_complement":
        return f"its integers are stored as {element.code}, and not in two's complement"
    steps = weight.steps
    if bool((steps.to(dtype).double() != steps).any()) or not bool(steps.isfinite().all()):
        return f"its scales do not fit {dtype} of the model"
    strategy = {0: "tensor", 1: "channel"}.get(weight.groups, "group")
    size = weight.group if strategy == "group" else None
    return Scheme(INTEGERS, element.width, "int", strategy, size, None, _packed_integers)


def _packed_integers(weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
    """`weight_packed`, int32 (rows, words): k + 2^(bits - 1) one after the other, rows apart."""
    bits = weight.element.width
    codes = weight.integers.to(torch.int64) + 2 ** (bits - 1)
    codes = torch.nn.functional.pad(codes, (0, -weight.columns % WORD))
    words = -(-weight.columns * bits // WORD)
    packed = pack_bits(codes, bits).view(torch.int32).view(weight.rows, -1)[:, :words]
    scale = weight.steps.to(dtype)
    return {
        "weight_packed": packed.contiguous(),
        "weight_scale": scale.view(1) if weight.groups == 0 else scale,
        "weight_shape": torch.tensor([weight.rows, weight.columns]),
    }


def _mxfp4(weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"weight_packed": _pairs(weight), "weight_scale": weight.exponents}


def _mxfp8(weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"weight": weight.codes.view(torch.float8_e4m3fn), "weight_scale": weight.exponents}


def _nvfp4(weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
    """The library divides by the tensor's scale, so that its inverse is stored."""
    scales, of_all = weight.encoded.scales, weight.encoded.tensor_scale
    assert scales is not None
    assert of_all is not None
    return {
        "weight_packed": _pairs(weight),
        "weight_scale": scales.view(torch.float8_e4m3fn).view(weight.rows, -1),
        "weight_global_scale": (1 / of_all).view(1),
    }


def _pairs(weight: CodedWeight) -> Tensor:
    """uint8 (rows, columns / 2): two codes of 4 bits in a byte, the first one in its low bits."""
    return weight.encoded.codes.view(weight.rows, -1)


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes a folder with a `quantization_config` of compressed-tensors.

    Weights of linear layers are the codes and scales of the graph. Embeddings are written as the
    floats that their codes stand for, since no engine reads packed ones; a packed head that was
    tied to one is written beside it.

    Args:
        mg: of a model of transformers; it stays as it is.
        path: the folder; other files in it stay.
        tokenizer: or processor, whose files go along; None: none.
    Returns: `path`; `formats`, the layout of each packed module by path; `floats`, the embeddings
        that became floats; `notes`; `files`.

    Raises:
        ConfigError: modules that the library has no layout for, all of them by name; or a model
            whose weights transformers converts as it reads them, as mixtures of experts.
    """
    from chop.ir.huggingface.folder import remove_older, save_folder

    model, reasons = packed_model(mg, METHOD)
    floats = _unpack_embeddings(model)
    weights, schemes = {}, {}
    for name, layer in packed_layers(model).items():
        found = _stored(layer, model.dtype)
        if isinstance(found, str):
            reasons.setdefault(name, found)
        else:
            weights[name], schemes[name] = found
    refuse(METHOD, reasons, HELD)
    if not schemes:
        raise ConfigError(f"{METHOD}: expected a packed linear layer, got none. {HELD}")
    notes = _notes(floats, schemes, model.dtype)
    settings = quantization_config(model, schemes)
    if isinstance(model.get_output_embeddings(), PackedOperator):
        model.config.tie_word_embeddings = False  # codes cannot be tied to floats
    with atomic_files(path, "model") as fresh:
        save_folder(model, fresh, tokenizer, card=False)
        _Rewriter(model, weights, schemes).rewrite(fresh)
        config = json.loads((fresh / "config.json").read_text())
        write_json(fresh / "config.json", {**config, "quantization_config": settings})
        written = sorted(file.name for file in fresh.iterdir())
    remove_older(path, written)
    formats = {name: scheme.format for name, scheme in schemes.items()}
    files = [path / name for name in written]
    return {"path": path, "formats": formats, "floats": floats, "notes": notes, "files": files}


def _unpack_embeddings(model: nn.Module) -> list[str]:
    """Gives embeddings the floats that they look up; their paths."""
    tables = {p: x for p, x in packed_layers(model).items() if isinstance(x, nn.Embedding)}
    for path, layer in tables.items():
        plain = layer.unpack()
        model.set_submodule(path, plain.with_spec(QuantSpec()))
    return [*tables]


def _stored(layer: PackedOperator, dtype: torch.dtype) -> tuple[CodedWeight, Scheme] | str:
    if not isinstance(layer, nn.Linear):
        return f"it is a {type(layer).__name__}, and no linear layer"
    if stores_transposed(layer):
        return "its class keeps weights as (inputs, outputs), as no linear layer of torch does"
    weight = coded_weight(layer)
    if isinstance(weight, str):
        return weight
    scheme = scheme_of(weight, dtype)
    return scheme if isinstance(scheme, str) else (weight, scheme)


def _notes(floats: Sequence[str], schemes: Mapping[str, Scheme], dtype: torch.dtype) -> list[str]:
    """What a reader of the folder would not expect."""
    notes = [f"embeddings are written as floats: {', '.join(floats)}"] if floats else []
    used = {scheme.kind for scheme in schemes.values()}
    if dtype != torch.bfloat16 and "float" in used:
        notes.append(
            f"the library decodes these formats to bfloat16, and the model is in {dtype}: load it "
            "with dtype=torch.bfloat16"
        )
    if any(scheme.strategy == "tensor" for scheme in schemes.values()):
        notes.append("vLLM runs weights with a scale for a group or row, not one for all")
    for note in notes:
        log.warning("%s: %s.", METHOD, note)
    return notes


def quantization_config(model: nn.Module, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """What `config.json` says of modules.

    One scheme names the class, and float layers are ignored: engines that join projections know a
    class best. Several schemes name each module.

    Args:
        model: with packed layers.
        schemes: by path of a packed layer.
    """
    used = dict.fromkeys(schemes.values())
    floats = [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.Linear) and path not in schemes
    ]
    groups = [(scheme, [path for path in schemes if schemes[path] == scheme]) for scheme in used]
    if len(used) == 1:
        groups = [(next(iter(used)), [nn.Linear.__name__])]
    formats = {scheme.format for scheme in used}
    return {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else MIXED,
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": s.plain(t) for i, (s, t) in enumerate(groups)},
        "ignore": floats,
    }


@dataclass(frozen=True)
class _Rewriter:
    """Puts the library's tensors into the places of codes and scales of ours, file by file."""

    model: Any
    weights: Mapping[str, CodedWeight]
    schemes: Mapping[str, Scheme]

    def rewrite(self, folder: Path) -> None:
        """Rewrites every file of weights, and the index of several."""
        from safetensors.torch import load_file, save_file

        places: dict[str, str] = {}
        for file in sorted(folder.glob(WEIGHTS)):
            tensors = load_file(file)
            found = dict(self._tensors(tensors))
            save_file(found, file, metadata={"format": "pt"})
            places.update(dict.fromkeys(found, file.name))
        index = folder / INDEX
        if index.exists():
            write_json(index, {**json.loads(index.read_text()), "weight_map": places})

    def _tensors(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        from chop.ir.huggingface.quantizer import names_in

        names = names_in(self.model, tensors)
        _refuse_converted(self.model, names)
        for name, x in tensors.items():
            path, _, last = names[name].rpartition(".")
            operand = next((o for o, buffers in BUFFER_NAMES.items() if last in buffers), None)
            if path not in self.weights or operand is None:
                yield name, x
            elif last == BUFFER_NAMES[operand][0]:
                prefix = name.removesuffix(last)
                yield from ((f"{prefix}{end}", y) for end, y in self._of_layer(path, operand))

    def _of_layer(self, path: str, operand: str) -> Iterator[tuple[str, Tensor]]:
        dtype = self.model.dtype
        if operand == "weight":
            yield from self.schemes[path].tensors(self.weights[path], dtype).items()
        else:
            layer: Any = self.model.get_submodule(path)
            yield operand, layer.bias.detach().as_subclass(Tensor).contiguous()


def _refuse_converted(model: nn.Module, names: Mapping[str, str]) -> None:
    """Refuses models whose tensors have other names, or parts, in files than in memory."""
    other = next((name for name, own in names.items() if name != own), None)
    if other is not None:
        raise ConfigError(
            f"{METHOD}: expected a model whose weights transformers reads as they are stored, got "
            f"a {type(model).__name__}, which makes '{names[other]}' of '{other}'; onnx holds the "
            "graph of any model."
        )


def read(path: Path) -> Runner:
    """The model of a folder, as `read_model` gives it."""
    return runner_of(read_model(path))


def read_model(path: Path) -> nn.Module:
    """The model of a folder, its weights decoded by the library, in the model's dtype."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(path)
    kind = getattr(transformers, config.architectures[0])
    model: Any = kind.from_pretrained(path).eval()
    model.hf_quantizer.compressor.decompress_model(model)
    dtype = model.dtype if config.dtype is None else config.dtype
    return model.to(dtype)  # type: ignore[no-any-return]


TARGET = Target(
    name=METHOD,
    engines="vLLM, SGLang, transformers",
    library="compressed_tensors",
    extra="vllm-format",
    suffix="",
    write=write,
    read=read,
    is_timed=False,
)
