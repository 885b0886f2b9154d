"""Locks on files and folders between processes, released when the process ends.

They use `fcntl.flock`. On Windows and on file systems without locks, nobody waits.
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
"""Error numbers of file systems such as NFS, which only lock files opened for writing."""

LOCK_FILE = ".lock"
"""Name of the lock file in a folder that cannot be locked itself."""


def lock(file: IO[Any] | int, shared: bool = False) -> None:
    """Acquires the lock of an open file until the file is closed.

    Args:
        file: open file or file descriptor.
        shared: True for a shared lock, False for an exclusive one.
    Raises:
        OSError: if the file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def unlock(file: IO[Any]) -> None:
    """Releases the lock of an open file, of which forked children may have copies.

    Raises:
        OSError: if the file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def folder_lock(folder: Path, shared: bool = False) -> Iterator[None]:
    """Context manager that locks a folder, or `LOCK_FILE` in it if folders cannot be locked.

    Args:
        folder: existing folder.
        shared: True for a shared lock, False for an exclusive one.
    Raises:
        OSError: if neither can be locked.
    """
    with ExitStack() as stack:

        def hold(path: Path, flags: int) -> None:
            handle = os.open(path, flags, 0o666)
            stack.callback(os.close, handle)
            lock(handle, shared)

        try:
            if fcntl is not None:  # Windows cannot open folders
                hold(folder, os.O_RDONLY)
        except OSError as error:
            if error.errno not in NO_LOCKS_ON_FOLDERS:
                raise
            hold(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        yield
