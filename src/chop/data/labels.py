"""Classes by number: labels that are text, and labels that a model numbers otherwise."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from chop.base.notices import assume
from chop.data.bars import without_bars
from chop.data.load import label_column
from chop.errors import ConfigError, enumerate_names

if TYPE_CHECKING:
    from datasets import DatasetDict

log = logging.getLogger(__name__)
SHOWN = 8
"""Classes that a message names."""
LEAST_SUSPICIOUS = 10
"""With fewer classes, half as many as rows may be meant."""


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


@without_bars()
def check_classes(splits: DatasetDict, name: str) -> None:
    """Looks at the classes of a data set: warnings of the logger `chop.data` say what looks wrong.

    These are classes that the training rows lack, names that differ in case or spaces alone,
    numbers that do not begin at 0, and about as many classes as rows.

    Args:
        splits: rows with a class each; lists of classes, as tokens have them, are not looked at.
        name: of the data set.
    Raises:
        ConfigError: no class of a split is one of the training rows.
    """
    column = label_column(splits["train"].column_names)
    feature = splits["train"].features.get(column)
    if not isinstance(getattr(feature, "dtype", None), str) or feature.dtype.startswith("list"):
        return
    names = getattr(feature, "names", None)
    classes = {
        key: [names[i] if names and i >= 0 else i for i in split.unique(column)]
        for key, split in splits.items()
    }
    known, rows = set(classes["train"]), len(splits["train"])
    if len(known) >= LEAST_SUSPICIOUS and 2 * len(known) > rows:
        assume(
            f"{len(known)} classes in {rows} training rows: --label-column names another column, "
            "and --task regression takes labels as numbers",
            log,
        )
    for key, found in classes.items():
        others = [str(value) for value in found if value not in known]
        listed = enumerate_names(others, SHOWN)
        if others and len(others) == len(found):
            trained = enumerate_names(sorted(map(str, known)), SHOWN)
            raise ConfigError(
                f"data set '{name}': the classes of the split '{key}' ({listed}) are none of the "
                f"training rows ({trained}); {_way_out(known)}."
            )
        if others:
            assume(f"no training row has the class {listed} of the split '{key}'", log)
    for alike in _alike([value for value in known if isinstance(value, str)]):
        shown = " and ".join(map(repr, sorted(alike)))
        assume(f"classes {shown} differ only in case or spaces and count as different classes", log)
    numbers = [value for value in known if isinstance(value, int)]
    if numbers and min(numbers) > 0:
        assume(
            f"labels begin at {min(numbers)}: they are numbered from 0, and no row has class 0", log
        )


def _way_out(classes: Collection[object]) -> str:
    """Advice for splits without a common class: many numbers are amounts rather than classes."""
    if len(classes) >= LEAST_SUSPICIOUS and all(isinstance(value, int) for value in classes):
        return "--task regression takes labels as numbers"
    return "name classes alike in all splits, or give more rows"


def _alike(names: list[str]) -> list[list[str]]:
    """Groups of several names that are one without case and outer spaces."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.strip().casefold(), []).append(name)
    return [group for group in found.values() if len(group) > 1]


@without_bars()
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
    number = (
        numbers_of_names(names, known) if is_text else {name: i for i, name in enumerate(wanted)}
    )
    feature = ClassLabel(names=wanted)
    found = {}
    for key, split in splits.items():
        column_values = split.with_format(None)[column]
        numbers = [number[value if is_text else names[value]] for value in column_values]
        found[key] = split.remove_columns(column).add_column(column, numbers, feature=feature)
    return DatasetDict(found)


def numbers_of_names(names: list[str], known: Mapping[str, int] | None) -> dict[str, int]:
    """The number of each class by its name, which an assumption says.

    Args:
        names: of classes, in the order of the alphabet.
        known: name -> number, of the model; see `with_numbered_labels`.
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
        assume(f"Classes are numbered in this order: {enumerate_names(wanted, SHOWN)}.")
    return {name: number for number, name in enumerate(wanted)}


def _order(names: list[str], known: Mapping[str, int]) -> list[str]:
    """The names in the model's order, where it has the same ones."""
    folded = {name.lower(): number for name, number in known.items()}
    if {name.lower() for name in names} != folded.keys() or len(folded) != len(names):
        return names
    return sorted(names, key=lambda name: folded[name.lower()])


def _are_plain(known: Mapping[str, int]) -> bool:
    """True of the names that transformers makes up: LABEL_0, LABEL_1 ..."""
    return all(name == f"LABEL_{number}" for name, number in known.items())
