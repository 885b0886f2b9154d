"""Windows of running text, with each token scored once given the tokens before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from chop.config import with_checked_arguments
from chop.data.splits import check_splits
from chop.data.tokenizer import encode
from chop.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

NO_LABEL = -100
TEXT_BUILDER = "text"
"""Name of the reader of .txt files in `datasets`, whose rows are lines."""


def is_running_text(splits: DatasetDict) -> bool:
    """Returns true for .txt files, whose rows are lines rather than separate texts."""
    check_splits(splits)
    return any(split.info.builder_name == TEXT_BUILDER for split in splits.values())


@with_checked_arguments
def strided_windows(
    ids: Sequence[int], length: int, stride: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields windows over a text, with labels only for tokens that no earlier window scores.

    This is the strided evaluation of perplexity of Hugging Face's documentation ("Perplexity of
    fixed-length models"): labels of the context are `NO_LABEL`. With `stride` = `length` the
    windows are the disjoint blocks of papers on quantization, whose first tokens have no context
    and do not count.

    Args:
        ids: tokens of the text.
        length: maximum number of tokens per window.
        stride: tokens by which a window advances, 1 to `length`.
    Yields: tokens and labels of a window, lists of equal length.
    Raises:
        ConfigError: if the stride is not between 1 and `length`.

    >>> list(strided_windows(range(5), length=4, stride=2))
    [([0, 1, 2, 3], [0, 1, 2, 3]), ([2, 3, 4], [-100, -100, 4])]
    """
    if not 1 <= stride <= length:
        raise ConfigError(f"stride: expected 1 to the window length {length}, got {stride}.")
    scored = 0
    for begin in range(0, len(ids), stride):
        window = list(ids[begin : begin + length])
        context = scored - begin
        yield window, [NO_LABEL] * context + window[context:]
        scored = begin + len(window)
        if scored == len(ids):
            return


def windowed(
    splits: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    column: str,
    *,
    length: int,
    stride: int | None = None,
    limit: int | None = None,
) -> DatasetDict:
    """Joins the texts of each split and cuts them into windows of tokens.

    Lines are joined by line ends, and texts of tables by blank lines. Training windows are
    disjoint, so each token is trained on once per epoch.

    Args:
        splits: texts.
        tokenizer: tokenizer of the texts.
        column: text column.
        length: tokens of a window, at least 2.
        stride: tokens by which windows advance, except in `train`; default, half of `length`.
        limit: maximum number of windows per split; the first are used.
    Returns: a DatasetDict with columns `input_ids`, `attention_mask` and `labels`.
    Raises:
        ConfigError: if `length` is less than 2, the stride is not between 1 and `length`, or a
            split has less than two tokens.
    """
    from datasets import DatasetDict

    if length < 2:
        raise ConfigError(f"max_length: expected windows of at least 2 tokens, got {length}.")
    step = max(1, length // 2) if stride is None else stride
    separator = "\n" if is_running_text(splits) else "\n\n"
    windows = {}
    for name, split in splits.items():
        ids = encode(tokenizer, separator.join(split[column]), verbose=False)["input_ids"]
        if len(ids) < 2:
            raise ConfigError(f"split '{name}': expected at least two tokens of text.")
        windows[name] = _as_dataset(ids, length, length if name == "train" else step, limit)
    return DatasetDict(windows)


def _as_dataset(ids: list[int], length: int, stride: int, limit: int | None) -> Dataset:
    from datasets import Dataset

    # A window of one token, left over at the end of disjoint ones, has no token to predict.
    windows = [pair for pair in strided_windows(ids, length, stride) if len(pair[0]) > 1][:limit]
    tokens, labels = zip(*windows, strict=True)
    masks = [[1] * len(window) for window in tokens]
    return Dataset.from_dict({"input_ids": tokens, "attention_mask": masks, "labels": labels})
