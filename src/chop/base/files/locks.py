"""Locks of files and folders between processes; a lock ends with its process, however that ends.

They are those of `fcntl.flock`. Windows has none: there nobody waits, as on file systems without
locks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NO_LOCKS_ON_FOLDERS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems such as NFS say, which lock files that are open for writing alone."""

LOCK_FILE = ".lock"
"""Name of the file in a folder that is locked in its place."""


def lock(file: IO[Any] | int, shared: bool = False) -> None:
    """Waits for the lock of an open file, and holds it until the file is closed.

    Args:
        file: open, or its number.
        shared: with others that share it; False: alone.
    Raises:
        OSError: its file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def unlock(file: IO[Any]) -> None:
    """Gives the lock of an open file back, of which forked children may have copies.

    Raises:
        OSError: its file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def folder_lock(folder: Path, shared: bool = False) -> Iterator[None]:
    """Holds the lock of a folder; of a file `LOCK_FILE` in it where folders have none.

    Args:
        folder: that is there.
        shared: with others that share it; False: alone.
    Raises:
        OSError: neither can be locked.
    """
    with ExitStack() as stack:

        def hold(path: Path, flags: int) -> None:
            handle = os.open(path, flags, 0o666)
            stack.callback(os.close, handle)
            lock(handle, shared)

        try:
            if fcntl is not None:  # Windows opens no folders
                hold(folder, os.O_RDONLY)
        except OSError as error:
            if error.errno not in NO_LOCKS_ON_FOLDERS:
                raise
            hold(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        yield
