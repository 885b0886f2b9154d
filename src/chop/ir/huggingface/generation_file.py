"""generation_config.json of a folder: stop tokens and sampling of the model's `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.base.files.documents import read_json
from chop.errors import CheckpointError, ConfigError, first_line
from chop.ir.huggingface.config_file import config_errors

FILE = "generation_config.json"


def read_generation_config(model: Any, folder: str | Path) -> None:
    """Gives a model what a folder says of `generate`, if it has such a file.

    Args:
        model: model of transformers. It stays as it is if its class does not generate.
        folder: local.

    Raises:
        CheckpointError: the file is broken. Transformers would take its own defaults.
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
    """Raises CheckpointError where the file of a folder is no JSON object.

    Args:
        folder: local; the file may be missing.
    """
    file = Path(folder) / FILE
    try:
        if file.is_file():
            read_json(file, "config")
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {first_line(error)}") from error
