"""Table of readers for the folders and files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from chop.base.files.documents import read_json
from chop.base.plugins import Registry
from chop.errors import ConfigError
from chop.export.foreign import bitsandbytes_reader, loading
from chop.export.foreign.reader import Reader
from chop.export.gguf.header import gguf_file
from chop.ir.huggingface.config_file import CONFIG

READERS: Registry[Reader] = Registry(
    "readers",
    {
        "compressed-tensors": "chop.export.compressed_tensors.reader:READER",
        "gptq": "chop.export.gptq.reader:READER",
        "awq": "chop.export.gptq.awq_reader:READER",
        "auto-round": "chop.export.gptq.auto_round_reader:READER",
        "intel/auto-round": "chop.export.gptq.auto_round_reader:READER",
        "modelopt": "chop.export.foreign.modelopt_reader:READER",
        "fp8": "chop.export.foreign.fp8_reader:READER",
        "bitsandbytes": "chop.export.foreign.bitsandbytes_reader:READER",
    },
    kind=Reader,
)
"""Readers of chop and of other packages, by the `quant_method` of a folder."""
OTHER_SETTINGS: Mapping[str, str] = {"hf_quant_config.json": "modelopt"}
"""`quant_method` by settings file, for a `config.json` without a `quantization_config`."""


def get_reader(path: Path) -> Reader | None:
    """Returns the reader of a folder or file, or None for other paths.

    Args:
        path: folder with a `config.json`, GGUF file, or folder with one such file and no other
            weights.
    """
    if gguf_file(path) is not None:
        from chop.export.gguf.reader import READER

        return READER
    try:
        settings = read_json(path / CONFIG, "config").get("quantization_config")
    except (OSError, ConfigError):
        return None
    if not settings:
        beside = (method for file, method in OTHER_SETTINGS.items() if (path / file).is_file())
        settings = {"quant_method": next(beside, None)}
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if method is None and isinstance(settings, Mapping) and settings.get("load_in_4bit"):
        method = bitsandbytes_reader.METHOD  # as older releases of transformers wrote it
    if method == bitsandbytes_reader.METHOD and not bitsandbytes_reader.is_supported(settings):
        return None
    return READERS[method] if isinstance(method, str) and method in READERS else None


def check_method(config: Any, where: str) -> None:
    """Raises ConfigError if no reader supports the weights of a configuration."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    # Registers how transformers reads folders of chop.
    from chop.ir.huggingface import quantizer as _quantizer  # noqa: F401

    settings = getattr(config, "quantization_config", None)
    if not settings:
        return
    plain = settings if isinstance(settings, Mapping) else settings.to_dict()
    method = plain.get("quant_method")
    is_bitsandbytes = plain.get("load_in_8bit") or plain.get("load_in_4bit")
    is_known = isinstance(method, str) and method in {*READERS, *AUTO_QUANTIZATION_CONFIG_MAPPING}
    if not is_bitsandbytes and not is_known:
        raise ConfigError(
            f"{where}: neither chop nor transformers supports the quant_method {method!r:.40}; "
            f"chop supports {', '.join(READERS)}."
        )


def load(path: Path, choose: Callable[[Any], Any] | None = None, **settings: Any) -> nn.Module:
    """Loads the model of another tool's folder or file, with weights packed in chop's formats.

    Args:
        path: local path, see `get_reader`.
        choose: configuration -> transformers class to build. Default: the class that it names.
        settings: overrides of configuration settings.

    Raises:
        ConfigError: if the tool is unknown, or if chop has no format for some part.
        CheckpointError: if files are missing or broken, or do not fit `config.json`.
    """
    reader = get_reader(path)
    if reader is None:
        known = ", ".join(READERS)
        raise ConfigError(f"'{path}': expected a folder of {known}, or a GGUF file.")
    return loading.load(reader, path, choose, **settings)
