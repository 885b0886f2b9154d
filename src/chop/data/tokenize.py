"""Tokenization of texts to token columns for training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.notices import assume
from chop.config import with_checked_arguments
from chop.data.bars import without_bars
from chop.data.conversations import (
    COMPLETION,
    PROMPT,
    conversation_columns,
    join_completions,
    write_conversations,
)
from chop.data.label_columns import label_column
from chop.data.load import UNLABELED_DATASETS, builtin_dataset, load_dataset
from chop.data.tokenizer import MODEL_LIMIT, encode, get_tokenizer
from chop.data.windows import NO_LABEL, is_running_text, windowed
from chop.errors import MOST_NAMES, ConfigError, enumerate_names

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, list[Any]]
TEXT_COLUMNS = ("text", "sentence", "review", "content", "question", "premise", "sentence1")
WORD_COLUMNS = ("tokens", "words")
SECOND_COLUMNS = {"premise": "hypothesis", "sentence1": "sentence2"}


@without_bars()
@with_checked_arguments
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
    """Tokenizes the texts of a data set, truncated and not yet padded.

    Args:
        dataset: input or result of `load_dataset`.
        checkpoint: tokenizer, or the name of its model: `bert-tiny` for the built-in reviews,
            `gpt-tiny` for the stories, a local folder, or a hub name.
        return_tokenizer: also returns the tokenizer.
        max_length: maximum number of tokens per row; default, the model's limit, at most 512.
        limit: maximum number of rows per split, drawn with a fixed seed.
        text_column: text column; default, `text`, `sentence` and the like. If it holds lists of
            words (by default `tokens` or `words`), labels are per word and are assigned to the
            first token of each word; other tokens get -100, which is ignored. Conversations
            (`messages`, or `conversations` as in ShareGPT's files) become texts in the
            tokenizer's chat template, and `prompt` and `completion` are joined.
        labeled: False drops labels, for language modeling, and texts of less than two tokens.
        stride: joins unlabeled texts and cuts them into windows of `max_length` tokens that
            advance by `stride`, see `chop.data.windows`. Files of lines (.txt) are always
            windowed, by default with half of `max_length`.
    Returns: a DatasetDict with `train` and `test`; columns `labels` (int64) and the
        tokenizer's, `input_ids`, `attention_mask` and for BERT `token_type_ids`. `chop.train`
        pads the batches.
    Raises:
        ConfigError: if there is no text column, or a length is below one.
        UnavailableError: if data set or tokenizer can neither be found nor fetched.
    """
    tokenizer = get_tokenizer(checkpoint)
    drawn = limit if stride is None else None
    splits = load_dataset(dataset, limit=drawn, labeled=labeled)
    labeled = labeled and builtin_dataset(dataset) not in UNLABELED_DATASETS
    columns = _text_columns(splits["train"], text_column)
    if text_column is None and columns == [PROMPT] and COMPLETION in splits["train"].column_names:
        splits = join_completions(splits)
    splits = write_conversations(splits, tokenizer, columns[0])
    _check_texts(splits, columns)
    length = min(tokenizer.model_max_length, MODEL_LIMIT) if max_length is None else max_length
    _check_length(length, tokenizer, labeled, is_pair=len(columns) > 1)
    if not labeled and (stride is not None or is_running_text(splits)):
        tokenized = windowed(
            splits, tokenizer, columns[0], length=length, stride=stride, limit=limit
        )
        return (tokenized, tokenizer) if return_tokenizer else tokenized
    if stride is not None:
        raise ConfigError("stride: labeled texts are not cut into windows; remove it.")
    label = label_column(splits["train"].column_names) if labeled else None
    settings: dict[str, Any] = {"truncation": True, "max_length": length}
    if hasattr(splits["train"].features[columns[0]], "feature"):
        words = partial(_tokenize_words, tokenizer=tokenizer, column=columns[0], label=label)
        tokenize = partial(words, **settings)
        unused = splits["train"].column_names
    else:
        tokenize = partial(_tokenize_texts, tokenizer=tokenizer, columns=columns, **settings)
        unused = [name for name in splits["train"].column_names if name != label]
    others = [name for name in unused if name not in (*columns, label)]
    if others:
        listed, read = (enumerate_names([*map(repr, x)], MOST_NAMES) for x in (others, columns))
        assume(f"Columns that are not read: {listed}. Texts are in {read} (--text-column).")
    tokenized = splits.map(tokenize, batched=True, remove_columns=unused)
    if not labeled:
        tokenized = tokenized.filter(_has_two_tokens)
    else:
        _check_has_tokens(tokenized, columns[0])
    if labeled and "labels" not in tokenized["train"].column_names:
        tokenized = tokenized.rename_column(label, "labels")
    return (tokenized, tokenizer) if return_tokenizer else tokenized


def _check_length(
    length: int, tokenizer: PreTrainedTokenizerBase, labeled: bool, is_pair: bool
) -> None:
    """Raises ConfigError if a row has no room for a token of the text, or no token to predict.

    Fast tokenizers do not truncate at all if only their own tokens fit.
    """
    added = tokenizer.num_special_tokens_to_add(pair=is_pair)
    least = max(added + 1, 1 if labeled else 2)
    if length < least:
        why = f", since the tokenizer adds {added}" if added else ""
        why = why if labeled else f"{why}, and the text needs one to predict"
        raise ConfigError(f"max_length: expected at least {least} tokens{why}, got {length}.")


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
    """Tokenizes words and assigns their labels to tokens.

    Raises:
        ConfigError: if a row has different numbers of labels and words.
    """
    for words, labels in zip(rows[column], rows[label] if label else (), strict=False):
        if len(words) != len(labels):
            raise ConfigError(
                f"column '{label}': expected a label per word, got {len(labels)} for the "
                f"{len(words)} words starting with '{' '.join(map(str, words[:3]))}'."
            )
    encoded = encode(tokenizer, rows[column], is_split_into_words=True, **settings)
    if label is None:
        return dict(encoded)
    labels = [
        _first_token_labels(encoded.word_ids(i), words) for i, words in enumerate(rows[label])
    ]
    return {**encoded, "labels": labels}


def _first_token_labels(words: list[int | None], labels: list[int]) -> list[int]:
    before = [None, *words[:-1]]
    return [
        NO_LABEL if word is None or word == last else labels[word]
        for word, last in zip(words, before, strict=True)
    ]


def _text_columns(split: Dataset, wanted: str | None) -> list[str]:
    """Returns the text column, or the two columns of a sentence pair."""
    names = split.column_names
    known = (*TEXT_COLUMNS, *WORD_COLUMNS, *conversation_columns(split))
    prompt = PROMPT if {PROMPT, COMPLETION} <= {*names} else None
    first = wanted or next((n for n in known if n in names), prompt)
    if first is None or first not in names:
        advice = "choose it with --text-column (text_column= in Python)."
        if "input_ids" in names:
            advice = (
                "save the texts, or pass rows of token IDs in Python: chop.compress(model, rows)."
            )
        raise ConfigError(
            f"no text column: expected {wanted or ' or '.join(TEXT_COLUMNS)}, found {names}; "
            f"{advice}"
        )
    second = SECOND_COLUMNS.get(first)
    return [first, second] if second is not None and second in names else [first]


def _check_has_tokens(splits: DatasetDict, column: str) -> None:
    """Raises ConfigError if a text has no tokens, as a blank one."""
    import pyarrow.compute as pc

    for key, split in splits.items():
        lengths = pc.list_value_length(split.with_format("arrow")["input_ids"][:])
        if row := 1 + pc.index(lengths, 0).as_py():
            raise ConfigError(
                f"row {row} of the split '{key}' has no token in the column '{column}': its text "
                "is blank or unknown to the tokenizer; fill it in or remove this row."
            )


def _check_texts(splits: DatasetDict, columns: list[str]) -> None:
    """Raises ConfigError if a column has no texts, or rows without one."""
    for name in columns:
        feature = splits["train"].features[name]
        kind = getattr(getattr(feature, "feature", feature), "dtype", type(feature).__name__)
        if kind not in ("string", "large_string"):
            raise ConfigError(
                f"column '{name}': expected texts, got {kind}; choose the text column "
                "with --text-column (text_column= in Python)."
            )
        for key, split in splits.items():
            blank = split.with_format("arrow")[name][:].null_count
            if blank:
                raise ConfigError(
                    f"{blank} of {len(split)} rows of the split '{key}' have no text in the column "
                    f"'{name}'; fill them in or remove these rows."
                )
