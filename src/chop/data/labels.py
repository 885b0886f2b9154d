"""Classes by number: labels that are text, and labels that a model numbers otherwise."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chop.data.load import label_column

if TYPE_CHECKING:
    from datasets import DatasetDict

log = logging.getLogger(__name__)


def class_names(splits: DatasetDict) -> list[str] | None:
    """The names of the classes by number; those of labels that are text in order of the alphabet.

    None where labels are plain numbers.
    """
    column = label_column(splits["train"].column_names)
    feature = splits["train"].features.get(column)
    names = getattr(feature, "names", None)
    if names:
        return list(names)
    if getattr(feature, "dtype", None) not in ("string", "large_string"):
        return None
    return sorted({text for split in splits.values() for text in split.unique(column)})


def with_numbered_labels(splits: DatasetDict, known: Mapping[str, int] | None) -> DatasetDict:
    """The same with classes numbered as the model numbers those names.

    Args:
        splits: labels are text, or have names; plain numbers stay as they are.
        known: name -> number, of the model; None where it says nothing. Case does not matter.
            Where the names are others, they are numbered by the alphabet, with one warning of the
            logger `chop.data` if the labels are text and the model has names of its own.
    """
    from datasets import ClassLabel, DatasetDict

    names = class_names(splits)
    if names is None:
        return splits
    column = label_column(splits["train"].column_names)
    wanted = _order(names, known or {})
    is_text = not isinstance(splits["train"].features[column], ClassLabel)
    if wanted == names and not is_text:
        return splits
    if is_text and known and sorted(wanted) != sorted(known, key=str) and not _are_plain(known):
        log.warning(
            "the labels %s are numbered in this order; the model's own classes are %s",
            ", ".join(wanted),
            ", ".join(sorted(known, key=known.__getitem__)),
        )
    number = {name: wanted.index(name) for name in wanted}
    feature = ClassLabel(names=wanted)
    found = {}
    for key, split in splits.items():
        column_values = split.with_format(None)[column]
        numbers = [number[value if is_text else names[value]] for value in column_values]
        found[key] = split.remove_columns(column).add_column(column, numbers, feature=feature)
    return DatasetDict(found)


def _order(names: list[str], known: Mapping[str, int]) -> list[str]:
    """The names in the model's order, where it has the same ones."""
    folded = {name.lower(): number for name, number in known.items()}
    if {name.lower() for name in names} != folded.keys() or len(folded) != len(names):
        return names
    return sorted(names, key=lambda name: folded[name.lower()])


def _are_plain(known: Mapping[str, int]) -> bool:
    """True of the names that transformers makes up: LABEL_0, LABEL_1 ..."""
    return all(name == f"LABEL_{number}" for name, number in known.items())
