"""Table of readers: the one place that names the tools whose folders and files are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from chop.base.files.documents import read_json
from chop.base.plugins import Registry
from chop.errors import ConfigError
from chop.export.foreign import loading
from chop.export.foreign.reader import Reader
from chop.export.gguf.header import gguf_file
from chop.ir.huggingface.config_file import CONFIG

READERS: Registry[Reader] = Registry(
    "readers",
    {
        "compressed-tensors": "chop.export.compressed_tensors.reader:READER",
        "gptq": "chop.export.gptq.reader:READER",
        "awq": "chop.export.gptq.awq_reader:READER",
        "modelopt": "chop.export.foreign.modelopt_reader:READER",
        "fp8": "chop.export.foreign.fp8_reader:READER",
    },
    kind=Reader,
)
"""Readers by `quant_method` of a folder: those of chop, and those of other packages."""
OTHER_SETTINGS: Mapping[str, str] = {"hf_quant_config.json": "modelopt"}
"""`quant_method` by a file beside a `config.json` without a `quantization_config`."""


def get_reader(path: Path) -> Reader | None:
    """The reader of a folder or file; None: it is of no such tool.

    Args:
        path: a folder with a `config.json`, a file of GGUF, or a folder with one such file and no
            other weights.
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
    return READERS[method] if isinstance(method, str) and method in READERS else None


def check_method(config: Any, where: str) -> None:
    """Raises ConfigError where nothing reads the weights that a configuration speaks of."""
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
            f"{where}: quantization_config has the quant_method {method!r:.40}, which neither chop "
            f"nor transformers reads; chop reads {', '.join(READERS)}."
        )


def load(path: Path, choose: Callable[[Any], Any] | None = None, **settings: Any) -> nn.Module:
    """The model of a folder or file of another tool, its weights packed in formats of chop.

    Args:
        path: local, see `get_reader`.
        choose: configuration -> class of transformers to build. Default: the one that it names.
        settings: of its configuration, in the place of those of the folder.

    Raises:
        ConfigError: it is of no tool that is known, or has something without a format here.
        CheckpointError: files are missing or broken, or do not fit what `config.json` says.
    """
    found = get_reader(path)
    if found is None:
        known = ", ".join(READERS)
        raise ConfigError(f"'{path}': expected a folder of {known}, or a file of GGUF.")
    return loading.load(found, path, choose, **settings)
