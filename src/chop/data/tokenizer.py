"""Tokenizers by built-in name, local folder or hub name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.data.reviews import vocabulary
from chop.data.stories import END, story_words
from chop.errors import ConfigError, UnavailableError, did_you_mean
from chop.hub import hub_is_reachable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
STORY_TOKENS = ("<pad>", "<s>", END, "<unk>")
"""Of the stories' tokenizer, in the order of their ids."""
SPACE = "▁"
"""SentencePiece's mark of a space before a word."""
MODEL_LIMIT = 512
STORY_LIMIT = 256
STORY_VOCABULARY = len(STORY_TOKENS) + 256 + 1 + len(story_words())
LEAST_SHARE = 0.1
"""Of a model's vocabulary that its tokenizer has: less is the tokenizer of something else."""


def get_tokenizer(checkpoint: str | Path | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer by built-in name, local folder or hub name; or the given one.

    Raises:
        UnavailableError: neither built in nor a local folder with a tokenizer, nor reachable.
    """
    if not isinstance(checkpoint, str | Path):
        return checkpoint
    name = str(checkpoint)
    if name in BUILTIN_TOKENIZERS:
        return BUILTIN_TOKENIZERS[name]()
    from transformers import AutoTokenizer

    is_folder = Path(name).is_dir()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name,
            local_files_only=is_folder or not hub_is_reachable(),
            trust_remote_code=False,  # without an answer it would ask on the terminal
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


def find_processor(place: str) -> Any:
    """The processor or tokenizer that a model came with; None: it came alone.

    Args:
        place: a local folder, or a name on the hub.
    """
    from transformers import AutoProcessor, AutoTokenizer

    # Without the libraries of a processor its tokenizer can be had.
    for kind in (AutoProcessor, AutoTokenizer):
        try:
            # Without an answer it would ask on the terminal whether to run a folder's code.
            return kind.from_pretrained(place, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError):  # none, or of a class of its own
            continue
    return None


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


def _review_tokenizer() -> PreTrainedTokenizerBase:
    from transformers import BertTokenizer

    tokens = [*SPECIAL_TOKENS, *vocabulary()]
    return BertTokenizer(
        vocab={token: index for index, token in enumerate(tokens)}, model_max_length=MODEL_LIMIT
    )


def _story_tokenizer() -> PreTrainedTokenizerBase:
    """As Llama's: the words of the grammar are tokens, and others are spelled in their bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [SPACE + word if word.isalpha() else word for word in story_words()]
    spelling = [*STORY_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE]
    scores = [(token, -10.0) for token in spelling] + [(piece, 0.0) for piece in pieces]
    core = Tokenizer(models.Unigram(scores, STORY_TOKENS.index("<unk>"), byte_fallback=True))
    words = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first")
    core.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation("isolated")])
    core.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", STORY_TOKENS.index("<s>"))]
    )
    pad, bos, eos, unknown = STORY_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unknown,
        padding_side="left",  # as generate() wants it
        model_max_length=STORY_LIMIT,
    )


# The model that reads a built-in data set, and the data set itself, name the same tokenizer.
BUILTIN_TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "bert-tiny": _review_tokenizer,
    "reviews": _review_tokenizer,
    "gpt-tiny": _story_tokenizer,
    "stories": _story_tokenizer,
}
