"""Reader for folders of NVIDIA's TensorRT Model Optimizer (ModelOpt).

Source of the layout: ModelOpt's unified Hugging Face checkpoint, `modelopt/torch/export`. FP8
layers have the tensors of compressed-tensors: a `weight` of e4m3, its factors `weight_scale`, and a
float32 `input_scale` that divides inputs. NVFP4 adds `weight_scale_2`, the factor of the e4m3
scales. AWQ layers store two rows of 4-bit integers in one row of bytes. The algorithm is named in
`quantization_config`, or in `hf_quant_config.json` by older releases; with `MIXED_PRECISION` by
layer, in `quantized_layers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError, enumerate_names
from chop.export.compressed_tensors.groups import CLASSES, Group
from chop.export.compressed_tensors.inputs import SCALE, InputScheme, one_scale
from chop.export.compressed_tensors.reader import CACHE, read_tensors
from chop.export.compressed_tensors.target import FLOATS_IN, INTEGERS_IN, NV_BLOCK
from chop.export.foreign.reader import MOST_NAMES, Read, Reader, only_floats
from chop.export.foreign.stored import (
    Stored,
    checked_scales,
    coded_modules,
    decoding,
    stored_integers,
)
from chop.export.foreign.weight_files import document, list_tensors
from chop.formats import NVFP4, Encoded, NumberFormat
from chop.ir.huggingface.config_file import CONFIG

log = logging.getLogger(__name__)

METHOD, MIXED, LAYERS = "modelopt", "MIXED_PRECISION", "quantized_layers"
SETTINGS = "hf_quant_config.json"
"""Settings file of folders without settings in `config.json`."""
SECOND, SMOOTHING = "weight_scale_2", "pre_quant_scale"
PARTS, OPTIONAL = ("weight_scale", "weight"), (SECOND, SMOOTHING, SCALE)
E4M3 = torch.float8_e4m3fn
BLOCK = 128
"""Rows and columns of a block of FP8_PB_WO."""
STATIC = InputScheme(8, "float", "tensor", None, is_dynamic=False)
PER_TOKEN = InputScheme(8, "float", "token", None, is_dynamic=True)


def _whole(stored: str, kind: str, strategy: str, inputs: InputScheme | None) -> Group:
    size = BLOCK if strategy == "block" else None
    return Group(
        *((), (), stored, 8, kind, strategy, size),
        is_symmetric=True,
        inputs=inputs,
        may_lack_inputs=inputs is STATIC,
    )


WHOLE: Mapping[str, Group] = {
    "FP8": _whole(FLOATS_IN, "float", "tensor", STATIC),
    "FP8_PER_CHANNEL_PER_TOKEN": _whole(FLOATS_IN, "float", "channel", PER_TOKEN),
    "FP8_PB_WO": _whole(FLOATS_IN, "float", "block", None),
    "W8A16": _whole(INTEGERS_IN, "int", "channel", None),
}
"""Schemes of codes in bytes, with the tensors of compressed-tensors."""


@dataclass(frozen=True)
class _Packed:
    """Scheme of 4-bit codes.

    Attributes:
        read: tensors by suffix -> weight.
        inputs: scale of inputs -> their format; None for float inputs.
        omitted: rounding that engines add and that is not read, for a warning; or None.
    """

    read: Callable[[Mapping[str, Tensor]], Stored]
    inputs: Callable[[Tensor], NumberFormat] | None = None
    omitted: str | None = None


def _nvfp4(parts: Mapping[str, Tensor]) -> Stored:
    codes, scale, second = parts["weight"], parts["weight_scale"], parts.get(SECOND)
    if codes.dtype != torch.uint8 or codes.ndim != 2 or not codes.numel() or scale.dtype != E4M3:
        raise ValueError(f"its codes are {codes.dtype} {tuple(codes.shape)}, scales {scale.dtype}")
    shape = codes.size(0), 2 * codes.size(1)
    if scale.shape != (shape[0], -(-shape[1] // NV_BLOCK)):
        raise ValueError(f"weight_scale is {tuple(scale.shape)} for a weight of {shape}")
    checked_scales(scale)
    if second is None or second.numel() != 1 or not bool((checked_scales(second) > 0).all()):
        raise ValueError(f"{SECOND} is not a positive number")
    scales, tensor_scale = scale.view(torch.uint8).reshape(-1), second.float().reshape(())
    return Stored(NVFP4(), codes.reshape(-1), scales, tensor_scale, shape)


def _integers(parts: Mapping[str, Tensor]) -> Stored:
    """Reads two's complement of 4 bits; the low bits of a byte belong to an even row."""
    codes, scale = parts["weight"], parts["weight_scale"]
    if codes.dtype != torch.uint8 or codes.ndim != 2 or not codes.numel():
        raise ValueError(f"weight is {codes.dtype} {tuple(codes.shape)}")
    rows, columns = 2 * codes.size(0), codes.size(1)
    if scale.ndim != 2 or scale.size(0) != rows or columns % scale.size(1):
        raise ValueError(f"weight_scale is {tuple(scale.shape)} for a weight of {rows, columns}")
    nibbles = torch.stack([codes & 15, codes >> 4], 1).view(rows, columns).short()
    return stored_integers((nibbles ^ 8) - 8, scale, 4, columns // scale.size(1))


def _nvfp4_inputs(scale: Tensor) -> NumberFormat:
    return NVFP4(tensor_scale=one_scale(scale))


PACKED: Mapping[str, _Packed] = {
    "NVFP4": _Packed(_nvfp4, _nvfp4_inputs),
    "NVFP4_AWQ": _Packed(_nvfp4, omitted="inputs of NVFP4 layers"),
    "W4A16_NVFP4": _Packed(_nvfp4),
    "W4A8_NVFP4_FP8": _Packed(_nvfp4, STATIC.number_format),
    "W4A16_AWQ": _Packed(_integers),
    "W4A8_AWQ": _Packed(_integers, STATIC.number_format, omitted="weights a second time, to FP8"),
}
"""Schemes of 4-bit codes by algorithm."""
ALGORITHMS = (*WHOLE, *PACKED)


def read(folder: Path) -> Read:
    """Reads a folder.

    Raises:
        ConfigError: if its weights use another algorithm.
        CheckpointError: if files are missing or broken, or do not fit the settings.
    """
    config = document(folder / CONFIG)
    settings, tensors = _settings(folder, config), list_tensors(folder)
    end = f".{PARTS[0]}"
    paths = [name.removesuffix(end) for name in tensors if name.endswith(end)]
    algorithms = _algorithms(settings, paths, f"'{folder}'")
    if not paths:
        raise only_floats(folder, METHOD)
    packed = _Layers(folder, config, algorithms)
    packed.take(tensors)
    groups = [
        replace(group, targets=tuple(x for x, algorithm in algorithms.items() if algorithm == name))
        for name, group in WHOLE.items()
    ]
    groups = [group for group in groups if group.targets] or [
        replace(WHOLE["FP8"], targets=CLASSES)
    ]
    for name, x in tensors.items():  # blocks have axes of size 1 between those that count them
        if name.endswith(end) and x.ndim == 4 and x.size(1) == x.size(3) == 1:
            tensors[name] = x[:, 0, :, 0]
    cache = settings.get("kv_cache_quant_algo") or settings.get(CACHE)
    content = read_tensors(folder, config, tensors, groups, cache_scheme=cache)
    return packed.add_to(content)


def _settings(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    own = config.get("quantization_config")
    quantization = own if own else document(folder / SETTINGS).get("quantization")
    if not isinstance(quantization, Mapping):
        raise ConfigError(f"'{folder}': expected settings of {METHOD} in {SETTINGS}.")
    if quantization.get("quant_algo") == MIXED and not quantization.get(LAYERS):
        beside = folder / SETTINGS  # only this file has the layers in some releases
        nested = document(beside).get("quantization") if beside.is_file() else None
        quantization = {**quantization, **(nested if isinstance(nested, Mapping) else {})}
    return quantization


def _algorithms(settings: Mapping[str, Any], paths: list[str], where: str) -> dict[str, str]:
    """Returns the algorithm of each layer by path.

    Raises:
        ConfigError: if a layer has none, or one that cannot be read.
    """
    layers = settings.get(LAYERS)
    by_path = layers if settings.get("quant_algo") == MIXED and isinstance(layers, Mapping) else {}
    algorithms = dict[str, str]()
    for path in paths or [""]:
        own = by_path.get(path, settings)
        algorithm = own.get("quant_algo") if isinstance(own, Mapping) else own
        named = algorithm.upper() if isinstance(algorithm, str) else algorithm
        if named not in ALGORITHMS:
            raise ConfigError(
                f"{where}: expected a quant_algo of {METHOD} among {', '.join(ALGORITHMS)}, got "
                f"{algorithm!r:.40}{f' for {path!r:.80}' if by_path else ''}. Quantize the float "
                "model with chop or llm-compressor instead."
            )
        algorithms[path] = str(named)
    return algorithms


class _Layers:
    """Layers with 4-bit codes.

    Args:
        folder: folder, for messages.
        config: content of `config.json`.
        algorithms: algorithm by path.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], algorithms: Mapping[str, str]
    ) -> None:
        self._folder, self._algorithms = folder, algorithms
        named = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None)
        self._dtype = named if isinstance(named, torch.dtype) else torch.bfloat16
        self._packed = dict[str, Stored]()
        self._inputs = dict[str, NumberFormat]()
        self._floats = dict[str, Tensor]()

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Takes the layers out of a folder's tensors."""
        names = {f"{path}.{part}" for path in self._own for part in (*PARTS, *OPTIONAL)}
        own = {name: tensors.pop(name) for name in names & tensors.keys()}
        self._packed = coded_modules(own, PARTS, OPTIONAL, self._stored)
        for path in [x for x, one in self._packed.items() if f"{x}.weight" in self._floats]:
            del self._packed[path]

    @property
    def _own(self) -> list[str]:
        return [path for path, algorithm in self._algorithms.items() if algorithm in PACKED]

    def _stored(self, path: str, parts: Mapping[str, Tensor]) -> Stored:
        algorithm = self._algorithms[path]
        scheme, smoothing = PACKED[algorithm], parts.get(SMOOTHING)
        with decoding(f"'{self._folder}': '{path}' does not fit {algorithm}"):
            one = scheme.read(parts)
            assert one.shape is not None
            if smoothing is not None:
                if smoothing.numel() != one.shape[1]:
                    raise ValueError(f"{SMOOTHING} is {tuple(smoothing.shape)}")
                self._floats[f"{path}.weight"] = self._smoothed(one, checked_scales(smoothing))
            elif scheme.inputs is not None and SCALE in parts:
                self._inputs[path] = scheme.inputs(parts[SCALE])
        return one

    def _smoothed(self, one: Stored, smoothing: Tensor) -> Tensor:
        """Returns a float weight whose columns have the factors of its inputs."""
        assert one.shape is not None
        parts = one.scales, one.tensor_scale
        encoded = Encoded(one.codes, torch.Size(one.shape), torch.float32, *parts)
        return (one.number_format.decode(encoded) * smoothing).to(self._dtype)

    def add_to(self, content: Read) -> Read:
        """Returns the content with these layers, and warns of what differs from the engines."""
        if self._floats:
            names = enumerate_names(sorted(self._floats), MOST_NAMES)
            log.warning(
                "%s: layers that scale their inputs (%s) become float layers: %s",
                *(self._folder, SMOOTHING, names),
            )
        omitted = {PACKED[self._algorithms[path]].omitted for path in self._own} - {None}
        if omitted:
            log.warning(
                "%s: engines also round the following, but chop does not: %s",
                self._folder,
                enumerate_names(sorted(map(str, omitted)), MOST_NAMES),
            )
        return replace(
            content,
            tensors={**content.tensors, **self._floats},
            packed={**content.packed, **self._packed},
            inputs={**content.inputs, **self._inputs},
        )


READER = Reader(METHOD, read, may_be_float=True)
