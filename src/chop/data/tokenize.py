"""From texts to token columns, ready for a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chop.data.load import label_column, load_dataset
from chop.data.tokenizer import MODEL_LIMIT, get_tokenizer
from chop.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

TEXT_COLUMNS = ("text", "sentence", "review", "content", "question", "premise", "sentence1")
SECOND_COLUMNS = {"premise": "hypothesis", "sentence1": "sentence2"}


def get_tokenized_dataset(
    dataset: str | Path | DatasetDict,
    checkpoint: str | Path | PreTrainedTokenizerBase,
    return_tokenizer: bool = False,
    *,
    max_length: int | None = None,
    limit: int | None = None,
    text_column: str | None = None,
) -> DatasetDict | tuple[DatasetDict, PreTrainedTokenizerBase]:
    """The labelled texts of a data set as token columns, cut to length and not yet padded.

    Args:
        dataset: what `load_dataset` takes, or what it gives.
        checkpoint: whose tokenizer: `bert-tiny` for the built-in reviews, a local folder, or a
            hub name; or a tokenizer.
        return_tokenizer: also return the tokenizer.
        max_length: tokens of a row at most; default, the model's limit and at most 512.
        limit: keep that many rows of each split, drawn by a fixed seed.
        text_column: the column with the text; default, `text`, `sentence` and the like.
    Returns: a DatasetDict with `train` and `test`; columns `labels` (int64) and the
        tokenizer's, `input_ids`, `attention_mask` and for BERT `token_type_ids`. Batches are
        padded when they are drawn, which `chop.train` does.
    Raises:
        ConfigError: no column of text, or a length below one.
        UnavailableError: data set or tokenizer can neither be found nor fetched.
    """
    tokenizer = get_tokenizer(checkpoint)
    splits = load_dataset(dataset, limit=limit)
    columns = _text_columns(splits["train"], text_column)
    length = min(tokenizer.model_max_length, MODEL_LIMIT) if max_length is None else max_length
    if length < 1:
        raise ConfigError(f"max_length: expected at least one token, got {length}.")

    def tokenize(rows: dict[str, list]) -> dict[str, list]:
        return dict(
            tokenizer(*(rows[name] for name in columns), truncation=True, max_length=length)
        )

    label = label_column(splits["train"].column_names)
    unused = [name for name in splits["train"].column_names if name != label]
    tokenized = splits.map(tokenize, batched=True, remove_columns=unused)
    if label != "labels":
        tokenized = tokenized.rename_column(label, "labels")
    return (tokenized, tokenizer) if return_tokenizer else tokenized


def _text_columns(split: Dataset, wanted: str | None) -> list[str]:
    """One column of text, or the two of a sentence pair."""
    names = split.column_names
    first = wanted or next((name for name in TEXT_COLUMNS if name in names), None)
    if first not in names:
        raise ConfigError(
            f"no column of text: expected {wanted or ' or '.join(TEXT_COLUMNS)}, found {names}; "
            "name it with text_column=."
        )
    second = SECOND_COLUMNS.get(first)
    return [first, second] if second in names else [first]
