"""compressed-tensors target: safetensors folders for vLLM, SGLang and transformers.

The layout is that of compressed-tensors 0.20: a `quantization_config` with groups of modules in
`config.json`, and per module `weight_packed` and `weight_scale`, or an 8-bit `weight`.
`chop.export.compressed_tensors.inputs` describes the rounding of layer inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.files.temporary import scratch_folder
from chop.captured.layers.experts import matrices_by_parameter
from chop.export.coded import E2M1, E4M3, E8M0_NAN, CodedWeight
from chop.export.compressed_tensors.inputs import SCALE, InputScheme, list_inputs
from chop.export.file_names import float_layers, list_targets
from chop.export.foreign.loading import without_data
from chop.export.foreign.stored import words_packed
from chop.export.foreign.weight_files import WHOLE as ONE_FILE
from chop.export.foreign.weight_files import list_tensors
from chop.export.packed_folder import FolderKind, refusals, write_folder
from chop.export.packed_model import get_runner, get_weights
from chop.export.target import Runner, Target
from chop.formats import Quantizer
from chop.formats.elements import Fixed
from chop.formats.scaling import ScaledFloatScale
from chop.ir.huggingface.conversions import EXPERT

METHOD, VERSION = "compressed-tensors", "0.20.0"
"""Name of the library, and version of the folder layout."""
INTEGERS, MX4, MX8, NV4 = (
    "pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "nvfp4-pack-quantized",
)
"""The library's names of weight formats."""
INTEGERS_IN, FLOATS_IN, WHOLE = "int-quantized", "float-quantized", "naive-quantized"
"""Formats with an int8 or float8 `weight`, for layers with rounded inputs and for others."""
MIXED = "mixed-precision"
WHOLE_WORDS = (2, 4, 8)
"""Code widths that fill 32-bit words without a remainder."""
MX_BLOCK, NV_BLOCK = 32, 16
SCALES, BIAS = "weight_scale", "bias"
"""Tensor that each coded module has, and the one that is never coded."""
HELD = (
    "Choose mxint:width=8, group_integer:width=4, scale_integer or fp8 for these linear layers, "
    "with inputs in float, scale_integer or fp8; or mxfp:width=4, mxfp:width=8 or nvfp4 with float "
    "inputs; or keep them in float."
)


@dataclass(frozen=True)
class Scheme:
    """Storage scheme of weights, shared by the modules of one group.

    Attributes:
        format: the library's name of the format.
        bits: bits of a code.
        kind: `int` or `float`.
        strategy: granularity of scales: `tensor`, `channel` for a row, `group`, `block` of several
            rows, or `tensor_group`.
        group_size: columns that share a scale; None for rows, tensors and blocks.
        scale_dtype: dtype of scales if it is not the model's.
        tensors: (coded weight, model dtype) -> tensors by the suffix of their names.
        block: rows and columns that share a scale with strategy `block`.
        inputs: rounding of inputs, or None.
        is_rounded: the model's dtype cannot represent all scales, which are stored in float32.
    """

    format: str
    bits: int
    kind: str
    strategy: str
    group_size: int | None
    scale_dtype: str | None
    tensors: Callable[[CodedWeight, torch.dtype], dict[str, Tensor]] = field(compare=False)
    block: tuple[int, int] | None = None
    inputs: InputScheme | None = None
    is_rounded: bool = field(default=False, compare=False)

    def plain(self, targets: list[str]) -> dict[str, Any]:
        """Returns the `quantization_config` group for modules or classes."""
        weights = {
            "num_bits": self.bits,
            "type": self.kind,
            "symmetric": True,
            "strategy": self.strategy,
            "group_size": self.group_size,
            "dynamic": False,
            "scale_dtype": self.scale_dtype,
        }
        if self.block is not None:
            weights["block_structure"] = [*self.block]
        group = {"targets": targets, "weights": weights, "format": self.format}
        return group if self.inputs is None else {**group, "input_activations": self.inputs.plain}


def get_scheme(weight: CodedWeight, dtype: torch.dtype) -> Scheme | str:
    """Returns the library's scheme for a weight, or the reason why it has none.

    Args:
        weight: codes and scales.
        dtype: dtype of the model, in which scales of integers are stored.
    """
    groups, element = weight.groups, weight.element
    if _is_fp8(weight):
        return _whole(weight, dtype, WHOLE, "float", _floats)
    if groups > 1 and weight.columns % weight.group:
        return f"{weight.columns} columns are not a multiple of the group size {weight.group}"
    if weight.block_rows > 1:
        return "its scales are of groups that are not along rows"
    if isinstance(element, Fixed):
        return _integers(weight, element, dtype)
    if weight.is_e8m0 and weight.group == MX_BLOCK and element in (E2M1, E4M3):
        if bool((weight.exponents == E8M0_NAN).any()):
            return "a block of its weight is NaN"
        name = MX4 if element == E2M1 else MX8
        write = _mxfp4 if element == E2M1 else _mxfp8
        return Scheme(name, element.width, "float", "group", MX_BLOCK, "torch.uint8", write)
    is_nvfp4 = isinstance(weight.scaling, ScaledFloatScale) and weight.scaling.element == E4M3
    if is_nvfp4 and element == E2M1 and weight.group == NV_BLOCK:
        if bool(weight.scales.isnan().any()):
            return "a block of its weight is NaN"
        strategy, scale = "tensor_group", "torch.float8_e4m3fn"
        return Scheme(NV4, 4, "float", strategy, NV_BLOCK, scale, _nvfp4)
    return "the library does not support its elements and scales"


def _is_fp8(weight: CodedWeight) -> bool:
    return weight.element == E4M3 and (weight.scaling is None or weight.scaling.stores_floats)


def scheme_with_inputs(weight: CodedWeight, inputs: Quantizer, dtype: torch.dtype) -> Scheme | str:
    """Returns the scheme for a layer with rounded inputs, or the reason against it."""
    scheme_and_scale, element = list_inputs(inputs), weight.element
    if isinstance(scheme_and_scale, str):
        return scheme_and_scale
    if _is_fp8(weight):
        base = _whole(weight, dtype, FLOATS_IN, "float", _floats)
    elif (
        isinstance(element, Fixed) and element.code == "twos_complement" and weight.block_rows == 1
    ):
        base = _whole(weight, dtype, INTEGERS_IN, "int", _whole_integers)
    else:
        return "it rounds its inputs, but its weight is neither an integer nor fp8"
    if isinstance(base, str):
        return base
    scheme, scale = scheme_and_scale
    if scale is None:
        return replace(base, inputs=scheme)
    static = torch.tensor([scale], dtype=torch.float64)
    held = _scale_dtype(static, dtype)
    if held is None:
        return f"the scale of its inputs is out of range of the model's {dtype}"
    own = {SCALE: static.to(held)}
    is_rounded = base.is_rounded or held != dtype
    tensors = base.tensors
    return replace(
        base, inputs=scheme, is_rounded=is_rounded, tensors=lambda w, d: tensors(w, d) | own
    )


def _whole(
    weight: CodedWeight,
    dtype: torch.dtype,
    name: str,
    kind: str,
    codes: Callable[[CodedWeight], Tensor],
) -> Scheme | str:
    """Returns the scheme of a byte `weight` with scales in the model's dtype or float32."""
    held = _scale_dtype(weight.steps, dtype)
    if held is None:
        return f"its scales are out of range of the model's {dtype}"
    strategy, size, block = *_strategy(weight), None
    if weight.block_rows > 1:
        strategy, size, block = "block", None, (weight.block_rows, weight.group)
    elif strategy == "group" and weight.columns % weight.group:
        return f"{weight.columns} columns are not a multiple of the group size {weight.group}"

    def tensors(one: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
        scale = one.steps.to(held)
        return {"weight": codes(one), "weight_scale": scale if one.groups else scale.view(1)}

    is_rounded = held != dtype
    return Scheme(
        name, weight.element.width, kind, strategy, size, None, tensors, block, None, is_rounded
    )


def _scale_dtype(scales: Tensor, dtype: torch.dtype) -> torch.dtype | None:
    """Returns the model's dtype if it represents the scales, else float32, else None."""
    rounded = scales.to(dtype)
    if bool((rounded.double() == scales).all()):
        return dtype
    is_lost = ~rounded.isfinite() | (rounded == 0) | (scales.float().double() != scales)
    return None if bool(is_lost.any()) else torch.float32


def _whole_integers(weight: CodedWeight) -> Tensor:
    return weight.integers


def _floats(weight: CodedWeight) -> Tensor:
    return weight.codes.view(torch.float8_e4m3fn)


def _integers(weight: CodedWeight, element: Fixed, dtype: torch.dtype) -> Scheme | str:
    if element.code != "twos_complement":
        return f"its integers are stored as {element.code} instead of two's complement"
    steps = weight.steps
    if bool((steps.to(dtype).double() != steps).any()) or not bool(steps.isfinite().all()):
        return f"its scales are out of range of the model's {dtype}"
    strategy, size = _strategy(weight)
    return Scheme(INTEGERS, element.width, "int", strategy, size, None, _packed_integers)


def _strategy(weight: CodedWeight) -> tuple[str, int | None]:
    """Returns the strategy and the columns of a group."""
    strategy = {0: "tensor", 1: "channel"}.get(weight.groups, "group")
    return strategy, weight.group if strategy == "group" else None


def _packed_integers(weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
    """Packs k + 2^(bits - 1) row by row to `weight_packed`, int32 (rows, words)."""
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
    """Returns the tensors of NVFP4; the library divides by the tensor's scale (its inverse)."""
    scales, tensor_scale = weight.encoded.scales, weight.encoded.tensor_scale
    assert scales is not None
    assert tensor_scale is not None
    return {
        "weight_packed": _pairs(weight),
        "weight_scale": scales.view(torch.float8_e4m3fn).view(weight.rows, -1),
        "weight_global_scale": (1 / tensor_scale).view(1),
    }


def _pairs(weight: CodedWeight) -> Tensor:
    """Packs two 4-bit codes per byte, the first in the low bits: uint8 (rows, columns / 2)."""
    return weight.encoded.codes.view(weight.rows, -1)


def _notes(schemes: Mapping[str, Scheme], model: Any) -> list[str]:
    """Returns notes for users of the folder."""
    notes, dtype, used = list[str](), model.dtype, [*schemes.values()]
    if dtype != torch.bfloat16 and any(scheme.format in (MX4, MX8, NV4) for scheme in used):
        notes.append(
            f"the library decodes these formats to bfloat16, but the model is in {dtype}: load it "
            "with dtype=torch.bfloat16"
        )
    if any(scheme.format == INTEGERS and scheme.bits not in WHOLE_WORDS for scheme in used):
        notes.append(
            "codes of 3, 5, 6 and 7 bits need compressed-tensors 0.18 or newer; older versions "
            "decode wrong numbers without an error"
        )
    if any(scheme.strategy == "tensor" and scheme.format == INTEGERS for scheme in used):
        notes.append("vLLM runs weights with a scale per group or row, but not with one per tensor")
    if any(scheme.is_rounded for scheme in used):
        notes.append(f"scales are in float32; engines use them, the library rounds to {dtype}")
    if any(scheme.inputs is not None and scheme.inputs.finds_integers for scheme in used):
        notes.append(
            "engines compute input scales as amax/127, like the graph, but the library uses "
            "amax/127.5: its steps are smaller by 1/255"
        )
    return [*notes, *_note_on_experts(schemes)]


def _note_on_experts(schemes: Mapping[str, Scheme]) -> list[str]:
    """Returns a note on how transformers loads coded experts, or an empty list."""
    experts = {scheme for path, scheme in schemes.items() if EXPERT.search(path)}
    others = {scheme for path, scheme in schemes.items() if not EXPERT.search(path)}
    if not experts:
        return []
    is_decoded = all(x.format == INTEGERS or x.kind == "float" for x in experts)
    is_decoded &= all(x.block is None and x.bits in (4, 8) for x in experts)
    if is_decoded and len(experts) == 1 and len(others) <= 1:
        return ["transformers loads these experts with CompressedTensorsConfig(dequantize=True)"]
    return [
        "transformers does not load these experts: it decodes all of them by one scheme in "
        "pack-quantized or FP8, and all other layers by another one; vLLM and chop load them"
    ]


def _refused(schemes: Mapping[str, Scheme]) -> dict[str, str]:
    """Returns experts with several schemes among their matrices, and the reason against them."""
    by_owner: dict[str, set[Scheme]] = {}
    for path, scheme in schemes.items():
        (target,) = list_targets([path])
        by_owner.setdefault(target, set()).add(scheme)
    reason = "engines support one format for the matrices of these experts, which have several"
    several = [path for path in schemes if len(by_owner[list_targets([path])[0]]) > 1]
    return dict.fromkeys(several[:1], reason)


def quantization_config(model: nn.Module, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Returns the `quantization_config` of a model.

    A single scheme names the class and ignores float layers, because engines that fuse
    projections support classes best. A packed head is named too, because vLLM uses another class
    for it. Several schemes name each module, and the experts of a layer by one expression.

    Args:
        model: model with packed layers.
        schemes: scheme by path in files of a packed layer.
    """
    used = dict.fromkeys(schemes.values())
    groups = [
        (scheme, list_targets(path for path in schemes if schemes[path] == scheme))
        for scheme in used
    ]
    if len(used) == 1:
        head = model.get_output_embeddings()  # type: ignore[operator]
        named = model.named_modules(remove_duplicate=False)
        heads = [path for path, module in named if module is head and path in schemes]
        groups = [(next(iter(used)), [nn.Linear.__name__, *heads])]
    formats = {scheme.format for scheme in used}
    return {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else MIXED,
        "quantization_status": "compressed",
        "version": VERSION,
        "config_groups": {f"group_{i}": s.plain(t) for i, (s, t) in enumerate(groups)},
        "ignore": list_targets(float_layers(model, schemes)),
    }


def read(path: Path) -> Runner:
    """Loads the model of a folder with `read_model`."""
    return get_runner(read_model(path))


def read_unrounded(path: Path) -> Runner:
    """Loads the model of a folder without rounding layer inputs."""
    from compressed_tensors.quantization import disable_quantization

    return get_runner(read_model(path).apply(disable_quantization))


def read_model(path: Path) -> nn.Module:
    """Loads the model of a folder; the library decodes its weights to the model's dtype.

    The library has no layers for fused experts: of a mixture, it decodes one matrix at a time, and
    inputs stay unrounded.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(path)
    kind = getattr(transformers, config.architectures[0])
    if any(matrices_by_parameter(x) for x in without_data(kind, config).modules()):
        return _read_mixture(path, config, kind)
    model: Any = kind.from_pretrained(path).eval()
    model.hf_quantizer.compressor.decompress_model(model)
    dtype = model.dtype if config.dtype is None else config.dtype
    return model.to(dtype)  # type: ignore[no-any-return]


def _read_mixture(path: Path, config: Any, kind: Any) -> nn.Module:
    """Loads a mixture of experts from the matrices that the library decodes."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils.match import is_match
    from safetensors.torch import save_file

    settings: Any = QuantizationConfig.model_validate(config.quantization_config)
    schemes, tensors = settings.config_groups.values(), list_tensors(path)
    linear = nn.Linear(1, 1, device="meta")
    for name in [x for x in tensors if x.endswith(f".{SCALES}")]:
        owner = name.removesuffix(SCALES)
        names = [x for x in tensors if x.startswith(owner) and x != f"{owner}{BIAS}"]
        parts = {x.removeprefix(owner): tensors.pop(x) for x in names}
        scheme = next(x for x in schemes if is_match(owner[:-1], linear, x.targets))
        library = BaseCompressor.get_value_from_registry(scheme.format or settings.format)
        tensors[f"{owner}weight"] = library.decompress(parts, scheme)["weight"]
    del config.quantization_config
    with scratch_folder("read") as folder:
        config.save_pretrained(folder)
        save_file(tensors, folder / ONE_FILE, metadata={"format": "pt"})
        model: nn.Module = kind.from_pretrained(folder, config=config, dtype=config.dtype)
    return model.eval()


KIND = FolderKind(
    METHOD,
    HELD,
    get_scheme,
    quantization_config,
    _notes,
    _refused,
    scheme_with_inputs=scheme_with_inputs,
    takes_blocks=True,
)

write = partial(write_folder, KIND)

TARGET = Target(
    name=METHOD,
    engines="vLLM, SGLang, transformers",
    takes="weights in mxint, group_integer, scale_integer, integer, mxfp, nvfp4, fp8; inputs in "
    "scale_integer, integer, fp8",
    library="compressed_tensors",
    extra="vllm-format",
    suffix="",
    write=write,
    read=read,
    refusals=partial(refusals, KIND),
    formats=(
        *(f"group_integer:width={bits}" for bits in range(2, 9)),
        *(f"scale_integer:width={bits}:granularity=channel" for bits in range(2, 9)),
        *("mxint:width=4", "mxint:width=8", "mxfp:width=4", "mxfp:width=8", "nvfp4"),
        *("fp8:granularity=channel", "fp8"),
    ),
    weights=lambda path: get_weights(read_model(path)),
    cause="the library computes in the model's dtype, and decodes nvfp4 to bfloat16",
    read_unrounded=read_unrounded,
    is_timed=False,
)
