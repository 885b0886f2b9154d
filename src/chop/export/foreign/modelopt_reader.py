"""Reader for FP8 folders of NVIDIA's TensorRT Model Optimizer (ModelOpt).

Source of the layout: ModelOpt's unified Hugging Face checkpoint. A `weight` of e4m3, and in float32
`weight_scale`, which it is multiplied by, and `input_scale`, which inputs are divided by, one of
each for a layer: the tensors of compressed-tensors with static scales for all. The algorithm is
named in `quantization_config`, or by older releases in `hf_quant_config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.export.compressed_tensors.groups import CLASSES, Group
from chop.export.compressed_tensors.inputs import InputScheme
from chop.export.compressed_tensors.reader import read_groups
from chop.export.compressed_tensors.target import FLOATS_IN
from chop.export.foreign.reader import Read, Reader
from chop.export.foreign.weight_files import document
from chop.ir.huggingface.config_file import CONFIG

METHOD, ALGORITHM = "modelopt", "FP8"
SETTINGS = "hf_quant_config.json"
"""Settings of a folder whose `config.json` says nothing."""
INPUTS = InputScheme(8, "float", "tensor", None, is_dynamic=False)
LAYERS = Group(
    *(CLASSES, (), FLOATS_IN, 8, "float", "tensor", None),
    is_symmetric=True,
    inputs=INPUTS,
    may_lack_inputs=True,
)


def read(folder: Path) -> Read:
    """Content of a folder.

    Raises:
        ConfigError: its weights are of another algorithm.
        CheckpointError: files are missing or broken, or do not fit it.
    """
    config = document(folder / CONFIG)
    settings = _settings(folder, config)
    algorithm = settings.get("quant_algo")
    if algorithm != ALGORITHM:
        raise ConfigError(
            f"'{folder}': expected quant_algo '{ALGORITHM}' of {METHOD}, got {algorithm!r:.40}: "
            "quantize the float model again, with chop or with llm-compressor."
        )
    has_cache = settings.get("kv_cache_quant_algo") or settings.get("kv_cache_scheme")
    return read_groups(folder, config, [LAYERS], quantizes_cache=bool(has_cache))


def _settings(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    own = config.get("quantization_config")
    quantization = own if own else document(folder / SETTINGS).get("quantization")
    if not isinstance(quantization, Mapping):
        raise ConfigError(f"'{folder}': expected settings of {METHOD} in {SETTINGS}.")
    return quantization


READER = Reader(METHOD, read)
