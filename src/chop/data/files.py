"""Files and folders of tables or pictures, as data sets; what cannot be read is one sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files.library_errors import get_reason, library_errors
from chop.base.files.reading import require_file
from chop.base.hub import cache_folder
from chop.data.confined import (
    check_builder,
    check_card,
    check_pictures,
    check_saved,
    data_files,
    get_home,
    get_reader,
)
from chop.data.masks import read_masks
from chop.data.null_rows import check_rows
from chop.data.unpacked import check_unpacked
from chop.data.windows import TEXT_BUILDER
from chop.errors import ConfigError, first_line

if TYPE_CHECKING:
    from datasets import DatasetBuilder, DatasetDict, DownloadManager

FILE_KINDS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".txt": TEXT_BUILDER,
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Further ends of such files but parquet, which are read as what they hold."""
ARCHIVES = (".zip", ".tar", ".tgz", *COMPRESSED)
"""Ends of files whose contents are unpacked to the cache, and read there."""
SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `save_to_disk` wrote: of several splits, or of one."""
ARRAYS = (".npz", ".npy", ".mat", ".pt", ".pth", ".pkl", ".pickle", ".h5", ".hdf5", ".safetensors")
"""Ends of files of arrays, which have no columns that tell inputs from labels."""
PATHS = ("./", "../", "~")
"""Starts of names that no data set of the hub has."""
ACCEPTED = (
    f"one of {', '.join(FILE_KINDS)}, a folder of them, a folder of pictures with one for each "
    "class, or one with images/ and masks/"
)
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
"""What columns of a table may be separated by, and its name."""
WRONG_COLUMNS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
"""What pandas says of a line."""


def read_file(path: Path) -> DatasetDict:
    """The rows of one file as the split `train`.

    Raises:
        ConfigError: it is of no known kind, or cannot be read.
    """
    import datasets

    suffix = _data_suffix(path)
    kind = FILE_KINDS.get(suffix)
    if kind is None:
        raise ConfigError(f"file '{path}': expected {ACCEPTED}{_way_of_arrays(path)}.")
    if kind == "parquet" and suffix != path.suffix.lower():
        raise ConfigError(f"file '{path}': parquet compresses its own columns; decompress it.")
    settings = {"sep": "\t"} if suffix == ".tsv" else {}
    what = f"file '{path}'"

    def problem(error: BaseException) -> str:
        return f"cannot be read as {kind}: {_reason(error)}"

    reading = partial(library_errors, path, error=ConfigError, problem=problem)
    cache = str(cache_folder() / "datasets")
    with reading():
        builder = datasets.load_dataset_builder(
            kind,
            data_files={"train": escape(str(path.absolute()))},  # `datasets` takes patterns
            cache_dir=cache,
            **settings,
        )
    found = prepared(builder, reading)
    check_pictures(found, get_home(path.parent, what))
    return _checked(found, what)


def prepared(
    builder: DatasetBuilder, reading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> DatasetDict:
    """The splits that a builder of `datasets` reads, or has read before.

    Args:
        builder: reads files.
        reading: makes the context that turns errors of libraries into sentences. Default: they
            stay as they are.
    Raises:
        ConfigError: files unpack to more than they may, or have rows that are null.
    """
    if not Path(builder.cache_dir).exists():  # else nothing is read again
        files = data_files(builder)
        check_unpacked(files)
        check_rows(files, are_all_json=get_reader(builder) == "json")
    manager = _get_manager(builder)
    with reading():
        builder.download_and_prepare(dl_manager=manager)
        splits: DatasetDict = builder.as_dataset()
    return splits


def _get_manager(builder: DatasetBuilder) -> DownloadManager | None:
    """Returns a download manager that checks rows of JSON files of the hub, if there are any."""
    import datasets

    if get_reader(builder) != "json" or all(map(os.path.exists, data_files(builder))):
        return None

    class Checking(datasets.DownloadManager):  # type: ignore[misc]
        def download(self, url_or_urls: Any) -> Any:
            found = super().download(url_or_urls)
            check_rows(_leaves(found), are_all_json=True)
            return found

    settings = datasets.DownloadConfig(  # as `datasets` itself makes them
        use_etag=False, token=builder.token, storage_options=builder.storage_options
    )
    return Checking(builder.dataset_name, builder.config.data_dir, settings, builder.base_path)


def _leaves(nested: Any) -> Iterator[str]:
    """Paths in lists and dicts of them."""
    if isinstance(nested, str | os.PathLike):
        yield str(nested)
    else:
        for each in nested.values() if isinstance(nested, dict) else nested:
            yield from _leaves(each)


def check_is_there(name: str) -> None:
    """Raises ConfigError where a name that is no file is meant as one, or is that of a pipe.

    Names of the hub have two parts at most. One that ends as a file of data is taken for a file.
    """
    path = Path(name)
    if path.exists() and not path.is_dir():
        with library_errors(path, error=ConfigError):
            require_file(path, "table")
    is_path = len(path.parts) not in (1, 2) or path.is_absolute() or name.startswith(PATHS)
    if is_path or _data_suffix(path) in (*FILE_KINDS, *ARRAYS, *COMPRESSED):
        raise ConfigError(f"'{name}' is not there: expected {ACCEPTED}{_way_of_arrays(path)}.")


def _data_suffix(path: Path) -> str:
    """The end of a file's name that tells what it holds, in small letters.

    >>> _data_suffix(Path("data/train.CSV.gz"))
    '.csv'
    """
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() or suffix if suffix in COMPRESSED else suffix


def _way_of_arrays(path: Path) -> str:
    """What is done with arrays, where these are some; else ""."""
    if _data_suffix(path) not in ARRAYS:
        return ""
    return (
        "; arrays are given in Python, chop.compress(model, (X, y)), or are saved as such a table, "
        "a column for each input and one called 'labels'"
    )


def read_folder(folder: Path) -> DatasetDict:
    """The splits of a folder: files, pictures in a folder for each class, or `save_to_disk`'s.

    Raises:
        ConfigError: there are none, a file cannot be read, unpacks to too much or is elsewhere.
    """
    what, is_saved = f"folder '{folder}'", any((folder / name).is_file() for name in SAVED)
    _check_regular(folder)
    return _read_saved(folder, what) if is_saved else _checked(_read_files(folder, what), what)


def _reading(folder: Path) -> AbstractContextManager[None]:
    """Context in which pandas, pyarrow, fsspec and PyYAML read files of a folder."""

    def problem(error: BaseException) -> str:
        if not isinstance(error, FileNotFoundError | ValueError):
            return f"cannot be read: {_reason(error)}"
        arrays = next((path for path in folder.iterdir() if _way_of_arrays(path)), folder)
        return (
            "holds no data set: expected parquet, csv or json files, pictures in a folder for each "
            "class, images/ and masks/ of equal names, or what save_to_disk writes "
            f"({first_line(error)}){_way_of_arrays(arrays)}"
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
    place, reading = _that_is_no_pattern(folder), partial(_reading, folder)
    with reading():
        builder = datasets.load_dataset_builder(place, cache_dir=str(cache))
    check_builder(builder, home)
    found = prepared(builder, reading)
    if any(Path(file).suffix.lower() in ARCHIVES for file in data_files(builder)):
        home = get_home(folder, what, cache / "downloads")  # where archives are unpacked
    check_pictures(found, home)
    return found


def _read_saved(folder: Path, what: str) -> DatasetDict:
    """The splits that `save_to_disk` wrote."""
    import datasets

    home = get_home(folder, what)
    check_saved(folder, home)
    with _reading(folder):
        found = datasets.load_from_disk(folder)
    if not (folder / SAVED[0]).is_file():
        found = datasets.DatasetDict(train=found)
    check_pictures(found, home)
    return found


def _check_regular(folder: Path) -> None:
    """Raises ConfigError where a folder has a pipe, a socket or a device: pyarrow would wait."""
    for path in folder.rglob("*"):
        if not path.is_file() and not path.is_dir() and path.exists():
            with library_errors(path, error=ConfigError):
                require_file(path, "table")


def _that_is_no_pattern(folder: Path) -> str:
    """The whole path of a folder, which `datasets` expands as a pattern of names.

    Raises:
        ConfigError: others than the folder may be meant by it.
    """
    path = str(folder.resolve())
    if path != escape(path):
        raise ConfigError(
            f"folder '{folder}': its path has *, ? or [, by which other folders would be read; "
            "rename it, or give a file of it."
        )
    return path


def _checked(splits: DatasetDict, what: str) -> DatasetDict:
    """Raises ConfigError where all columns of a table were read as one."""
    for split in splits.values():
        first, *others = split.column_names or [""]
        # Decimal commas make pandas take what is before them for an index.
        name = first if all(other.startswith("__index_level_") for other in others) else ""
        found = next((mark for mark in SEPARATORS if mark in name), None)
        if found is not None:
            raise ConfigError(
                f"{what}: its only column is {name!r}: the columns are separated by "
                f"{SEPARATORS[found]}; save it as .csv with commas, or as .tsv with tabs."
            )
    return splits


def _reason(error: BaseException) -> str:
    """Why a file cannot be read, and what to do about it."""
    causes = list(_chain(error))
    text = " ".join(map(str, causes))
    wrong = WRONG_COLUMNS.search(text)
    if wrong is not None:
        return (
            f"line {wrong[2]} has {wrong[3]} columns where {wrong[1]} are expected; put texts that "
            'have the separator in them into quotes ("...").'
        )
    if "codec can't decode" in text:
        return "its bytes are not UTF-8; save it as UTF-8 (in a spreadsheet, 'CSV UTF-8')."
    if "corresponds to no data" in text or "No columns to parse" in text:
        return "it has no rows; expected a line of column names and a line for each row."
    if "zstd not supported" in text:
        return "this needs zstandard: pip install zstandard."
    if "must have the same columns" in text:
        differing = re.search(r"there are (.*\}\))", text)
        file = re.search(r"generating data using\s+(\S.*?)(?:,|\n|$)", text)
        where = f"'{Path(file[1]).name}'" if file else "one of them"
        listed = differing[1] if differing else "other columns"
        return f"its files have different columns: in {where} are {listed}; give all the same."
    return get_reason(error.__cause__ or error)


def _chain(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
