"""Files of a data folder: those that are not read or joined, and reasons for errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from chop.base.notices import assume
from chop.data.masks import SPLITS, SUFFIXES
from chop.errors import MOST_NAMES, ConfigError, enumerate_names

SPLIT_NAMES = {name for names in SPLITS.values() for name in names}
"""Names of splits, in lower case."""
NOT_DATA = ("readme", "license", "licence", "citation", "thumbs.db", "desktop.ini", "dataset_info")
"""Beginnings of the names of files that hold no rows, in lower case."""
TRAINING_FILE = re.compile(r"train|\d-of-\d")
"""Part of a path that names training rows, or a part of a table."""


def describe_formats(folder: Path, kinds: Mapping[str, str]) -> str:
    """Explains by the formats of its files why a folder holds no data set, else "".

    Args:
        folder: folder without a data set.
        kinds: reader of each suffix of table files.
    """
    files = list(_files(folder))
    suffixes = Counter(path.suffix.lower() for path in files)
    tables = {  # .tsv has the reader of .csv, with another separator
        (kinds[end], end == ".tsv"): path for path in files if (end := path.suffix.lower()) in kinds
    }
    if len(tables) > 1:
        listed = enumerate_names(sorted(f"'{path.name}'" for path in tables.values()), MOST_NAMES)
        return f"has files of several formats ({listed}): save all of them in one format"
    capital = next((path for path in tables.values() if not path.suffix.islower()), None)
    if capital is not None:
        return (
            f"has '{capital.name}', whose suffix is in capital letters: rename it to "
            f"'{capital.with_suffix(capital.suffix.lower()).name}'"
        )
    if tables or not suffixes or suffixes.keys() & {*SUFFIXES}:
        return ""
    suffix, count = suffixes.most_common(1)[0]
    which = f"format {suffix}" if suffix else "no suffix"
    return (
        f"has {count} files with {which}, which chop does not read: convert them to .csv, .jsonl "
        "or .parquet, images to .png or .jpg"
    )


def report_unread(folder: Path, read: Collection[str]) -> None:
    """Reports files of a folder that its reader has left out.

    Args:
        folder: folder of the data set.
        read: paths of the files that are read.
    """
    used = {Path(path).resolve() for path in read}
    others = sorted(path for path in _files(folder) if path.resolve() not in used)
    if others:
        listed = enumerate_names([f"'{each.relative_to(folder)}'" for each in others], MOST_NAMES)
        assume(
            f"Not read from '{folder}': {listed}. Table files are named by their split, such as "
            "train.csv, validation.csv and test.csv; images are .png, .jpg and the like."
        )


def report_joined(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Reports table files without the name of a split, which are read as training rows.

    Parts of one table, such as 0-of-3.parquet, are not reported.

    Args:
        folder: folder of the data set.
        files: paths of the files by split.
    """
    home = folder.resolve()
    paths = sorted(str(Path(path).relative_to(home)) for path in files.get("train", ()))
    if len(files) == 1 and len(paths) > 1 and not any(map(TRAINING_FILE.search, paths)):
        listed = enumerate_names(list(map(repr, paths)), MOST_NAMES)
        assume(
            f"{len(paths)} files are read as one table of training rows: {listed}. A file whose "
            "name begins with a split, such as test.csv, is a split of its own."
        )


def check_split_names(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Checks that no split is named in capital letters, which would make it training rows.

    Args:
        folder: folder of the data set.
        files: paths of the files by split, as its reader or the card of the folder says.
    Raises:
        ConfigError: if a file or folder is named `Test` and the like, beside another split.
    """
    if len(files) > 1:  # the card may name them
        return
    names = sorted({path.relative_to(folder).parts[0] for path in _files(folder)})
    splits = [name for name in names if name.partition(".")[0].lower() in SPLIT_NAMES]
    wrong = next((name for name in splits if not name.partition(".")[0].islower()), None)
    if wrong is not None and len(splits) > 1:
        raise ConfigError(
            f"'{folder}': '{wrong}' is not read as a split, since names of splits are in lower "
            f"case; rename it to '{wrong.lower()}'."
        )


def get_smallest(folder: Path, kinds: Mapping[str, str]) -> str:
    """Returns the name of the smallest table file of a folder.

    Args:
        folder: folder with tables.
        kinds: see `describe_formats`.
    """
    tables = [path for path in _files(folder) if path.suffix.lower() in kinds]
    smallest = min(tables, key=lambda path: path.stat().st_size, default=folder)
    return smallest.name


def _files(folder: Path) -> Iterator[Path]:
    """Yields the files that may hold rows, and empty folders; without hidden ones."""
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).parts
        is_hidden = any(part.startswith((".", "__")) for part in inside)
        is_leaf = path.is_file() or path.is_symlink() or not any(path.iterdir())
        if not is_hidden and is_leaf and not path.name.lower().startswith(NOT_DATA):
            yield path
