"""Reader for FP8 folders of NVIDIA's TensorRT Model Optimizer (ModelOpt).

Source of the layout: ModelOpt's unified Hugging Face checkpoint. Each layer has a `weight` of e4m3
with a float32 factor `weight_scale`, and a float32 `input_scale` that divides inputs. These are
the tensors of compressed-tensors with static scales per tensor. The algorithm is named in
`quantization_config`, or in `hf_quant_config.json` by older releases.
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
"""Settings file of folders without settings in `config.json`."""
INPUTS = InputScheme(8, "float", "tensor", None, is_dynamic=False)
LAYERS = Group(
    *(CLASSES, (), FLOATS_IN, 8, "float", "tensor", None),
    is_symmetric=True,
    inputs=INPUTS,
    may_lack_inputs=True,
)


def read(folder: Path) -> Read:
    """Reads a folder.

    Raises:
        ConfigError: if its weights use another algorithm.
        CheckpointError: if files are missing or broken, or do not fit the settings.
    """
    config = document(folder / CONFIG)
    settings = _settings(folder, config)
    algorithm = settings.get("quant_algo")
    if algorithm != ALGORITHM:
        raise ConfigError(
            f"'{folder}': expected quant_algo '{ALGORITHM}' of {METHOD}, got {algorithm!r:.40}. "
            "Quantize the float model with chop or llm-compressor instead."
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
