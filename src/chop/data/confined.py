"""Confinement of data sets to their folder.

A folder's README, an index of `save_to_disk` and a column of images name files. Names that lead
out of the folder, and URLs, are rejected before a file is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from chop.base.files.documents import read_json
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import read_bytes
from chop.errors import ConfigError, shorten

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import DatasetBuilder, DatasetDict

CARDS = ("README.md", ".huggingface.yaml")
"""Files of a folder in which `datasets` looks for the names of other files."""
MOST_VALUES = 10**5
MAX_NAME_LENGTH = 300
"""Maximum number of characters of a name in a message."""
FRONT = re.compile(r"\A\s*---\r?\n(.*?)\r?\n---", re.DOTALL)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|::")
"""Start of a URL, or the mark between two, as in `zip://a::b`. A single letter is a drive."""
MEMBER = re.compile(r"(?:zip|tar)://(?:(?!://|::).)*::(?P<archive>.+)", re.DOTALL)
"""File in an archive, in the notation of `datasets`."""
HUB = "hf://datasets/"
READERS = frozenset(
    {"csv", "json", "parquet", "text", "arrow", "imagefolder", "audiofolder", "videofolder"}
    | {"conll", "xml", "webdataset", "cache", "fasta", "fastq", "genbank", "tsfile", "pdb", "mmcif"}
)
"""Readers of `datasets` that open only the given files."""


class Home:
    """Folders that contain the files of a data set.

    Args:
        folders: the data set's folder, and caches for its unpacked archives.
        what: name of the data set, for messages.
    """

    def __init__(self, folders: Iterable[Path], what: str) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self.what = what
        self._parents: dict[Path, bool] = {}
        self._inside: set[str] = set()

    def check(self, name: str, named_by: str) -> None:
        """Raises ConfigError if a name leads out of the folders or is a URL."""
        if name in self._inside:  # an image is a file of the data set, and named by its row
            return
        member = MEMBER.fullmatch(name)
        place = name if member is None else member["archive"]
        short_name = shorten(name, MAX_NAME_LENGTH)
        if SCHEME.search(place):
            raise ConfigError(
                f"{self.what}: {named_by} names '{short_name}', and URLs are not fetched."
            )
        path = Path(place)
        if path.parent not in self._parents:  # one look at each folder of many images
            self._parents[path.parent] = self._has(path.parent)
        try:
            is_alone = path.name not in ("", "..") and not path.is_symlink()
        except (OSError, ValueError):  # no name that a file can have
            is_alone = False
        if not self._parents[path.parent] or not (is_alone or self._has(path)):
            raise ConfigError(
                f"{self.what}: {named_by} names '{short_name}', which is outside its folder; copy "
                "the file into the folder."
            )
        self._inside.add(name)

    def _has(self, path: Path) -> bool:
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError):  # a loop of links, or no name of a file
            return False
        return any(real.is_relative_to(folder) for folder in self.folders)


def get_home(folder: Path, what: str, *caches: Path) -> Home:
    """Returns the home of a local folder. A snapshot in the hub's cache includes its blobs."""
    real = folder.resolve()
    blobs = real.parents[1] / "blobs" if len(real.parents) > 1 else real
    is_snapshot = real.parent.name == "snapshots" and blobs.is_dir()
    return Home([real, *([blobs] if is_snapshot else []), *caches], what)


def check_card(folder: Path, home: Home) -> None:
    """Checks the file names in a folder's README before any of the files is looked for.

    Raises:
        ConfigError: if a name leads out of the folder or is a URL, or the README cannot be read.
    """
    import yaml

    for name in CARDS:
        file = folder / name
        if not file.exists():
            continue
        home.check(str(file), "the data set")
        try:
            text = read_bytes(file, "card").decode(errors="replace")
        except OSError as error:
            raise ConfigError(f"'{file}' cannot be read: {error.strerror}.") from None
        except ConfigError as error:
            raise ConfigError(f"'{file}' cannot be read: {error}.") from None
        front = FRONT.search(text) if file.suffix == ".md" else None
        try:
            content = yaml.safe_load(front[1] if front else text if file.suffix != ".md" else "")
            is_long = _size(content, {}) > MOST_VALUES
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"'{file}': its YAML cannot be read: {reason}.") from None
        if is_long:
            raise ConfigError(f"'{file}': its YAML expands to more than {MOST_VALUES:,} values.")
        configs = content.get("configs") if isinstance(content, dict) else None
        for path in _texts(configs, set()):
            if (
                SCHEME.search(path)
                or path.startswith(("~", os.sep))
                or ".." in PurePath(path).parts
            ):
                home.check(str(folder / path) if not SCHEME.search(path) else path, f"its {name}")


def _size(value: Any, known: dict[int, int]) -> int:
    """Returns the number of nested values with YAML aliases expanded."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_VALUES  # of one that has itself inside
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(item, known) for item in items)
    return known[id(value)]


def _texts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yields texts among nested values. YAML aliases are visited once."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item, seen)


def check_saved(folder: Path, home: Home) -> None:
    """Checks the file names in a folder of `save_to_disk`.

    Raises:
        ConfigError: if a file is outside the folder, or an index cannot be read.
    """
    index = folder / "dataset_dict.json"
    parts = [folder]
    if index.is_file():
        home.check(str(index), "the data set")
        parts = [folder / str(name) for name in _listed(index, "splits")]
    for part in parts:
        state = part / "state.json"
        home.check(str(state), index.name)
        if not state.is_file():
            continue  # `datasets` says what is missing
        for file in _listed(state, "_data_files"):
            name = file.get("filename") if isinstance(file, Mapping) else file
            home.check(str(part / str(name)), f"'{state.name}'")


def _listed(file: Path, key: str) -> list[Any]:
    try:
        files = read_json(file, "index").get(key)
    except (OSError, ConfigError) as error:
        raise ConfigError(f"'{file}' cannot be read: {error}.") from None
    if not isinstance(files, list):
        raise ConfigError(f"'{file}': expected a list '{key}'.")
    return files


def data_files(builder: DatasetBuilder) -> list[str]:
    """Returns the files that a builder of `datasets` has selected."""
    selected = getattr(builder.config, "data_files", None) or {}
    return [str(file) for files in selected.values() for file in files]


def get_reader(builder: DatasetBuilder) -> str:
    """Returns the reader name of a builder of `datasets`."""
    return type(builder).__module__.rpartition(".")[2]


def check_builder(builder: DatasetBuilder, home: Home) -> None:
    """Checks the files that a builder is about to read.

    Raises:
        ConfigError: if a file is outside the folder or a URL, or its kind can refer to other files.
    """
    reader = get_reader(builder)
    if reader not in READERS:
        raise ConfigError(
            f"{home.what} has files for the reader '{reader}': expected tables or images."
        )
    for file in data_files(builder):
        home.check(file, "the data set")


def check_hub_files(builder: DatasetBuilder, name: str) -> None:
    """Raises ConfigError if a hub data set names files that are not on the hub."""
    for file in data_files(builder):
        if not file.startswith(HUB):
            raise ConfigError(
                f"data set '{name}' names '{file}', which is outside the hub and not read."
            )


def check_pictures(splits: DatasetDict, home: Home) -> None:
    """Checks the paths in columns of images and similar columns, whose files are opened with the
    rows.

    Raises:
        ConfigError: if a path leads out of the folder or is a URL.
    """
    for split in splits.values():
        for name, feature in split.features.items():
            if _decodes(feature):
                with library_errors(home.folders[0], error=ConfigError):
                    paths = [*_paths(split.data.column(name))]
                for path in paths:
                    home.check(path, f"a row of its column '{name}'")


def _decodes(feature: Any) -> bool:
    """Returns true if a feature or a nested one opens files."""
    if hasattr(feature, "decode_example"):
        return True
    inner = getattr(feature, "feature", feature)
    values = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return (inner is not feature and _decodes(inner)) or any(map(_decodes, values))


def _paths(array: pa.Array | pa.ChunkedArray) -> Iterator[str]:
    """Yields paths of files that are stored without their bytes, at any depth."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            yield from _paths(chunk)
    elif isinstance(array, pa.ExtensionArray):
        yield from _paths(array.storage)
    elif pa.types.is_struct(array.type):
        names = {field.name for field in array.type}
        if {"bytes", "path"} <= names:
            alone = pc.filter(array.field("path"), pc.is_null(array.field("bytes")))
            yield from (path for path in alone.to_pylist() if path is not None)
        for name in names - {"bytes", "path"}:
            yield from _paths(array.field(name))
    elif hasattr(array, "flatten") and hasattr(array, "offsets"):
        yield from _paths(array.flatten())
