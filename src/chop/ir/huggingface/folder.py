"""A folder that Hugging Face loads: the model's files with packed weights and their formats."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import nn

from chop.errors import ConfigError
from chop.files import atomic_files

WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def save_folder(
    model: nn.Module, folder: str | Path, tokenizer: Any = None, max_shard_size: str = "5GB"
) -> None:
    """Writes a model with quantized layers as `from_pretrained` reads it where chop is installed.

    Args:
        model: of transformers; it is changed, so give one of `to_module`.
        folder: where to; missing folders are made, other files in it stay.
        tokenizer: or processor, whose files go along; None: none.
        max_shard_size: of a file of weights, such as "5GB"; more are split.

    Raises:
        ConfigError: the model is none of transformers, or a layer is more than formats can tell.
        WriteError: the disk is full or read-only.
    """
    from transformers import PreTrainedModel

    from chop.ir.huggingface.quantizer import ChopConfig, ChopQuantizer
    from chop.ir.huggingface.stored import drop_masks, stored_modules
    from chop.ir.huggingface.tying import tie_codes

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"save_pretrained: expected a model of transformers, got a {type(model).__name__}; "
            "mg.export writes the graph of any model."
        )
    modules = stored_modules(model)
    drop_masks(model)
    if modules:
        config = ChopConfig(modules={path: stored.plain() for path, stored in modules.items()})
        model.config.quantization_config = config
        vars(model)["hf_quantizer"] = ChopQuantizer(config)
        tie_codes(model)
    folder = Path(folder).expanduser()
    with atomic_files(folder, "model") as fresh:
        model.save_pretrained(fresh, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
        written = {file.name for file in fresh.iterdir()}
    for file in folder.iterdir():  # an older model of more or fewer files
        if WEIGHTS.fullmatch(file.name) and file.name not in written:
            file.unlink()
