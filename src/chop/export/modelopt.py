"""ModelOpt target: folders of NVIDIA's Model Optimizer for TensorRT-LLM, vLLM and SGLang.

The layout is that of ModelOpt's unified Hugging Face checkpoint (`modelopt/torch/export`), as
`chop.export.foreign.modelopt_reader` describes it. `hf_quant_config.json` and `config.json` name
the algorithm of the layers, or with MIXED_PRECISION that of each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.export.coded import E2M1, E4M3, CodedWeight
from chop.export.compressed_tensors.inputs import SCALE, list_inputs
from chop.export.compressed_tensors.target import NV_BLOCK
from chop.export.file_names import float_layers
from chop.export.foreign.loading import load
from chop.export.foreign.modelopt_reader import (
    BLOCK,
    LAYERS,
    METHOD,
    MIXED,
    PARTS,
    READER,
    SECOND,
    SETTINGS,
)
from chop.export.joined_layers import joined_layers
from chop.export.packed_folder import FolderKind, refusals, write_folder
from chop.export.packed_model import get_runner, get_weights
from chop.export.target import Runner, Target
from chop.formats import NVFP4, Quantizer
from chop.formats.scaling import ScaledFloatScale

FP8, PER_TOKEN, BLOCKS = "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"
W4A16, W4A4 = "W4A16_NVFP4", "NVFP4"
"""ModelOpt's names of algorithms."""
BLOCK_SCALES = PARTS[0]
PRODUCER = {"name": METHOD, "version": "0.47.0"}
"""Producer in the settings, by whose name engines recognize such folders."""
FLOAT4, FLOAT8 = ({"dynamic": False, "num_bits": bits, "type": "float"} for bits in (4, 8))
FLOAT4 = {**FLOAT4, "group_size": NV_BLOCK}
GROUPS: Mapping[str, Mapping[str, Any]] = {
    FP8: {"input_activations": FLOAT8, "weights": FLOAT8},
    PER_TOKEN: {"input_activations": FLOAT8, "weights": {**FLOAT8, "strategy": "channel"}},
    W4A16: {"weights": FLOAT4},
    W4A4: {"input_activations": FLOAT4, "weights": FLOAT4},
}
"""Entries of `config_groups`, as `convert_hf_quant_config_format` of ModelOpt 0.47 makes them."""
GROUPED = (FP8, W4A16, W4A4)
"""Algorithms that have such an entry if all layers use them."""
HELD = (
    "Choose nvfp4, with inputs in float or in nvfp4 with a static tensor_scale; fp8 with inputs in "
    "fp8 with a static scale; fp8:granularity=channel with inputs in fp8:granularity=row; or "
    "fp8:granularity=block with float inputs; or keep these layers in float. "
    "calibrate_transform_pass makes input scales static, and share_scales_transform_pass gives "
    "joined layers one scale."
)


@dataclass(frozen=True)
class Scheme:
    """Storage scheme of a layer.

    Attributes:
        format: algorithm, `quant_algo`.
        tensors: (coded weight, model dtype) -> tensors by the suffix of their names.
        scales: scales of the whole tensor, by the name of their tensor.
    """

    format: str
    tensors: Callable[[CodedWeight, torch.dtype], dict[str, Tensor]] = field(compare=False)
    scales: Mapping[str, float] = field(compare=False)

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings of the layer in `quantized_layers`."""
        size = {"group_size": NV_BLOCK} if self.format in (W4A16, W4A4) else {}
        return {"quant_algo": self.format, **size}


def get_scheme(weight: CodedWeight, dtype: torch.dtype) -> Scheme | str:
    """Returns the scheme of a weight with float inputs, or the reason why it has none."""
    if _is_nvfp4(weight):
        return _nvfp4(weight, W4A16, {})
    is_one = weight.groups == 0 and weight.rows == weight.columns == BLOCK
    is_square = is_one or weight.block_rows == weight.group == BLOCK
    is_whole = not weight.rows % BLOCK and not weight.columns % BLOCK
    if weight.element == E4M3 and is_square and is_whole:
        return _fp8(weight, BLOCKS, {})
    return "ModelOpt has no layout for its elements and scales with float inputs"


def scheme_with_inputs(weight: CodedWeight, inputs: Quantizer, dtype: torch.dtype) -> Scheme | str:
    """Returns the scheme for a layer with rounded inputs, or the reason against it."""
    if isinstance(inputs, NVFP4) and _is_nvfp4(weight):
        if inputs.tensor_scale is None or inputs.block_size != NV_BLOCK or inputs.block_dim != -1:
            return f"it rounds its inputs to {inputs.label}: expected nvfp4 with a tensor_scale"
        return _nvfp4(weight, W4A4, {SCALE: inputs.tensor_scale})
    scheme_and_scale = list_inputs(inputs)
    if isinstance(scheme_and_scale, str):
        return scheme_and_scale
    scheme, scale = scheme_and_scale
    if weight.element == E4M3 and weight.block_rows == 1 and scheme.kind == "float":
        if scale is not None and weight.groups == 0:
            return _fp8(weight, FP8, {SCALE: scale})
        if scheme.is_dynamic and scheme.strategy == "token" and weight.groups == 1:
            return _fp8(weight, PER_TOKEN, {})
    return f"ModelOpt has no layout for its weight with inputs in {inputs.label}"


def _is_nvfp4(weight: CodedWeight) -> bool:
    scaling = weight.scaling
    is_scaled = isinstance(scaling, ScaledFloatScale) and scaling.element == E4M3
    return is_scaled and weight.element == E2M1 and weight.group == NV_BLOCK


def _nvfp4(weight: CodedWeight, algorithm: str, scales: Mapping[str, float]) -> Scheme | str:
    if weight.columns % NV_BLOCK:
        return f"its {weight.columns} inputs are not a multiple of {NV_BLOCK}"
    if bool(weight.scales.isnan().any()):
        return "a block of its weight is NaN"
    assert weight.encoded.tensor_scale is not None
    return _scheme(algorithm, {SECOND: weight.encoded.tensor_scale.item(), **scales})


def _fp8(weight: CodedWeight, algorithm: str, scales: Mapping[str, float]) -> Scheme | str:
    if bool((weight.scales.float().double() != weight.scales).any()):
        return "its scales are not float32 numbers"
    own = {BLOCK_SCALES: weight.scales.item()} if algorithm == FP8 else {}
    return _scheme(algorithm, {**own, **scales})


def _scheme(algorithm: str, scales: Mapping[str, float]) -> Scheme:
    def tensors(weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
        codes, blocks = _codes(weight)
        blocks = blocks[:, None, :, None] if algorithm == BLOCKS else blocks
        own = {name: torch.tensor(scale) for name, scale in scales.items()}
        return {"weight": codes, BLOCK_SCALES: blocks, **own}

    return Scheme(algorithm, tensors, scales)


def _codes(weight: CodedWeight) -> tuple[Tensor, Tensor]:
    """Returns codes and scales: two e2m1 a byte, the first in the low bits, or e4m3."""
    if weight.element == E4M3:
        scales = weight.scales.float()
        is_by_row = weight.groups == 1 and weight.block_rows == 1
        return weight.codes.view(torch.float8_e4m3fn), scales.view(-1) if is_by_row else scales
    packed = weight.encoded.scales
    assert packed is not None
    blocks = packed.view(torch.float8_e4m3fn).view(weight.rows, -1)
    return weight.encoded.codes.view(weight.rows, -1), blocks


def _differing(schemes: Mapping[str, Scheme]) -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Yields algorithm, paths and tensor names for joined layers with different scales."""
    for group in joined_layers(schemes):
        algorithms = {schemes[path].format for path in group}
        own = [schemes[path].scales for path in group]
        names = [name for name in own[0] if len({x.get(name) for x in own}) > 1]
        if len(algorithms) == 1 and names:
            yield algorithms.pop(), group, names


def _refused(schemes: Mapping[str, Scheme]) -> dict[str, str]:
    """Returns the NVFP4 layers with other scales than the layers that engines join with them."""
    return {
        path: f"engines use the largest {' and '.join(names)} for all of "
        f"{', '.join(x.rpartition('.')[2] for x in group)}, but theirs differ"
        for algorithm, group, names in _differing(schemes)
        for path in group
        if algorithm in (W4A16, W4A4)
    }


def _notes(schemes: Mapping[str, Scheme], model: Any) -> list[str]:
    """Returns notes for users of the folder."""
    rounded = [group[0].rpartition(".")[0] for x, group, _ in _differing(schemes) if x == FP8]
    notes = []
    if rounded:
        notes.append(
            f"engines join layers with different scales and round them again with the largest, "
            f"as in {rounded[0]}: use share_scales_transform_pass before packing"
        )
    if any(scheme.format == BLOCKS for scheme in schemes.values()):
        notes.append(f"vLLM also rounds the inputs of {BLOCKS} to fp8")
    return notes


def _quantization(model: Any, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Returns the settings of `hf_quant_config.json`."""
    first = next(iter(schemes.values()))
    by_layer = {path: scheme.settings for path, scheme in schemes.items()}
    is_mixed = any(scheme != first for scheme in schemes.values())
    own = {"quant_algo": MIXED, LAYERS: by_layer} if is_mixed else first.settings
    return {**own, "kv_cache_quant_algo": None, "exclude_modules": float_layers(model, schemes)}


def hf_quant_config(model: Any, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Returns the content of `hf_quant_config.json`.

    Args:
        model: model with packed layers.
        schemes: scheme by path of a packed layer.
    """
    return {"producer": PRODUCER, "quantization": _quantization(model, schemes)}


def quantization_config(model: Any, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Returns the `quantization_config` of `config.json`; see `hf_quant_config`."""
    settings = _quantization(model, schemes)
    algorithm, layers = settings["quant_algo"], settings.get(LAYERS)
    paths: dict[str, list[str]] = {}
    for path, scheme in schemes.items():
        paths.setdefault(scheme.format, []).append(path)
    groups = {
        f"group_{number}": {
            **GROUPS.get(name, {"quant_algo": name}),
            "targets": sorted(own) if layers else ["Linear"],
        }
        for number, (name, own) in enumerate(paths.items())
    }
    return {
        **({"config_groups": groups} if layers or algorithm in GROUPED else {}),
        **({LAYERS: layers} if layers else {}),
        "ignore": settings["exclude_modules"],
        "quant_algo": algorithm,
        "producer": PRODUCER,
        "quant_method": METHOD,
    }


def read(path: Path) -> Runner:
    """Loads the model of a folder with chop's reader, because transformers does not read it."""
    return get_runner(load(READER, path))


KIND = FolderKind(
    METHOD,
    HELD,
    get_scheme,
    quantization_config,
    _notes,
    _refused,
    scheme_with_inputs=scheme_with_inputs,
    takes_blocks=True,
    files=lambda model, schemes: {SETTINGS: hf_quant_config(model, schemes)},
)

write = partial(write_folder, KIND)

TARGET = Target(
    name=METHOD,
    engines="TensorRT-LLM, vLLM, SGLang",
    takes="weights in nvfp4 and fp8; inputs in nvfp4 and fp8",
    library="chop",
    extra="",
    suffix="",
    write=write,
    read=read,
    refusals=partial(refusals, KIND),
    formats=("nvfp4", "fp8:granularity=channel", "fp8:granularity=block", "fp8"),
    weights=lambda path: get_weights(load(READER, path)),
    is_timed=False,
)
