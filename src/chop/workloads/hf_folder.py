"""Hugging Face folder of a job, beside its checkpoint."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files import discard_older
from chop.data.tokenizer import builtin_tokenizer, find_processor, get_tokenizer
from chop.errors import ChopError, UnavailableError, WriteError
from chop.ir.graph import MaseGraph
from chop.models import builtin_model, is_own

if TYPE_CHECKING:
    from chop.workloads.settings import WorkloadConfig

FOLDER = "model"


def write_model_folder(mg: MaseGraph, config: WorkloadConfig, results: Path) -> str | None:
    """Writes a model of transformers to the folder `model` of a run's results.

    Where the model cannot be written so, the folder of an earlier run's model goes.

    Args:
        mg: the graph of the model that is saved.
        config: the tokenizer or processor of its model goes along.
        results: the folder that is put in place as one, see `chop.base.files.staged_files`.
    Returns: reason why no folder is written. None if one is.
    """
    made = results / f".{FOLDER}"
    reason = _write(mg, config, made)
    if reason is None:
        shutil.move(made, results / FOLDER)
    else:
        shutil.rmtree(made, ignore_errors=True)
        discard_older(results, FOLDER)
    return reason


def _write(mg: MaseGraph, config: WorkloadConfig, folder: Path) -> str | None:
    """Writes the folder; or says why not."""
    transformers: Any = sys.modules.get("transformers")
    known = mg.model.record.config
    if transformers is None or not isinstance(known, transformers.PreTrainedConfig):
        return f"{mg.model.record.class_name} is no model of transformers"
    try:
        write_folder(mg, config, folder)
    except WriteError:
        raise
    except ChopError as error:
        return str(error)
    return None


def write_folder(
    mg: MaseGraph, config: WorkloadConfig, folder: Path, max_shard_size: str = "5GB"
) -> None:
    """Writes a model of transformers and the tokenizer or processor that came with it.

    Args:
        mg: the graph of the model.
        config: names the model.
        folder: where to.
        max_shard_size: of a file of weights, each of which is in memory while it is written.
    """
    mg.save_pretrained(folder, _processor(config), max_shard_size)


def _processor(config: WorkloadConfig) -> Any:
    """The tokenizer or processor that came with the model; None where none did."""
    if builtin_model(config.model) or is_own(config.model):
        return None
    if config.tokenizer is None:
        return find_processor(config.model)
    if builtin_tokenizer(config.tokenizer):
        return None
    try:
        return get_tokenizer(config.tokenizer)
    except UnavailableError:  # a folder with a model alone
        return None
