"""Hugging Face folder: a model's files with packed weights and their formats."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from chop.base.files import atomic_files, write_text
from chop.base.files.reading import read_text
from chop.errors import ConfigError
from chop.nn.packed import PackedOperator

WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def note_formats(model: nn.Module) -> None:
    """Makes `save_pretrained` of a model of transformers write the formats of its layers.

    Args:
        model: any; one of another library, or without formats, stays as it is.
    """
    from transformers import PreTrainedModel

    from chop.ir.huggingface.quantizer import METHOD, ChopQuantizer
    from chop.ir.huggingface.stored import has_formats

    if not isinstance(model, PreTrainedModel) or not has_formats(model):
        return
    ChopQuantizer.attach(model)
    if any(isinstance(module, PackedOperator) for module in model.modules()):
        # Transformers' trainer trains such a model with adapters alone.
        vars(model).update(is_quantized=True, quantization_method=METHOD)


def save_folder(
    model: nn.Module,
    folder: str | Path,
    tokenizer: Any = None,
    max_shard_size: str = "5GB",
    card: bool = True,
) -> None:
    """Writes a model with quantized layers as `from_pretrained` reads it where chop is installed.

    Args:
        model: of transformers; it is changed, so give one of `to_module`.
        folder: where to; missing folders are made, other files in it stay.
        tokenizer: or processor, whose files go along; None: none.
        max_shard_size: of a file of weights, such as "5GB"; more are split.
        card: writes a README.md that says how to load it, unless the folder has one.

    Raises:
        ConfigError: the model is none of transformers, or a layer is more than formats can tell.
        WriteError: the disk is full or read-only.
    """
    from transformers import PreTrainedModel

    from chop.ir.huggingface.card import FILE, model_card
    from chop.ir.huggingface.stored import drop_masks, has_formats
    from chop.ir.huggingface.tying import settle_ties

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"save_pretrained: expected a model of transformers, got a {type(model).__name__}; "
            "mg.export writes the graph of any model."
        )
    drop_masks(model)
    note_formats(model)
    settle_ties(model)
    folder = Path(folder).expanduser()
    with atomic_files(folder, "model") as fresh:
        model.save_pretrained(fresh, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
        if card and has_formats(model) and not _has_card(folder):
            write_text(fresh / FILE, model_card(model))
        written = {file.name for file in fresh.iterdir()}
    remove_older(folder, written)


def _has_card(folder: Path) -> bool:
    """Whether a folder has a README.md that is not ours."""
    from chop.ir.huggingface.card import FILE

    file = folder / FILE
    return file.exists() and not _is_own(file)


def _is_own(card: Path) -> bool:
    """Returns whether chop wrote a model card."""
    from chop.ir.huggingface.card import MARK

    try:
        return MARK in read_text(card, "config", errors="replace")
    except (OSError, ConfigError):  # a folder, a pipe, or far larger than ours
        return False


def remove_older(folder: Path, written: Collection[str]) -> None:
    """Removes the files of an older model of more or fewer files, and its card."""
    from chop.ir.huggingface.card import FILE

    for file in folder.iterdir():
        is_card = file.name == FILE and _is_own(file)
        if (WEIGHTS.fullmatch(file.name) or is_card) and file.name not in written:
            file.unlink()
