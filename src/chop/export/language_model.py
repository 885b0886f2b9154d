"""Files beside an exported decoder, which libraries for text generation read with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chop.base.files import write_json
from chop.captured.huggingface.cache_names import POSITIONS
from chop.captured.huggingface.generation import build_generation_config
from chop.errors import ConfigError, enumerate_names
from chop.export.graphs.cache import IDS, MASK, PAST, has_cache
from chop.export.refusals import MOST_LISTED
from chop.ir.graph import MaseGraph
from chop.ir.huggingface.config_file import CONFIG
from chop.ir.huggingface.generation_file import FILE as GENERATION

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Weight files of transformers models."""


def why_not_generated(mg: MaseGraph, inputs: Iterable[str]) -> str:
    """Returns the reason why libraries cannot generate text with a file; "" if they can.

    Args:
        mg: graph of the file.
        inputs: names of the file's inputs.
    """
    from transformers import PreTrainedConfig

    names = [*inputs]
    if not any(name.startswith(f"{PAST}.") for name in names):
        return "its inputs have no key-value cache"
    given = (IDS, MASK, POSITIONS)
    if others := [x for x in names if x not in given and not x.startswith(f"{PAST}.")]:
        return f"it also takes {enumerate_names(others, MOST_LISTED)}"
    if not isinstance(mg.model.record.config, PreTrainedConfig):
        return "its configuration is not one of transformers"
    return ""


def is_generator(mg: MaseGraph) -> bool:
    """Returns True if the captured model generates text by `generate` of transformers."""
    return mg.model.record.generation_config is not None


def get_generation_settings(mg: MaseGraph) -> dict[str, Any]:
    """Returns the content of `generation_config.json`: stop tokens and search settings."""
    settings = build_generation_config(mg.model.record)
    return dict(json.loads(settings.to_json_string()))


def require_no_model(mg: MaseGraph, path: Path) -> None:
    """Checks that the files beside a decoder overwrite none of a transformers model.

    Args:
        mg: graph to export. Only decoders with a cache have such files.
        path: path of the decoder's file, in the folder to check.
    Raises:
        ConfigError: if the folder has a configuration and weights.
    """
    folder, has_more = path.parent, is_generator(mg) and has_cache(mg)
    has_weights = any(file for pattern in WEIGHTS for file in folder.glob(pattern))
    if has_more and (folder / CONFIG).is_file() and has_weights:
        raise ConfigError(
            f"{path}: expected a folder without another model, because the files of the tokenizer "
            f"and the configuration would overwrite its own; choose another folder, such as "
            f"{folder / path.stem / path.name}."
        )


def save_tokenizer(tokenizer: Any, folder: Path) -> Any:
    """Writes the files of a tokenizer, or of the tokenizer of a processor, and returns it."""
    from transformers import ProcessorMixin

    if isinstance(tokenizer, ProcessorMixin):
        tokenizer = getattr(tokenizer, "tokenizer", None)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return tokenizer


def save_configs(mg: MaseGraph, folder: Path) -> None:
    """Writes `config.json` and `generation_config.json`."""
    mg.model.record.config.save_pretrained(folder)
    write_json(folder / GENERATION, get_generation_settings(mg))
