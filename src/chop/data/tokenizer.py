"""Tokenizers by built-in name, local folder or hub name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chop.data.reviews import vocabulary
from chop.errors import ConfigError, UnavailableError, did_you_mean
from chop.hub import hub_is_reachable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The model that reads the built-in reviews, and the data set itself, name the same tokenizer.
BUILTIN_TOKENIZERS = ("bert-tiny", "reviews")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MODEL_LIMIT = 512
LEAST_SHARE = 0.1
"""Of a model's vocabulary that its tokenizer has: less is the tokenizer of something else."""


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
        tokenizer = AutoTokenizer.from_pretrained(
            name, local_files_only=is_folder or not hub_is_reachable()
        )
        if is_folder:
            _check_has_files(Path(name), tokenizer)
        return tokenizer
    except (OSError, ValueError) as error:
        reach = "" if is_folder or hub_is_reachable() else " (the hub cannot be reached)"
        raise UnavailableError(
            f"'{name}': no tokenizer found{reach}; give a local folder that has one (for a command "
            f"--tokenizer), or a built-in: {did_you_mean(name, BUILTIN_TOKENIZERS)}"
        ) from error


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int | None) -> None:
    """Compares a tokenizer with the model that is to read its tokens.

    Args:
        tokenizer: of the texts.
        vocab_size: tokens that the model has embeddings for; None where it does not say.
    Raises:
        ConfigError: the tokenizer has more tokens than that, or less than a tenth.
    """
    known = len(tokenizer)
    if vocab_size is not None and not LEAST_SHARE * vocab_size <= known <= vocab_size:
        raise ConfigError(
            f"the tokenizer has {known:,} tokens and the model's vocabulary {vocab_size:,}: they "
            "do not belong together; name the model's own by --tokenizer FOLDER_OR_NAME."
        )


def _check_has_files(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Of a folder that has a model's config alone, transformers makes a tokenizer without words."""
    names = {"tokenizer_config.json", *tokenizer.vocab_files_names.values()}
    if not any((folder / name).is_file() for name in names):
        raise FileNotFoundError(f"none of {', '.join(sorted(names))} in '{folder}'")


def _builtin_tokenizer() -> PreTrainedTokenizerBase:
    from transformers import BertTokenizer

    tokens = [*SPECIAL_TOKENS, *vocabulary()]
    return BertTokenizer(
        vocab={token: index for index, token in enumerate(tokens)}, model_max_length=MODEL_LIMIT
    )
