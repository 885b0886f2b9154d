"""generation_config.json: stop tokens and sampling settings of `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.base.files.documents import read_json
from chop.errors import CheckpointError, ConfigError, first_line
from chop.ir.huggingface.config_file import config_errors

FILE = "generation_config.json"


def read_generation_config(model: Any, folder: str | Path) -> None:
    """Applies the generation settings of a folder to a model, if the file exists.

    Args:
        model: Hugging Face model; unchanged if its class does not generate.
        folder: local folder.

    Raises:
        CheckpointError: if the file is broken. transformers would use its defaults silently.
    """
    from transformers import GenerationConfig

    file = Path(folder) / FILE
    if not model.can_generate() or not file.is_file():
        return
    check_generation_config(folder)
    try:
        model.generation_config = GenerationConfig.from_pretrained(folder)
    except config_errors() as error:
        raise CheckpointError(f"'{file}' cannot be read: {first_line(error)}") from error


def check_generation_config(folder: str | Path) -> None:
    """Raises CheckpointError if the generation settings are not a JSON object.

    Args:
        folder: local folder; the file may be missing.
    """
    file = Path(folder) / FILE
    try:
        if file.is_file():
            read_json(file, "config")
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {first_line(error)}") from error
