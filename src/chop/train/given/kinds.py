"""Check that what was given as rows can hold rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from chop.errors import ConfigError, describe
from chop.train.given.frames import is_frame

TOKENIZE = "tokenize texts, and pass dict(tokenizer([text, ...]))"
"""Advice for texts in place of rows."""


def is_text(value: str) -> bool:
    """Returns whether a string is a text rather than a name: words without the end of a file."""
    return len(value.split()) > 1 and len(Path(value).suffix.split()) != 1


def check_can_hold_rows(given: Any) -> None:
    """Raises ConfigError for a name, a class, several data sets, or a table of another library."""
    if isinstance(given, str) and is_text(given):
        raise ConfigError(f"expected rows, got the text {given!r:.40}; {TOKENIZE}.")
    if isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"expected rows, got the name '{given}'; read a table with pandas (pandas.read_csv), "
            "images with chop.data.load_dataset, texts with chop.data.get_tokenized_dataset(name, "
            "tokenizer, labeled=False), and pass arrays as (inputs, labels)."
        )
    if isinstance(given, type):
        name = given.__name__
        raise ConfigError(
            f"expected rows, got the class {name}; pass an instance, such as {name}()."
        )
    if isinstance(given, tuple | list) and any(map(_is_data_set, given)):
        raise ConfigError(
            f"expected one data set, or arrays (X, y), got {describe(given)} with data sets; pass "
            "one of them, or name the splits: {'train': ..., 'validation': ..., 'test': ...}."
        )
    is_table = hasattr(given, "to_pandas") and not hasattr(given, "with_format")
    if is_table and not is_frame(given):
        library = type(given).__module__.partition(".")[0]
        raise ConfigError(
            f"expected rows, got a {library} {type(given).__name__}; pass a pandas frame, "
            "data.to_pandas()."
        )


def _is_data_set(value: Any) -> bool:
    return isinstance(value, DataLoader | Dataset)
