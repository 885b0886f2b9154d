"""Hugging Face folder: a model's files with packed weights and their formats."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from chop.base.files import atomic_files
from chop.errors import ConfigError
from chop.nn.packed import PackedOperator

WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def note_formats(model: nn.Module) -> None:
    """Makes `save_pretrained` of a transformers model write the formats of its layers.

    Args:
        model: any model; models of other libraries or without formats are not changed.
    """
    from transformers import PreTrainedModel

    from chop.ir.huggingface.quantizer import METHOD, ChopQuantizer
    from chop.ir.huggingface.stored import has_formats

    if not isinstance(model, PreTrainedModel) or not has_formats(model):
        return
    ChopQuantizer.attach(model)
    if any(isinstance(module, PackedOperator) for module in model.modules()):
        # transformers' trainer accepts such a model only with adapters.
        vars(model).update(is_quantized=True, quantization_method=METHOD)


def save_folder(
    model: nn.Module,
    folder: str | Path,
    tokenizer: Any = None,
    max_shard_size: int | str = "5GB",
    card: bool = True,
) -> None:
    """Writes a model with quantized layers for `from_pretrained` with chop installed.

    Args:
        model: a Hugging Face model, changed in place; use a result of `to_module`.
        folder: destination; missing folders are created, and other files stay.
        tokenizer: tokenizer or processor whose files are saved as well; None saves none.
        max_shard_size: maximum size of a weight file, bytes or "5GB"; larger ones are split.
        card: write a model card, unless the folder has a README.md that chop did not write.

    Raises:
        ConfigError: if the model is not of transformers, or a layer cannot be described by formats.
        WriteError: if the disk is full or read-only.
    """
    from transformers import PreTrainedModel

    from chop.ir.huggingface.card import CardFacts, write_card
    from chop.ir.huggingface.stored import drop_masks, has_formats
    from chop.ir.huggingface.tying import settle_ties

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"save_pretrained: expected a Hugging Face model, got a {type(model).__name__}; "
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
        if card and has_formats(model):
            write_card(fresh, CardFacts().with_model(model), folder)
        written = {file.name for file in fresh.iterdir()}
    remove_older(folder, written)


def remove_older(folder: Path, written: Collection[str]) -> None:
    """Removes weight files and the card of a previous model in the folder."""
    from chop.ir.huggingface.card import FILE, is_own

    for file in folder.iterdir():
        is_card = file.name == FILE and is_own(file)
        if (WEIGHTS.fullmatch(file.name) or is_card) and file.name not in written:
            file.unlink()
