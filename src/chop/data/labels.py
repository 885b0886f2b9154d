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
MAX_LISTED = 10
"""Maximum number of classes that a message lists."""
NUMBERED = "Classes are numbered in this order:"
LEAST_SUSPICIOUS = 10
"""Class count below which half as many classes as rows are plausible."""


@without_bars()
def class_names(splits: DatasetDict) -> list[str] | None:
    """Returns class names in the order of their numbers, texts as `sorted_names`.

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
    return sorted_names({text for split in splits.values() for text in split.unique(column)})


def sorted_names(names: Collection[str]) -> list[str]:
    """Returns names of classes in alphabetical order, or by number if all are whole numbers.

    >>> sorted_names(["10", "2", "1"]), sorted_names(["10", "2", "b"])
    (['1', '2', '10'], ['10', '2', 'b'])
    """
    # An empty cell of a column of texts is None.
    if all(isinstance(name, str) and name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


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
        folded = {str(value).strip().casefold(): value for value in known}
        for value in others:
            if (alike := folded.get(value.strip().casefold())) is not None:
                raise ConfigError(
                    f"data set '{name}': the class {value!r} of the split '{key}' differs from "
                    f"{alike!r} of the training rows only in case or spaces; rename one of them."
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
def with_numbered_labels(
    splits: DatasetDict, known: Mapping[str, int] | None, *, is_closed: bool = False
) -> DatasetDict:
    """Renumbers classes by the model's numbers of their names.

    Args:
        splits: labels are text or have names; plain numbers stay unchanged.
        known: class numbers by name from the model, or None; see `order_classes`. If a name is
            unknown, all are numbered as sorted, with a warning of the logger `chop.data` if
            the labels are text and the model has its own names.
        is_closed: refuse rows of unknown classes.
    Raises:
        ConfigError: if a row has an unknown class and `is_closed` is true.
    """
    check_splits(splits)
    from datasets import ClassLabel, DatasetDict

    names = class_names(splits)
    column = label_column(splits["train"].column_names)
    if names is None:
        labels = {x for split in splits.values() for x in split.unique(column)} if is_closed else {}
        largest = max((x for x in labels if isinstance(x, int)), default=-1)
        if known is not None and largest >= len(known):
            raise ConfigError(
                f"labels: {largest} is beyond the {len(known)} class names; name each class, from "
                f"0 to {largest}."
            )
        return splits
    is_text = not isinstance(splits["train"].features[column], ClassLabel)
    if is_closed and not is_text:
        numbers_in_rows = {i for split in splits.values() for i in split.unique(column)}
        occurring = [name for i, name in enumerate(names) if i in numbers_in_rows]
    else:
        occurring = names
    wanted = order_classes(occurring, known or {}, is_closed=is_closed)
    if not is_text:
        assume(f"{NUMBERED} {enumerate_names(wanted, MAX_LISTED)}.")
    if wanted == names and not is_text:
        return splits
    number = (
        numbers_of_names(names, known, is_closed=is_closed)
        if is_text
        else {name: i for i, name in enumerate(wanted)}
    )
    feature = ClassLabel(names=wanted)
    numbered = {}
    for key, split in splits.items():
        column_values = split.with_format(None)[column]
        numbers = [number[value if is_text else names[value]] for value in column_values]
        numbered[key] = split.remove_columns(column).add_column(column, numbers, feature=feature)
    return DatasetDict(numbered)


def names_in_lists(splits: DatasetDict) -> list[str] | None:
    """Returns the names in lists of classes, as `class_names` does for one class per row."""
    column = label_column(splits["train"].column_names)
    member = getattr(splits["train"].features.get(column), "feature", None)
    if (names := getattr(member, "names", None)) is not None:
        return list(names)
    if getattr(member, "dtype", None) not in ("string", "large_string"):
        return None
    rows = (row for split in splits.values() for row in split.with_format(None)[column])
    return sorted_names({text for row in rows for text in row})


@without_bars()
def with_binary_labels(
    splits: DatasetDict, known: Mapping[str, int] | None, *, is_closed: bool = False
) -> DatasetDict:
    """Replaces lists of class names by one 0 or 1 for each class.

    Args:
        splits: labels are lists of texts, or of numbers with names; others stay unchanged.
        known: class numbers by name from the model, see `with_numbered_labels`.
        is_closed: refuse rows of unknown classes.
    """
    check_splits(splits)
    from datasets import DatasetDict

    names = names_in_lists(splits)
    if names is None:
        return splits
    column = label_column(splits["train"].column_names)
    lists = {key: split.with_format(None)[column][:] for key, split in splits.items()}
    wanted: list[Any] = [*numbers_of_names(names, known, is_closed=is_closed)]
    if hasattr(splits["train"].features[column].feature, "names"):
        wanted = [names.index(name) if name in names else None for name in wanted]
    binary = {}
    for key, rows in lists.items():
        values = [[int(each in row) for each in wanted] for row in rows]
        binary[key] = splits[key].remove_columns(column).add_column(column, values)
    return DatasetDict(binary)


def numbers_of_names(
    names: list[str], known: Mapping[str, int] | None, *, is_closed: bool = False
) -> dict[str, int]:
    """Returns the number of each class by name, in their order, and reports it as an assumption.

    Args:
        names: class names, sorted.
        known: class numbers by name from the model; see `with_numbered_labels`.
        is_closed: refuse unknown names.
    """
    wanted = order_classes(names, known or {}, is_closed=is_closed)
    if known and sorted(wanted) != sorted(known, key=str) and not _are_plain(known):
        own = ", ".join(sorted(known, key=known.__getitem__))
        assume(
            f"the labels {', '.join(wanted)} are numbered in this order; the model's own classes "
            f"are {own}",
            log,
        )
    else:
        assume(f"{NUMBERED} {enumerate_names(wanted, MAX_LISTED)}.")
    return {name: number for number, name in enumerate(wanted)}


def order_classes(
    names: list[str], known: Mapping[str, int], *, is_closed: bool = False
) -> list[str]:
    """Returns all classes of the model by number if it knows all names, else the names.

    Args:
        names: class names of the rows.
        known: class numbers by name from the model. Case is ignored where it distinguishes no
            classes; the result has the spelling of the rows.
        is_closed: refuse unknown names.
    Raises:
        ConfigError: if a name is unknown and `is_closed` is true.
    """
    own = sorted(known, key=known.__getitem__)
    for fold in (str, str.lower):
        spelled, classes = {fold(name): name for name in names}, [*map(fold, own)]
        is_clear = len(spelled) == len(names) and len({*classes}) == len(own)
        if is_clear and spelled.keys() <= {*classes}:
            return [spelled.get(fold(name), name) for name in own]
    if is_closed:
        folded = {name.lower() for name in own}
        others = [name for name in names if name.lower() not in folded] or names
        raise ConfigError(
            f"labels: {enumerate_names(list(map(repr, others)), MAX_LISTED)} is not a class of the "
            f"model: its classes are {enumerate_names(own, MAX_LISTED)}; rename or remove these "
            "rows, or name the classes in the order of its outputs with --class-names."
        )
    return names


def _are_plain(known: Mapping[str, int]) -> bool:
    """Returns true for the default names of transformers: LABEL_0, LABEL_1 ..."""
    return all(name == f"LABEL_{number}" for name, number in known.items())
