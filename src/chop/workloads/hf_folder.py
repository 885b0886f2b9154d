"""Hugging Face folder of a job, next to its checkpoint."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files import atomic_files, discard_older
from chop.data.tokenizer import builtin_tokenizer, find_processor, get_tokenizer
from chop.errors import ChopError, UnavailableError, WriteError
from chop.ir.graph import MaseGraph
from chop.models import builtin_model, is_own

if TYPE_CHECKING:
    from chop.workloads.settings import WorkloadConfig

FOLDER = "model"


MADE = f".{FOLDER}"
"""Name of the folder until it is complete."""


def write_processor(mg: MaseGraph, config: WorkloadConfig, results: Path) -> str | None:
    """Starts the folder with the model's tokenizer or processor.

    It may take as much memory as the packed weights, so that it is loaded before these exist.

    Args:
        mg: the graph of the model, which may not be packed yet.
        config: settings that name the model.
        results: see `write_model_folder`.
    Returns: reason why the model can have no folder. None if it can.
    """
    transformers: Any = sys.modules.get("transformers")
    known = mg.model.record.config
    if transformers is None or not isinstance(known, transformers.PreTrainedConfig):
        return f"{mg.model.record.class_name} is not a Hugging Face model"
    try:
        processor = load_processor(config)
        if processor is not None:
            with atomic_files(results / MADE, "model") as fresh:
                processor.save_pretrained(fresh)
    except WriteError:
        raise
    except ChopError as error:
        return str(error)
    return None


def write_model_folder(mg: MaseGraph, results: Path, reason: str | None) -> str | None:
    """Writes a transformers model to the folder `model` of a run's results.

    If it cannot be written, a folder of an earlier run is removed.

    Args:
        mg: the graph of the model that is saved.
        results: staged folder of results, see `chop.base.files.staged_files`.
        reason: result of `write_processor`, which runs first.
    Returns: reason why no folder is written. None if one is.
    """
    made = results / MADE
    reason = reason or _write(mg, made)
    if reason is None:
        shutil.move(made, results / FOLDER)
    else:
        shutil.rmtree(made, ignore_errors=True)
        discard_older(results, FOLDER)
    return reason


def _write(mg: MaseGraph, folder: Path) -> str | None:
    """Writes the model into the folder; returns the reason for a failure."""
    try:
        write_folder(mg, None, folder)
    except WriteError:
        raise
    except ChopError as error:
        return str(error)
    return None


def write_folder(
    mg: MaseGraph, config: WorkloadConfig | None, folder: Path, max_shard_size: str = "5GB"
) -> None:
    """Writes a transformers model with its tokenizer or processor.

    Args:
        mg: the graph of the model.
        config: settings that name the model. None: no tokenizer or processor is written.
        folder: destination.
        max_shard_size: maximum size of a weight file, which is in memory while it is written.
    """
    processor = None if config is None else load_processor(config)
    mg.save_pretrained(folder, processor, max_shard_size)


def load_processor(config: WorkloadConfig) -> Any:
    """Returns the model's tokenizer or processor; None if it has none."""
    if builtin_model(config.model) or is_own(config.model):
        return None
    if config.tokenizer is None:
        return find_processor(config.model)
    if builtin_tokenizer(config.tokenizer):
        return None
    try:
        return get_tokenizer(config.tokenizer)
    except UnavailableError:  # a folder with only a model
        return None
