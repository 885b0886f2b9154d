"""Limit on the unpacked size of compressed files, archives and Parquet (decompression bombs).

A few bytes can unpack to very many. The unpacked size is measured before data are written to the
cache or held in memory.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from chop.base.files.library_errors import library_errors
from chop.base.files.reading import open_regular
from chop.base.memory import memory_bytes
from chop.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MiB = 2**20
COMPRESSED = (16 * MiB, 250)
"""Unpacked bytes allowed for any compressed file, and further ones per byte of the file."""
PARQUET = (64 * MiB, 1000)
"""The limits of Parquet, whose columns may be nearly constant."""
CELLS = (64 * MiB, 100)
"""The limits of JSON, whose rows get a cell for each key that occurs in another row."""
CHUNK = 10 * MiB
JSON = (".json", ".jsonl", ".ndjson")
KEY = re.compile(rb'[{,]\s*"((?:[^"\\]|\\.)*)"\s*:', re.DOTALL)
BATCH = 65_536
"""Number of Parquet rows whose texts are measured at once."""
PLAIN = {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BINARY_PACKED"}
"""Encodings that store a text in as many bytes as it has."""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
GZIP, BZIP, XZ, ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
ZIP, PARQUET_MAGIC = b"PK\x03\x04", b"PAR1"


def check_unpacked(files: Iterable[str | Path]) -> None:
    """Checks the unpacked sizes of files, separately and in total.

    Raises:
        ConfigError: if the unpacked size exceeds the limit for the file's size, or the memory of
            this machine.
    """
    memory, total = memory_bytes(), 0
    for file in map(Path, files):
        if not file.is_file():
            continue
        kind = _kind(file)
        if kind is None:
            _check_cells(file)
            continue
        least, ratio = PARQUET if kind is _parquet_bytes else COMPRESSED
        limit = least + ratio * file.stat().st_size
        size = kind(file, min(limit, memory - total))
        total += size
        if size > limit:
            raise ConfigError(
                f"'{file}' unpacks to more than {limit / MiB:,.0f} MiB from {_size(file)} and "
                "could fill the memory or the disk; if you trust it, unpack it yourself."
            )
        if kind is _stream_bytes:
            _check_cells(file)
        if total > memory:
            raise ConfigError(
                f"'{file}' and the other files unpack to more than the memory, "
                f"{memory / MiB:,.0f} MiB; unpack them yourself, or use fewer rows."
            )


def _check_cells(file: Path) -> None:
    """Raises ConfigError if a JSON file has many keys that each occur in few rows."""
    if not {suffix.lower() for suffix in file.suffixes[-2:]} & {*JSON}:
        return
    objects, keys, is_whole = 0, set[bytes](), False
    for i, part in enumerate(_parts(file)):
        is_whole = part.lstrip().startswith(b"[") if i == 0 else is_whole
        if not is_whole:  # lines, which are read in parts
            objects, keys = 0, set()
        objects += part.count(b"{")
        keys.update(KEY.findall(part))
        if 8 * objects * len(keys) > CELLS[0] + CELLS[1] * len(part):
            raise ConfigError(
                f"'{file}' has {len(keys):,} different keys in {objects:,} objects, each of which "
                "becomes a column with a cell per row; use the same keys in all rows."
            )


def contents(file: Path, is_wanted: Callable[[str], bool]) -> Iterator[IO[bytes]]:
    """Yields the content of a file: itself, decompressed, or the files of an archive one by one.

    Args:
        file: a regular file. Like in `datasets`, its first bytes determine its kind, not its name.
        is_wanted: takes a name; files for which it returns false are skipped.
    """
    with _unpacked(file) as opened:
        if opened.read(len(ZIP)) == ZIP:
            with zipfile.ZipFile(opened) as archive:
                for name in filter(is_wanted, archive.namelist()):
                    with archive.open(name) as member:
                        yield member
            return
        opened.seek(0)
        try:
            entries = tarfile.open(fileobj=opened, mode="r:")  # noqa: SIM115
        except tarfile.ReadError:
            if is_wanted(file.name):
                opened.seek(0)
                yield opened
            return
        with entries:
            for entry in entries:
                if is_wanted(entry.name) and (content := entries.extractfile(entry)) is not None:
                    yield content


@contextmanager
def _unpacked(file: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading and decompresses it if necessary."""
    with open_regular(file, "table") as opened:
        opener = _opener(opened.read(6))
        opened.seek(0)
        with opener(opened) if opener is not None else opened as stream:
            yield stream


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size:,} bytes" if size < 10 * 1024 else f"{size / 1024:,.0f} KiB"


def _kind(file: Path) -> Callable[[Path, int], int] | None:
    """Returns the function that measures the unpacked size of a file, or None if not packed."""
    with library_errors(file, error=ConfigError), open_regular(file, "table") as opened:
        start = opened.read(6)
    if start.startswith(ZIP):
        return _zip_bytes
    if start.startswith(PARQUET_MAGIC):
        return _parquet_bytes
    return _stream_bytes if _opener(start) is not None else None


def _opener(start: bytes) -> Callable[[Any], IO[bytes]] | None:
    if start.startswith(GZIP):
        return gzip.open  # type: ignore[return-value]
    if start.startswith(BZIP):
        return bz2.open
    if start.startswith(XZ):
        return lzma.open
    if start.startswith(ZSTD):
        try:
            import zstandard
        except ImportError:  # then `datasets` reads none
            return None
        opened: Callable[[Any], IO[bytes]] = zstandard.open
        return opened
    return None


def _stream_bytes(file: Path, limit: int) -> int:
    """Returns the unpacked bytes of a compressed file. Counting stops shortly after `limit`."""
    size = 0
    for part in _parts(file):
        size += len(part)
        if size > limit:
            break
    return size


def _parts(file: Path) -> Iterator[bytes]:
    """Yields the content of a possibly compressed file up to its first broken part."""
    try:
        with _unpacked(file) as stream:
            while part := stream.read(CHUNK):
                yield part
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        pass  # what is broken its reader says
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "zstandard":
            raise


def _zip_bytes(file: Path, limit: int) -> int:
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return 0


def _parquet_bytes(file: Path, limit: int) -> int:
    """Returns the bytes of Parquet columns in memory. Counting stops shortly after `limit`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size, texts, longest = 0, set(), 1
    try:
        with pq.ParquetFile(file) as parquet:
            meta = parquet.metadata
            for i in range(meta.num_row_groups):
                group = meta.row_group(i)
                for k in range(group.num_columns):
                    column = group.column(k)
                    size += column.num_values * WIDTHS.get(column.physical_type, 4)
                    if column.physical_type in WIDTHS:
                        continue
                    unpacked = max(column.total_uncompressed_size, 0)
                    size += unpacked
                    if not set(column.encodings) <= PLAIN and column.num_values * unpacked > limit:
                        texts.add(column.path_in_schema)
                        longest = max(longest, unpacked)
            if size > limit or not texts:
                return size
            return size + _text_bytes(parquet, sorted(texts), longest, limit - size)
    except (OSError, ValueError, pa.ArrowException):
        return size


def _text_bytes(parquet: pq.ParquetFile, columns: list[str], longest: int, limit: int) -> int:
    """Returns the bytes of text columns, whose pages may store each text once.

    Args:
        parquet: the file.
        columns: paths of the columns.
        longest: upper bound on the bytes of a text.
        limit: size at which counting stops.
    """
    rows = max(1, min(BATCH, 64 * MiB // longest))
    size = 0
    for batch in parquet.iter_batches(batch_size=rows, columns=columns):
        size += sum(column.nbytes for column in batch.columns)
        if size > limit:
            break
    return size
