"""Tokenizers by built-in name, local folder or hub name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chop.data.reviews import vocabulary
from chop.errors import UnavailableError, did_you_mean
from chop.hub import hub_is_reachable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The model that reads the built-in reviews, and the data set itself, name the same tokenizer.
BUILTIN_TOKENIZERS = ("bert-tiny", "reviews")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MODEL_LIMIT = 512


def get_tokenizer(checkpoint: str | Path | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer by built-in name (`bert-tiny`), local folder or hub name; or the given one.

    Raises:
        UnavailableError: neither built in nor a local folder with a tokenizer, nor reachable.
    """
    if not isinstance(checkpoint, str | Path):
        return checkpoint
    name = str(checkpoint)
    if name in BUILTIN_TOKENIZERS:
        return _builtin_tokenizer()
    from transformers import AutoTokenizer

    is_folder = Path(name).is_dir()
    try:
        return AutoTokenizer.from_pretrained(
            name, local_files_only=is_folder or not hub_is_reachable()
        )
    except (OSError, ValueError) as error:
        reach = "" if is_folder or hub_is_reachable() else " (the hub cannot be reached)"
        raise UnavailableError(
            f"'{name}': no tokenizer found{reach}; give a local folder that has one, or a "
            f"built-in: {did_you_mean(name, BUILTIN_TOKENIZERS)}"
        ) from error


def _builtin_tokenizer() -> PreTrainedTokenizerBase:
    from transformers import BertTokenizer

    tokens = [*SPECIAL_TOKENS, *vocabulary()]
    return BertTokenizer(
        vocab={token: index for index, token in enumerate(tokens)}, model_max_length=MODEL_LIMIT
    )
