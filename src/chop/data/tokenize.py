"""Tokenization: texts to token columns, ready for a trainer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.data.bars import without_bars
from chop.data.load import UNLABELED_DATASETS, builtin_dataset, label_column, load_dataset
from chop.data.tokenizer import MODEL_LIMIT, encode, get_tokenizer
from chop.data.windows import NO_LABEL, is_running_text, windowed
from chop.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, list[Any]]
TEXT_COLUMNS = ("text", "sentence", "review", "content", "question", "premise", "sentence1")
WORD_COLUMNS = ("tokens", "words")
SECOND_COLUMNS = {"premise": "hypothesis", "sentence1": "sentence2"}


@without_bars()
def get_tokenized_dataset(
    dataset: str | Path | DatasetDict,
    checkpoint: str | Path | PreTrainedTokenizerBase,
    return_tokenizer: bool = False,
    *,
    max_length: int | None = None,
    limit: int | None = None,
    text_column: str | None = None,
    labeled: bool = True,
    stride: int | None = None,
) -> DatasetDict | tuple[DatasetDict, PreTrainedTokenizerBase]:
    """The labeled texts of a data set as token columns, cut to length and not yet padded.

    Args:
        dataset: what `load_dataset` takes, or what it gives.
        checkpoint: whose tokenizer: `bert-tiny` for the built-in reviews, `gpt-tiny` for the
            stories, a local folder, or a hub name; or a tokenizer.
        return_tokenizer: also return the tokenizer.
        max_length: tokens of a row at most; default, the model's limit and at most 512.
        limit: keep that many rows of each split, drawn by a fixed seed.
        text_column: the column with the text; default, `text`, `sentence` and the like. Where it
            holds lists of words (by default `tokens` or `words`), labels are of words, and become
            those of the first token of each; others have -100, which counts nowhere.
        labeled: False leaves labels out, for language modeling, and texts of less than two
            tokens.
        stride: joins texts without labels into one and cuts it into windows of `max_length`
            tokens that move on by so many, see `chop.data.windows`; files of lines (.txt) always
            are, by default by half of `max_length`.
    Returns: a DatasetDict with `train` and `test`; columns `labels` (int64) and the
        tokenizer's, `input_ids`, `attention_mask` and for BERT `token_type_ids`. Batches are
        padded when they are drawn, which `chop.train` does.
    Raises:
        ConfigError: no column of text, or a length below one.
        UnavailableError: data set or tokenizer can neither be found nor fetched.
    """
    tokenizer = get_tokenizer(checkpoint)
    drawn = limit if stride is None else None
    splits = load_dataset(dataset, limit=drawn, labeled=labeled)
    labeled = labeled and builtin_dataset(dataset) not in UNLABELED_DATASETS
    columns = _text_columns(splits["train"], text_column)
    _check_texts(splits, columns)
    length = min(tokenizer.model_max_length, MODEL_LIMIT) if max_length is None else max_length
    if length < 1:
        raise ConfigError(f"max_length: expected at least one token, got {length}.")

    if not labeled and (stride is not None or is_running_text(splits)):
        tokenized = windowed(
            splits, tokenizer, columns[0], length=length, stride=stride, limit=limit
        )
        return (tokenized, tokenizer) if return_tokenizer else tokenized
    if stride is not None:
        raise ConfigError("stride: texts with labels are rows of their own; leave it out.")
    label = label_column(splits["train"].column_names) if labeled else None
    settings: dict[str, Any] = {"truncation": True, "max_length": length}
    if hasattr(splits["train"].features[columns[0]], "feature"):
        words = partial(_tokenize_words, tokenizer=tokenizer, column=columns[0], label=label)
        tokenize = partial(words, **settings)
        unused = splits["train"].column_names
    else:
        tokenize = partial(_tokenize_texts, tokenizer=tokenizer, columns=columns, **settings)
        unused = [name for name in splits["train"].column_names if name != label]
    tokenized = splits.map(tokenize, batched=True, remove_columns=unused)
    if not labeled:
        tokenized = tokenized.filter(_has_two_tokens)
    elif "labels" not in tokenized["train"].column_names:
        tokenized = tokenized.rename_column(label, "labels")
    return (tokenized, tokenizer) if return_tokenizer else tokenized


def _has_two_tokens(row: dict[str, Any]) -> bool:
    return len(row["input_ids"]) > 1


def _tokenize_texts(
    rows: Batch, tokenizer: PreTrainedTokenizerBase, columns: list[str], **settings: Any
) -> Batch:
    return dict(encode(tokenizer, *(rows[name] for name in columns), **settings))


def _tokenize_words(
    rows: Batch,
    tokenizer: PreTrainedTokenizerBase,
    column: str,
    label: str | None,
    **settings: Any,
) -> Batch:
    """Words with a label each become tokens with a label each.

    Raises:
        ConfigError: a row has more labels than words, or fewer.
    """
    for words, labels in zip(rows[column], rows[label] if label else (), strict=False):
        if len(words) != len(labels):
            raise ConfigError(
                f"column '{label}': expected a label for each word, got {len(labels)} for the "
                f"{len(words)} words that start with '{' '.join(map(str, words[:3]))}'."
            )
    encoded = encode(tokenizer, rows[column], is_split_into_words=True, **settings)
    if label is None:
        return dict(encoded)
    labels = [_of_first_tokens(encoded.word_ids(i), words) for i, words in enumerate(rows[label])]
    return {**encoded, "labels": labels}


def _of_first_tokens(words: list[int | None], labels: list[int]) -> list[int]:
    before = [None, *words[:-1]]
    return [
        NO_LABEL if word is None or word == last else labels[word]
        for word, last in zip(words, before, strict=True)
    ]


def _text_columns(split: Dataset, wanted: str | None) -> list[str]:
    """One column of text, or the two of a sentence pair."""
    names = split.column_names
    first = wanted or next((n for n in (*TEXT_COLUMNS, *WORD_COLUMNS) if n in names), None)
    if first is None or first not in names:
        raise ConfigError(
            f"no column of text: expected {wanted or ' or '.join(TEXT_COLUMNS)}, found {names}; "
            "name it with text_column= (--text-column)."
        )
    second = SECOND_COLUMNS.get(first)
    return [first, second] if second is not None and second in names else [first]


def _check_texts(splits: DatasetDict, columns: list[str]) -> None:
    """Raises ConfigError where a column has no texts, or rows without one."""
    for name in columns:
        feature = splits["train"].features[name]
        kind = getattr(getattr(feature, "feature", feature), "dtype", type(feature).__name__)
        if kind not in ("string", "large_string"):
            raise ConfigError(
                f"column '{name}': expected texts, got {kind}; --text-column names the one with "
                "the texts, text_column= in Python."
            )
        for key, split in splits.items():
            blank = split.with_format("arrow")[name][:].null_count
            if blank:
                raise ConfigError(
                    f"{blank} of {len(split)} rows of the split '{key}' have no text in the column "
                    f"'{name}'; fill them in or leave these rows out."
                )
