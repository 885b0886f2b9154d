"""Tokenizers by built-in name, local folder or hub name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files.library_errors import library_errors, without_panic_report
from chop.base.hub import hub_is_reachable
from chop.data.builtin_names import builtin_name
from chop.data.reviews import vocabulary
from chop.data.stories import END, story_words
from chop.errors import (
    CheckpointError,
    ChopError,
    ConfigError,
    UnavailableError,
    did_you_mean,
    first_line,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model")
"""Files of which each folder with a tokenizer has at least one."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
STORY_TOKENS = ("<pad>", "<s>", END, "<unk>")
"""Special tokens of the stories' tokenizer, in the order of their IDs."""
SPACE = "▁"
"""SentencePiece's mark of a space before a word."""
MODEL_LIMIT = 512
STORY_LIMIT = 256
STORY_VOCABULARY = len(STORY_TOKENS) + 256 + 1 + len(story_words())
LEAST_SHARE = 0.1
"""Minimum share of a model's vocabulary that its tokenizer covers. Less suggests a wrong tokenizer.
"""


def get_tokenizer(checkpoint: str | Path | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Returns a tokenizer by built-in name, local folder or hub name, or the given one.

    Raises:
        UnavailableError: if the tokenizer is neither built in nor in a local folder nor reachable
            on the hub.
        CheckpointError: if the folder's tokenizer cannot be read.
        ConfigError: if it is neither a name nor a tokenizer.
    """
    if not isinstance(checkpoint, str | Path):
        if not callable(checkpoint) or not hasattr(checkpoint, "model_max_length"):
            given = "None" if checkpoint is None else f"a {type(checkpoint).__name__}"
            raise ConfigError(
                f"tokenizer: expected a name, a folder or a tokenizer of transformers, got {given}."
            )
        return checkpoint
    name = str(checkpoint)
    builtin = builtin_tokenizer(name)
    if builtin is not None:
        return BUILTIN_TOKENIZERS[builtin]()
    from transformers import AutoTokenizer

    folder = Path(name) if Path(name).is_dir() else None
    try:
        with _tokenizer_errors(name, folder):
            tokenizer = AutoTokenizer.from_pretrained(
                name,
                local_files_only=folder is not None or not hub_is_reachable(),
                trust_remote_code=False,  # without an answer it would ask on the terminal
            )
            if folder is not None:
                _check_has_files(folder, tokenizer)
        return tokenizer
    except UnavailableError as error:
        reach = "" if folder or hub_is_reachable() else " (the hub cannot be reached)"
        raise UnavailableError(
            f"'{name}': no tokenizer found{reach}; pass a local folder that has one (option "
            f"--tokenizer), or a built-in: {did_you_mean(name, BUILTIN_TOKENIZERS)}"
        ) from error


def builtin_tokenizer(name: object) -> str | None:
    """Returns the built-in tokenizer of a name, or None for other names and existing paths.

    Raises:
        ConfigError: if the name has the prefix `builtin:` and is not built in.
    """
    return builtin_name(name, BUILTIN_TOKENIZERS, "tokenizer", _has_tokenizer)


def _has_vocabulary(folder: Path) -> bool:
    patterns = ("tokenizer.json", "*vocab*", "*.model", "*.tiktoken", "*merges*", "*processor*")
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in FILES)


@contextmanager
def _tokenizer_errors(name: str, folder: Path | None) -> Iterator[None]:
    """Converts errors from reading a tokenizer.

    Args:
        name: name on the hub, or path of a folder.
        folder: folder with its files; None for the hub.
    Raises:
        UnavailableError: if there is no tokenizer.
        CheckpointError: if its files cannot be read.
    """
    # It imports torch, which help of commands does without.
    from chop.ir.huggingface.folder_files import check_folder_files
    from chop.ir.huggingface.tokenizer_file import check_tokenizer_files

    if folder is not None:
        check_folder_files(folder)
        check_tokenizer_files(folder)
    has_files = folder is not None and any(
        (folder / file).is_file() for file in (*FILES, *PROCESSOR_FILES)
    )
    with library_errors(name, problem="has a tokenizer or processor that cannot be read"):
        try:
            with without_panic_report():
                yield
        except ChopError:
            raise
        except (OSError, ValueError, KeyError, ImportError) as error:
            if has_files and folder is not None and not _has_vocabulary(folder):
                raise CheckpointError(
                    f"'{name}' has a tokenizer without a vocabulary, such as tokenizer.json: get "
                    "the folder again, with all files."
                ) from error
            if has_files and not isinstance(error, FileNotFoundError):
                raise
            # transformers raises the same classes where there is none
            raise UnavailableError(first_line(error)) from error


def find_processor(place: str) -> Any:
    """Returns the processor or tokenizer stored with a model, or None.

    Args:
        place: a local folder, or a name on the hub.
    Warns: in the log, if the one in a local folder cannot be read.
    """
    from transformers import AutoProcessor, AutoTokenizer

    folder, reason = Path(place) if Path(place).is_dir() else None, ""
    # Without the libraries of a processor its tokenizer can be had.
    for kind in (AutoProcessor, AutoTokenizer):
        try:
            with _tokenizer_errors(place, folder):
                # Without an answer it would ask on the terminal whether to run a folder's code.
                return kind.from_pretrained(place, trust_remote_code=False)
        except UnavailableError:
            continue
        except CheckpointError as error:  # broken, or of a class of its own
            reason = str(error)
    if reason:
        log.warning("%s It is not used.", reason)
    return None


def encode(tokenizer: PreTrainedTokenizerBase, *texts: Any, **settings: Any) -> Any:
    """Calls a tokenizer on texts.

    Args:
        tokenizer: tokenizer, possibly from an untrusted folder.
        *texts: positional arguments of the tokenizer.
        **settings: keyword arguments of the tokenizer.
    Raises:
        ConfigError: if the tokenizer fails on the texts.
    """
    name = tokenizer.name_or_path or type(tokenizer).__name__
    with (
        library_errors(name, error=ConfigError, problem="has a tokenizer that fails on the texts"),
        without_panic_report(),
    ):
        return tokenizer(*texts, **settings)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int | None) -> None:
    """Checks that the vocabularies of a tokenizer and a model match.

    Args:
        tokenizer: tokenizer of the texts.
        vocab_size: number of embeddings of the model; None if unknown.
    Raises:
        ConfigError: if the tokenizer has more tokens, or less than a tenth.
    """
    known = len(tokenizer)
    if vocab_size is not None and not LEAST_SHARE * vocab_size <= known <= vocab_size:
        raise ConfigError(
            f"the tokenizer has {known:,} tokens but the model's vocabulary has {vocab_size:,}; "
            "choose the model's tokenizer with --tokenizer FOLDER_OR_NAME."
        )


def _check_has_files(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Checks that a folder has tokenizer files, else transformers makes an empty tokenizer."""
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
    """Builds a Llama-like tokenizer: words of the grammar are tokens, others become bytes."""
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
