"""compressed-tensors: folders of safetensors that vLLM, SGLang and transformers read.

The layout is that of compressed-tensors 0.20: a `quantization_config` with groups of modules in
`config.json`, and per module `weight_packed` and `weight_scale`, or a `weight` of eight bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.export.coded import CodedWeight
from chop.export.packed_folder import FolderKind, float_layers, write_folder
from chop.export.stored import words_packed
from chop.export.target import Runner, Target, runner_of
from chop.formats.elements import Fixed, Minifloat
from chop.formats.scaling import ScaledFloatScale
from chop.ir.graph import MaseGraph

METHOD = "compressed-tensors"
INTEGERS, MX4, MX8, NV4 = (
    "pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "nvfp4-pack-quantized",
)
"""Formats of weights, as the library calls them."""
MIXED = "mixed-precision"
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
    codes = weight.integers.long() + 2 ** (bits - 1)
    scale = weight.steps.to(dtype)
    return {
        "weight_packed": words_packed(codes, bits),
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

    Args:
        mg: of a model of transformers; it stays as it is.
        path: the folder; other files in it stay.
        tokenizer: or processor, whose files go along; None: none.
    Returns: see `chop.export.packed_folder.write_folder`.

    Raises:
        ConfigError: modules that the library has no layout for, all of them by name; or a model
            whose weights transformers converts as it reads them, as mixtures of experts.
    """
    return write_folder(KIND, mg, path, tokenizer)


def _notes(schemes: Mapping[str, Scheme], model: Any) -> list[str]:
    """What a reader of the folder would not expect."""
    notes, dtype = list[str](), model.dtype
    used = {scheme.kind for scheme in schemes.values()}
    if dtype != torch.bfloat16 and "float" in used:
        notes.append(
            f"the library decodes these formats to bfloat16, and the model is in {dtype}: load it "
            "with dtype=torch.bfloat16"
        )
    if any(scheme.strategy == "tensor" for scheme in schemes.values()):
        notes.append("vLLM runs weights with a scale for a group or row, not one for all")
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
    groups = [(scheme, [path for path in schemes if schemes[path] == scheme]) for scheme in used]
    if len(used) == 1:
        groups = [(next(iter(used)), [nn.Linear.__name__])]
    formats = {scheme.format for scheme in used}
    return {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else MIXED,
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": s.plain(t) for i, (s, t) in enumerate(groups)},
        "ignore": float_layers(model, schemes),
    }


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


KIND = FolderKind(METHOD, HELD, scheme_of, quantization_config, _notes)

TARGET = Target(
    name=METHOD,
    engines="vLLM, SGLang, transformers",
    takes="mxint, group_integer, scale_integer, integer, mxfp, nvfp4 in weights",
    library="compressed_tensors",
    extra="vllm-format",
    suffix="",
    write=write,
    read=read,
    is_timed=False,
)
