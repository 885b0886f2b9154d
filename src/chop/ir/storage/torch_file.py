"""Reader of `torch.save` files with tensors only and bounded memory."""

from __future__ import annotations

import mmap
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import torch

from chop.base.files.reading import open_regular
from chop.errors import CheckpointError, first_line

ZIP, ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
END_BYTES, LOCATOR_BYTES, ZIP64_BYTES = 22, 20, 56
"""Sizes of the end record of a zip archive without a comment, and of its preceding records."""
IN_ZIP64 = 2**32 - 1
LARGEST_DIRECTORY = 2**26
"""Maximum bytes of an archive's directory: about a million members."""
SIZED = (b"__builtin__\nbytearray\n", b"builtins\nbytearray\n")
"""Class that `weights_only` allows and that allocates as much memory as a number says."""


def read_torch_file(path: str | Path) -> Any:
    """Reads a `torch.save` file.

    Raises:
        CheckpointError: if the file would unpack to more than its size.
        Exception: errors of torch for a file with other contents than tensors.
    """
    with open_regular(path, "weights") as file:
        _check_size(file, path)
    return torch.load(path, map_location="cpu", weights_only=True)


def check_torch_file(path: str | Path) -> None:
    """Compares the unpacked size of a `torch.save` file with its size.

    Args:
        path: regular file, which another library reads afterwards.
    Raises:
        CheckpointError: if it would unpack to more.
        ValueError: if it is a TorchScript program.
    """
    with open_regular(path, "weights") as file:
        _check_size(file, path)


def _check_size(file: BinaryIO, path: str | Path) -> None:
    """Compares the unpacked size of a file with its size.

    torch inflates compressed members, and reads a member twice if it is listed twice.
    """
    is_archive = file.read(len(ZIP)) == ZIP
    pickles: Iterable[Any] = _checked_pickles(file, path) if is_archive else _mapped(file)
    if any(data.find(name) >= 0 for data in pickles for name in SIZED):
        raise CheckpointError(
            f"'{path}' contains a bytearray; expected tensors, numbers and texts."
        )


def _checked_pickles(file: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """Yields the pickles of an archive whose members are uncompressed and within its size."""
    size = file.seek(0, os.SEEK_END)
    _check_directory(file, size, path)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_members(members, size, path)
            yield from (archive.read(x) for x in members if x.filename.endswith(".pkl"))
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, struct.error) as error:
        raise CheckpointError(f"'{path}' is cut off or broken: {first_line(error)}.") from None


def _check_members(members: Sequence[zipfile.ZipInfo], size: int, path: str | Path) -> None:
    if any(PurePosixPath(x.filename).name == "constants.pkl" for x in members):
        raise ValueError("a TorchScript archive")
    compressed = next((x for x in members if x.compress_type != zipfile.ZIP_STORED), None)
    if compressed is not None:
        raise CheckpointError(
            f"'{path}': its member '{compressed.filename[:80]}' is compressed, and torch.save "
            "compresses none. Save the state dict again where it was made."
        )
    total = sum(member.file_size for member in members)
    if total > size:
        raise CheckpointError(
            f"'{path}': its members have {total:,} bytes together, and the file has {size:,}."
        )


def _check_directory(file: BinaryIO, size: int, path: str | Path) -> None:
    """Raises CheckpointError if an archive does not end like torch's, or lists too much.

    Zip readers differ in how they find the end of an archive with a comment.
    """
    file.seek(max(size - LOCATOR_BYTES - END_BYTES, 0))
    end = file.read()
    record = end[-END_BYTES:]
    if not record.startswith(ZIP_END) or not record.endswith(b"\0\0"):
        raise CheckpointError(f"'{path}' is cut off: its end is not as torch.save writes it.")
    (listed,) = struct.unpack_from("<I", end, len(end) - END_BYTES + 12)
    if listed == IN_ZIP64:  # the zip64 record has the number; the locator points to it
        (place,) = struct.unpack_from("<Q", end, len(end) - END_BYTES - LOCATOR_BYTES + 8)
        file.seek(min(place, size))
        large = file.read(ZIP64_BYTES)
        listed = struct.unpack_from("<Q", large, 40)[0] if len(large) == ZIP64_BYTES else size
    if listed > LARGEST_DIRECTORY:
        raise CheckpointError(f"'{path}': the list of its members has {listed:,} bytes.")
    file.seek(0)


def _mapped(file: BinaryIO) -> list[mmap.mmap]:
    """Maps the content of a file; an empty file cannot be mapped."""
    has_content = file.seek(0, os.SEEK_END) > 0
    return [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)] if has_content else []
