"""Hugging Face folder of a job, beside its checkpoint."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.data.tokenizer import BUILTIN_TOKENIZERS, find_processor, get_tokenizer
from chop.errors import ChopError, UnavailableError
from chop.files import atomic_folder
from chop.ir.graph import MaseGraph
from chop.models import BUILTIN_MODELS, is_own

if TYPE_CHECKING:
    from chop.workloads.settings import WorkloadConfig

FOLDER = "model"


@contextmanager
def hugging_face_folder(mg: MaseGraph, config: WorkloadConfig) -> Iterator[str | None]:
    """Writes a model of transformers to `config.out/model` when the block succeeds.

    Where the model cannot be written so, the folder of an earlier run's model goes.

    Args:
        mg: the graph of the model that is saved.
        config: whose `out` is written to; the tokenizer or processor of its model goes along.
    Yields: why no folder is written; None where one is.
    """
    place = config.out / FOLDER
    with tempfile.TemporaryDirectory() as made:
        reason = _write(mg, config, Path(made))
        if reason is not None:
            yield reason
            shutil.rmtree(place, ignore_errors=True)
            return
        with atomic_folder(place) as fresh:
            for file in Path(made).iterdir():
                shutil.move(file, fresh / file.name)
            yield None


def _write(mg: MaseGraph, config: WorkloadConfig, folder: Path) -> str | None:
    """Writes the folder; or says why not."""
    transformers: Any = sys.modules.get("transformers")
    known = mg.model.record.config
    if transformers is None or not isinstance(known, transformers.PreTrainedConfig):
        return f"{mg.model.record.class_name} is no model of transformers"
    try:
        write_folder(mg, config, folder)
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
    if config.model in BUILTIN_MODELS or is_own(config.model):
        return None
    if config.tokenizer is None:
        return find_processor(config.model)
    if config.tokenizer in BUILTIN_TOKENIZERS:
        return None
    try:
        return get_tokenizer(config.tokenizer)
    except UnavailableError:  # a folder with a model alone
        return None
