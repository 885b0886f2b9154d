"""Loading of table and image files and folders, with one-sentence errors."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files.library_errors import library_errors
from chop.base.files.reading import POINTER, require_file
from chop.base.hub import cache_folder
from chop.base.notices import assume, at_level
from chop.data.cells import TEXTS, is_quoted_number
from chop.data.confined import (
    check_builder,
    check_card,
    check_pictures,
    check_saved,
    data_files,
    get_home,
    get_reader,
)
from chop.data.masks import MAX_LISTED, read_masks
from chop.data.null_rows import check_rows
from chop.data.table_errors import EMPTY, HEADER, error_chain, explain_table_error
from chop.data.unpacked import check_unpacked
from chop.data.unread import (
    check_split_names,
    describe_formats,
    get_smallest,
    report_joined,
    report_unread,
)
from chop.data.windows import TEXT_BUILDER
from chop.errors import MOST_NAMES, ConfigError, enumerate_names, first_line

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder, DatasetDict, DownloadManager

FILE_KINDS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".txt": TEXT_BUILDER,
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files, except Parquet, which compresses itself."""
ARCHIVES = (".zip", ".tar", ".tgz", *COMPRESSED)
"""Suffixes of files that are unpacked to the cache and read there."""
SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder written by `save_to_disk`, for several splits or for one."""
ARRAYS = (".npz", ".npy", ".mat", ".pt", ".pth", ".pkl", ".pickle", ".h5", ".hdf5", ".safetensors")
"""Suffixes of array files, which do not distinguish inputs from labels."""
DOCUMENTS = (".md", ".rst", ".text", ".log")
"""Suffixes of texts that a folder may have beside its data, such as README.md."""
DOCUMENT_ADVICE = "; copy it to a file that ends in .txt, which is read as running text"
PATHS = ("./", "../", "~")
"""Prefixes of names that cannot be hub data sets."""
ACCEPTED = (
    f"one of {', '.join(FILE_KINDS)}, a folder of them, a folder of images with a subfolder per "
    "class, or one with images/ and masks/"
)
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas", " ": "spaces"}
"""Unsupported column separators by their names."""
TEXT_SAMPLE = 2**20
"""Number of bytes at the start of a text file that are checked for NUL bytes."""
FILE_STARTS = {
    b"\x1f\x8b": "gzip data (.gz)",
    b"PAR1": "a Parquet table (.parquet)",
    b"PK\x03\x04": "a zip archive or a spreadsheet (.zip, .xlsx)",
    b"\x80": "a pickle (.pkl)",
    b"\x89PNG": "an image (.png)",
    b"\xff\xd8\xff": "an image (.jpg)",
    b"\x89HDF": "an HDF5 file (.h5)",
    b"SQLite format 3": "an SQLite database (.db)",
    POINTER: "the pointer of a Git LFS file, which git lfs pull replaces",
}
"""First bytes of files whose name hides their format, with the format."""
PAGE_STARTS = {b"<!DOCTYPE": "a web page (.html)", b"<html": "a web page (.html)"}
JSON_STARTS = {b"[{": "JSON (.json)", b'{"': "JSON (.json)"}
"""First bytes of files that are texts of their own, but no tables."""
OTHER_STARTS = {"csv": PAGE_STARTS | JSON_STARTS, "json": PAGE_STARTS}
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks, which the decoder's own message is about."""
METADATA_KEY = "must be present as dictionary key in metadata files"
"""Part of the message of `datasets` about a metadata file without names of images."""
NO_ROWS = re.compile(r'Instruction "(\w+)" corresponds to no data')
"""The message of `datasets` about a split without rows."""


def read_file(path: Path) -> DatasetDict:
    """Reads one file as the split `train`.

    Raises:
        ConfigError: if the kind of file is unknown, or it cannot be read.
    """
    import datasets

    suffix = _data_suffix(path)
    kind = FILE_KINDS.get(suffix)
    if kind is None:
        advice = DOCUMENT_ADVICE if suffix in DOCUMENTS else _array_advice(path)
        raise ConfigError(f"file '{path}': expected {ACCEPTED}{advice}.")
    if kind == "parquet" and suffix != path.suffix.lower():
        raise ConfigError(
            f"file '{path}': compressed Parquet files are not supported; decompress it."
        )
    settings = {"sep": "\t"} if suffix == ".tsv" else {}
    what = f"file '{path}'"
    if kind != "parquet" and path.suffix.lower() not in COMPRESSED:
        _check_is_text(path, OTHER_STARTS.get(kind, {}))

    def problem(error: BaseException) -> str:
        return f"cannot be read as {kind}: {explain_table_error(error)}"

    reading = partial(library_errors, path, error=ConfigError, problem=problem)
    cache = str(cache_folder() / "datasets")
    with reading():
        builder = datasets.load_dataset_builder(
            kind,
            data_files={"train": escape(str(path.absolute()))},  # `datasets` takes patterns
            cache_dir=cache,
            **settings,
        )
    splits = prepared(builder, reading)
    check_pictures(splits, get_home(path.parent, what))
    if kind == "csv":
        _report_repeated(splits["train"].column_names, what)
    return _checked(splits, what)


def prepared(
    builder: DatasetBuilder, reading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> DatasetDict:
    """Returns the splits of a builder of `datasets`, read now or cached.

    Args:
        builder: reads files.
        reading: creates the context that converts library errors to messages; default, no
            conversion.
    Raises:
        ConfigError: if files exceed the limit on unpacked sizes, or have null rows.
    """
    if not Path(builder.cache_dir).exists():  # else nothing is read again
        files = data_files(builder)
        check_unpacked(files)
        check_rows(files, are_all_json=get_reader(builder) == "json")
    manager = _get_manager(builder)
    # The logger of `datasets` prints what the error says in one sentence.
    with reading(), at_level(logging.CRITICAL, "datasets"):
        builder.download_and_prepare(dl_manager=manager)
        splits: DatasetDict = builder.as_dataset()
    return splits


def _get_manager(builder: DatasetBuilder) -> DownloadManager | None:
    """Returns a download manager that checks rows of JSON files from the hub, or None."""
    import datasets

    if get_reader(builder) != "json" or all(map(os.path.exists, data_files(builder))):
        return None

    class Checking(datasets.DownloadManager):  # type: ignore[misc]
        def download(self, url_or_urls: Any) -> Any:
            downloaded = super().download(url_or_urls)
            check_rows(_leaves(downloaded), are_all_json=True)
            return downloaded

    settings = datasets.DownloadConfig(  # as `datasets` itself makes them
        use_etag=False, token=builder.token, storage_options=builder.storage_options
    )
    return Checking(builder.dataset_name, builder.config.data_dir, settings, builder.base_path)


def _leaves(nested: Any) -> Iterator[str]:
    """Yields the paths in nested lists and dicts."""
    if isinstance(nested, str | os.PathLike):
        yield str(nested)
    else:
        for each in nested.values() if isinstance(nested, dict) else nested:
            yield from _leaves(each)


def check_is_there(name: str) -> None:
    """Raises ConfigError if a name looks like a file that is missing, or is a pipe.

    Hub names have at most two parts. Names with the suffix of a data file are considered files.
    """
    path = Path(name)
    if path.exists() and not path.is_dir():
        with library_errors(path, error=ConfigError):
            require_file(path, "table")
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"'{name}' is a symbolic link whose target does not exist.")
    is_path = len(path.parts) not in (1, 2) or path.is_absolute() or name.startswith(PATHS)
    if is_path or _data_suffix(path) in (*FILE_KINDS, *ARRAYS, *COMPRESSED):
        raise ConfigError(f"'{name}' does not exist: expected {ACCEPTED}{_array_advice(path)}.")


def _data_suffix(path: Path) -> str:
    """Returns the suffix of a file name that identifies its content, in lower case.

    >>> _data_suffix(Path("data/train.CSV.gz"))
    '.csv'
    """
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() or suffix if suffix in COMPRESSED else suffix


def _array_advice(path: Path) -> str:
    """Returns advice on using an array file, or "" for other files."""
    if _data_suffix(path) not in ARRAYS:
        return ""
    return (
        "; pass arrays in Python, chop.compress(model, (X, y)), or save them as a table with a "
        "column per input and a column 'labels'"
    )


def read_folder(folder: Path) -> DatasetDict:
    """Reads the splits of a folder of files, images in class folders, or `save_to_disk`.

    Raises:
        ConfigError: if there is no data, or a file is unreadable, too large when unpacked, or
            outside the folder.
    """
    what, is_saved = f"folder '{folder}'", any((folder / name).is_file() for name in SAVED)
    _check_regular(folder)
    return _read_saved(folder, what) if is_saved else _checked(_read_files(folder, what), what)


def _reading(folder: Path) -> AbstractContextManager[None]:
    """Converts errors of pandas, pyarrow, fsspec and PyYAML about a folder to messages."""

    def problem(error: BaseException) -> str:
        if EMPTY.search(" ".join(map(str, error_chain(error)))):
            return f"has no rows in '{get_smallest(folder, FILE_KINDS)}': remove it, or add rows"
        if not isinstance(error, FileNotFoundError | ValueError):
            return f"cannot be read: {explain_table_error(error)}"
        if (empty := NO_ROWS.search(str(error))) is not None:
            if any(folder.rglob("metadata.*")):
                return (
                    f"has no rows in the split '{empty[1]}', since the metadata file names no "
                    "image of it: write one for each split, or remove it"
                )
            return f"has no rows in the split '{empty[1]}': remove its file, or add rows"
        if METADATA_KEY in str(error):
            return (
                "has a metadata file without a column 'file_name', which names the image of each "
                "row; rename its column of file names to 'file_name'"
            )
        arrays = next((path for path in folder.iterdir() if _array_advice(path)), folder)
        if arrays is folder and (formats := describe_formats(folder, FILE_KINDS)):
            return formats
        return (
            "contains no data set: expected parquet, csv or json files, images in a folder per "
            "class, images/ and masks/ with equal names, or files of save_to_disk "
            f"({first_line(error)}){_array_advice(arrays)}"
        )

    return library_errors(folder, error=ConfigError, problem=problem)


def _read_files(folder: Path, what: str) -> DatasetDict:
    import datasets

    home, cache = get_home(folder, what), cache_folder() / "datasets"
    masks = read_masks(folder, home)
    if masks is not None:
        return masks
    check_card(folder, home)
    # In the hub's own cache a folder called `imdb` would pass for the hub's `imdb` later.
    place, reading = _glob_free_path(folder), partial(_reading, folder)
    with reading():
        builder = datasets.load_dataset_builder(place, cache_dir=str(cache))
    check_builder(builder, home)
    check_split_names(folder, builder.config.data_files)
    splits = prepared(builder, reading)
    if any(Path(file).suffix.lower() in ARCHIVES for file in data_files(builder)):
        home = get_home(folder, what, cache / "downloads")  # where archives are unpacked
    check_pictures(splits, home)
    report_unread(folder, data_files(builder))
    if get_reader(builder) in FILE_KINDS.values():
        report_joined(folder, builder.config.data_files)
    if get_reader(builder) == "csv":
        _report_repeated(next(iter(splits.values())).column_names, what)
    return splits


def _read_saved(folder: Path, what: str) -> DatasetDict:
    """Reads the splits written by `save_to_disk`."""
    import datasets

    home = get_home(folder, what)
    check_saved(folder, home)
    with _reading(folder):
        splits = datasets.load_from_disk(folder)
    if not (folder / SAVED[0]).is_file():
        splits = datasets.DatasetDict(train=splits)
    check_pictures(splits, home)
    return splits


def _check_regular(folder: Path) -> None:
    """Raises ConfigError if a folder has a pipe, a socket or a device, which block pyarrow."""
    with library_errors(folder, error=ConfigError):  # of folders without permission
        for path in folder.rglob("*"):
            if not path.is_file() and not path.is_dir() and path.exists():
                with library_errors(path, error=ConfigError):
                    require_file(path, "table")


def _glob_free_path(folder: Path) -> str:
    """Returns the absolute path of a folder, which `datasets` expands as a glob pattern.

    Raises:
        ConfigError: if the path has pattern characters, which may match other folders.
    """
    path = str(folder.resolve())
    if path != escape(path):
        raise ConfigError(
            f"folder '{folder}': its path has *, ? or [, which also match other folders; rename "
            "it, or pass a file inside it."
        )
    return path


def _check_is_text(path: Path, others: Mapping[bytes, str]) -> None:
    """Raises ConfigError if a file has another format than its name says, or NUL bytes."""
    with library_errors(path, error=ConfigError), path.open("rb") as file:
        start = file.read(TEXT_SAMPLE)
    for mark, kind in {**FILE_STARTS, **others}.items():
        if start.startswith(mark):
            raise ConfigError(
                f"file '{path}' holds {kind}, and its name ends in {path.suffix}: expected "
                f"{ACCEPTED}."
            )
    if b"\0" in start and not start.startswith(UTF_16):
        line = start[: start.index(b"\0")].count(b"\n") + 1
        raise ConfigError(
            f"file '{path}': line {line} has NUL bytes, so that it is not UTF-8 text; save it as "
            "UTF-8 (in a spreadsheet, 'CSV UTF-8')."
        )


def _checked(splits: DatasetDict, what: str) -> DatasetDict:
    """Raises ConfigError if columns of a table were read as one, or a row repeats their names."""
    _check_has_records(splits, what)
    for split in splits.values():
        _check_header_once(split, what)
        first, *others = split.column_names or [""]
        # Decimal commas make pandas take what is before them for an index.
        name = first if all(other.startswith("__index_level_") for other in others) else ""
        separator = _find_separator(name, split)
        if separator is None and name and others:
            raise ConfigError(f"{what}: the first line, {name!r}, has fewer columns. {HEADER}")
        if separator is not None:
            raise ConfigError(
                f"{what}: its only column is {name!r}, since its columns are separated by "
                f"{SEPARATORS[separator]}; save it as .csv with commas, or as .tsv with tabs."
            )
    return splits


def _find_separator(name: str, split: Dataset) -> str | None:
    """Returns the separator of columns that were read as one; spaces separate only numbers."""
    separator = next((mark for mark in SEPARATORS if mark in name.strip()), None)
    if separator == " ":
        parts = str(split[0][name]).split() if len(split) else []
        is_joined = len(parts) == len(name.split()) and all(map(is_quoted_number, parts))
        return separator if is_joined else None
    return separator


def _check_has_records(splits: DatasetDict, what: str) -> None:
    """Raises ConfigError for JSON whose only record holds all rows."""
    split = next(iter(splits.values()))
    lists = [
        name
        for name, feature in split.features.items()
        if hasattr(feature, "feature") or isinstance(feature, dict)
    ]
    is_single = all(len(each) == 1 for each in splits.values())
    if is_single and lists and len(split[0][lists[0]] or ()) > 1:
        raise ConfigError(
            f"{what} is one record with lists or records ({enumerate_names(lists, MAX_LISTED)}); "
            "expected a list of records, as pandas writes with orient='records', or a record per "
            "line."
        )


def _report_repeated(names: Sequence[str], what: str) -> None:
    """Reports column names that readers have numbered because they are given twice."""
    repeated = [name for name in names if re.sub(r"\.\d+$", "", name) in {*names} - {name}]
    if repeated:
        listed = enumerate_names(list(map(repr, repeated)), MOST_NAMES)
        assume(f"{what} seems to have a column name twice: the later columns are read as {listed}.")


def _check_header_once(split: Dataset, what: str) -> None:
    """Raises ConfigError if a row has the column names, as in joined files with headers."""
    import pyarrow.compute as pc

    names = split.column_names
    if any(getattr(split.features[name], "dtype", None) not in TEXTS for name in names):
        return
    repeats = None
    for name in names:
        same = pc.equal(split.with_format("arrow")[name][:], name)
        repeats = same if repeats is None else pc.and_(repeats, same)
    row = pc.index(repeats, True).as_py() if repeats is not None else -1
    if row >= 0:
        raise ConfigError(
            f"{what}: row {row + 1} repeats the column names ({enumerate_names(names, MOST_NAMES)}"
            f"), as in files that were joined with their headers; remove this line (line "
            f"{row + 2}, if no text has line breaks)."
        )
