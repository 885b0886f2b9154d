"""Class names and numbers: text labels, and labels in another order than the model's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from chop.base.notices import assume
from chop.data.bars import without_bars
from chop.data.cells import TEXTS
from chop.data.label_columns import NUMBERS, label_column
from chop.data.splits import check_splits
from chop.errors import ConfigError, enumerate_names

if TYPE_CHECKING:
    from datasets import DatasetDict

log = logging.getLogger(__name__)
MAX_LISTED = 8
"""Maximum number of classes that a message lists."""
LEAST_SUSPICIOUS = 10
"""Class count below which half as many classes as rows are plausible."""


@without_bars()
def class_names(splits: DatasetDict) -> list[str] | None:
    """Returns class names in the order of their numbers. Text labels are sorted alphabetically.

    Returns None for plain numbers.
    """
    check_splits(splits)
    column = label_column(splits["train"].column_names)
    feature = splits["train"].features.get(column)
    names = getattr(feature, "names", None)
    if names:
        return list(names)
    if getattr(feature, "dtype", None) not in ("string", "large_string"):
        return None
    return sorted({text for split in splits.values() for text in split.unique(column)})


@without_bars()
def check_classes(splits: DatasetDict, name: str) -> None:
    """Checks the classes of a data set. The logger `chop.data` warns of suspicious ones.

    Suspicious are classes without training rows, names that differ only in case or spaces, numbers
    that do not start at 0, and about as many classes as rows.

    Args:
        splits: rows with a class each; lists of classes, such as token labels, are not checked.
        name: name of the data set.
    Raises:
        ConfigError: if a split has no class of the training rows.
    """
    check_splits(splits)
    column = label_column(splits["train"].column_names)
    feature = splits["train"].features.get(column)
    if not str(getattr(feature, "dtype", "")).startswith((*NUMBERS, *TEXTS)):
        return  # lists of classes, or masks
    names = getattr(feature, "names", None)
    classes = {
        key: [names[i] if names and i >= 0 else i for i in split.unique(column)]
        for key, split in splits.items()
    }
    known, rows = set(classes["train"]), len(splits["train"])
    if len(known) >= LEAST_SUSPICIOUS and 2 * len(known) > rows:
        assume(
            f"{len(known)} classes in {rows} training rows; choose another column with "
            "--label-column, or treat the labels as numbers with --task regression",
            log,
        )
    for key, names in classes.items():
        others = [str(value) for value in names if value not in known]
        listed = enumerate_names(others, MAX_LISTED)
        if others and len(others) == len(names):
            trained = enumerate_names(sorted(map(str, known)), MAX_LISTED)
            raise ConfigError(
                f"data set '{name}': the classes of the split '{key}' ({listed}) do not occur in "
                f"the training rows ({trained}); {_way_out(known)}."
            )
        if others:
            assume(f"no training row has the class {listed} of the split '{key}'", log)
    for alike in _alike([value for value in known if isinstance(value, str)]):
        variants = " and ".join(map(repr, sorted(alike)))
        assume(
            f"classes {variants} differ only in case or spaces and count as different classes", log
        )
    numbers = [value for value in known if isinstance(value, int)]
    if len(numbers) > 1 and min(numbers) > 0:
        assume(
            f"labels start at {min(numbers)}; classes are numbered from 0, so class 0 has no rows",
            log,
        )


def _way_out(classes: Collection[object]) -> str:
    """Returns advice for splits without common classes. Many numbers suggest regression."""
    if len(classes) >= LEAST_SUSPICIOUS and all(isinstance(value, int) for value in classes):
        return "--task regression treats labels as numbers"
    return "use the same class names in all splits, or provide more rows"


def _alike(names: list[str]) -> list[list[str]]:
    """Groups names that are equal up to case and outer spaces."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.strip().casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


@without_bars()
def with_numbered_labels(splits: DatasetDict, known: Mapping[str, int] | None) -> DatasetDict:
    """Renumbers classes by the model's numbers of their names.

    Args:
        splits: labels are text or have names; plain numbers stay unchanged.
        known: class numbers by name from the model, or None. Case is ignored. Unknown names are
            numbered alphabetically, with a warning of the logger `chop.data` if the labels are text
            and the model has its own names.
    """
    check_splits(splits)
    from datasets import ClassLabel, DatasetDict

    names = class_names(splits)
    if names is None:
        return splits
    column = label_column(splits["train"].column_names)
    wanted = _order(names, known or {})
    is_text = not isinstance(splits["train"].features[column], ClassLabel)
    if wanted == names and not is_text:
        return splits
    number = (
        numbers_of_names(names, known) if is_text else {name: i for i, name in enumerate(wanted)}
    )
    feature = ClassLabel(names=wanted)
    numbered = {}
    for key, split in splits.items():
        column_values = split.with_format(None)[column]
        numbers = [number[value if is_text else names[value]] for value in column_values]
        numbered[key] = split.remove_columns(column).add_column(column, numbers, feature=feature)
    return DatasetDict(numbered)


@without_bars()
def with_binary_labels(splits: DatasetDict, known: Mapping[str, int] | None) -> DatasetDict:
    """Replaces lists of class names by one 0 or 1 for each class.

    Args:
        splits: labels are lists of texts, or of numbers with names; others stay unchanged.
        known: class numbers by name from the model, see `with_numbered_labels`.
    """
    check_splits(splits)
    from datasets import DatasetDict

    column = label_column(splits["train"].column_names)
    member = getattr(splits["train"].features.get(column), "feature", None)
    is_text = getattr(member, "dtype", None) in ("string", "large_string")
    names = getattr(member, "names", None)
    if not is_text and names is None:
        return splits
    lists = {key: split.with_format(None)[column][:] for key, split in splits.items()}
    if names is None:
        texts = {text for rows in lists.values() for row in rows for text in row}
        number: Mapping[Any, int] = numbers_of_names(sorted(texts), known)
    else:
        number = {i: i for i in range(len(names))}
    wanted = sorted(number, key=number.__getitem__)
    binary = {}
    for key, rows in lists.items():
        values = [[int(each in row) for each in wanted] for row in rows]
        binary[key] = splits[key].remove_columns(column).add_column(column, values)
    return DatasetDict(binary)


def numbers_of_names(names: list[str], known: Mapping[str, int] | None) -> dict[str, int]:
    """Returns the number of each class by name, and reports it as an assumption.

    Args:
        names: class names in alphabetical order.
        known: class numbers by name from the model; see `with_numbered_labels`.
    """
    wanted = _order(names, known or {})
    if known and sorted(wanted) != sorted(known, key=str) and not _are_plain(known):
        own = ", ".join(sorted(known, key=known.__getitem__))
        assume(
            f"the labels {', '.join(wanted)} are numbered in this order; the model's own classes "
            f"are {own}",
            log,
        )
    else:
        assume(f"Classes are numbered in this order: {enumerate_names(wanted, MAX_LISTED)}.")
    return {name: number for number, name in enumerate(wanted)}


def _order(names: list[str], known: Mapping[str, int]) -> list[str]:
    """Returns the names in the model's order if the sets of names are equal."""
    folded = {name.lower(): number for name, number in known.items()}
    if {name.lower() for name in names} != folded.keys() or len(folded) != len(names):
        return names
    return sorted(names, key=lambda name: folded[name.lower()])


def _are_plain(known: Mapping[str, int]) -> bool:
    """Returns true for the default names of transformers: LABEL_0, LABEL_1 ..."""
    return all(name == f"LABEL_{number}" for name, number in known.items())
