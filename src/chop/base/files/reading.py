"""Reading of regular files with a size limit for each kind of file.

Pipes and sockets block their reader, and devices may never end. `open_regular` opens a file without
waiting, accepts regular files only, and compares their size with `BOUNDS`. `require_file` checks
paths for libraries that open files themselves.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path

from chop.errors import ConfigError

KiB, MiB = 2**10, 2**20
BOUNDS: Mapping[str, int | None] = {
    # Written by chop.
    "manifest": 64 * MiB,
    "result": 64 * MiB,
    "report": 64 * MiB,
    "journal": 256 * MiB,
    "plan": 64 * MiB,
    "metadata": 64 * MiB,
    "checkpoint": 256 * MiB,
    "design": 64 * MiB,
    "vectors": 1024 * MiB,
    "page": 256 * MiB,
    "picture": 256 * MiB,
    "artifact": None,
    "cached": 64 * MiB,
    # Written by people.
    "settings": 4 * MiB,
    "source": 16 * MiB,
    # Written by other tools.
    "config": 16 * MiB,
    "index": 64 * MiB,
    "card": 4 * MiB,
    "tokenizer": 128 * MiB,
    "weights": None,
    "gguf": None,
    "table": None,
    "image": 256 * MiB,
}
"""Maximum size in bytes by kind of file; None for files mapped or read in parts.
"""
POINTER = b"version https://git-lfs"
"""First bytes of the text that a clone without Git LFS has in place of a large file."""


class NotReadableError(ConfigError):
    """Raised if a file is not regular, too large or invalid; the message omits its path."""


KINDS_OF_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link, and links are not followed",
}
FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
)


def open_regular(path: str | Path, kind: str, *, follow_links: bool = True) -> BufferedReader:
    """Opens a regular file for reading.

    Args:
        path: file to open.
        kind: key of `BOUNDS`.
        follow_links: True if the last part of the path may be a symbolic link.
    Raises:
        OSError: if it is missing, a folder, or unreadable.
        NotReadableError: if it is a pipe, a socket, a device, or a link that is not followed, or
            exceeds the size limit of its kind. The message does not name the file.
    """
    try:
        # Some devices act when they are opened.
        _check(Path(path).stat(follow_symlinks=follow_links), path, kind)
        number = os.open(path, FLAGS if follow_links else FLAGS | getattr(os, "O_NOFOLLOW", 0))
    except ValueError as error:  # a NUL byte in the path
        if isinstance(error, ConfigError):
            raise
        raise NotReadableError(f"its name cannot be that of a file: {error}") from None
    try:
        _check(os.fstat(number), path, kind)  # another file may have taken its place
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_bytes(path: str | Path, kind: str) -> bytes:
    """Reads a regular file, up to its size when it is opened.

    Args:
        path: file to read.
        kind: key of `BOUNDS`.
    Raises:
        OSError, NotReadableError: as `open_regular`.
    """
    with open_regular(path, kind) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: str | Path, kind: str, errors: str = "strict") -> str:
    """Reads a regular UTF-8 text file.

    Args:
        path: file to read.
        kind: key of `BOUNDS`.
        errors: handling of invalid UTF-8, as in `bytes.decode`.
    Raises:
        OSError, NotReadableError: as `open_regular`; also where the text is not UTF-8.
    """
    try:
        return read_bytes(path, kind).decode("utf-8", errors).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise NotReadableError(f"it is not UTF-8 text: byte {error.start} is invalid") from None


def require_file(path: str | Path, kind: str) -> Path:
    """Returns the path of a regular file, for libraries that open files themselves.

    Args:
        path: file to check.
        kind: key of `BOUNDS`.
    Raises:
        OSError, NotReadableError: as `open_regular`.
    """
    open_regular(path, kind).close()
    return Path(path)


def _check(status: os.stat_result, path: str | Path, kind: str) -> None:
    bound = BOUNDS[kind]
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        actual = KINDS_OF_FILES.get(stat.S_IFMT(status.st_mode), "something else")
        raise NotReadableError(f"expected a regular file, got {actual}")
    if bound is not None and status.st_size > bound:
        raise NotReadableError(
            f"it has {status.st_size:,} bytes, and a file of this kind ({kind}) {bound:,} at most"
        )
