"""Messages for exhausted limits: processes, threads, files, memory, disk space."""

from __future__ import annotations

import errno
from collections.abc import Iterator

FILES = (errno.EMFILE, errno.ENFILE)
TORCH_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
"""Part of torch's RuntimeError message for a tensor that is too large."""
NO_PROCESS = (
    "no more processes or threads can be started: end some, or raise the limit (ulimit -u, or "
    "that of the container)."
)
NO_FILE = "too many open files: raise the limit with ulimit -n 1024."
NO_MEMORY = (
    "not enough memory: use a smaller model, fewer rows or smaller batches, or raise the "
    "limit (ulimit -v, or that of the container)."
)
NO_SPACE = "the output of this command cannot be written because the disk is full; free some space."
LOOP = "a symbolic link points to itself ({}): remove it."


def reached_limit(error: BaseException) -> str | None:
    """Returns advice on the system limit that caused an error, or None for other errors.

    >>> reached_limit(OSError(errno.EMFILE, "Too many open files"))
    'too many open files: raise the limit with ulimit -n 1024.'
    """
    return next((limit for each in _chain(error) if (limit := _advise(each)) is not None), None)


def _advise(error: BaseException) -> str | None:
    text = str(error)
    if isinstance(error, MemoryError):
        return NO_MEMORY
    if isinstance(error, RuntimeError):
        if "can't start new thread" in text:
            return NO_PROCESS
        if text.startswith("Symlink loop"):  # Path.resolve
            return LOOP.format(text.removeprefix("Symlink loop from "))
        return NO_MEMORY if TORCH_ALLOCATOR in text else None
    if not isinstance(error, OSError | ImportError):
        return None
    # The dynamic loader reports it in the message only.
    if getattr(error, "errno", None) in FILES or "Too many open files" in text:
        return NO_FILE
    if not isinstance(error, OSError):
        return None
    # Without a file name, the error is about standard output.
    if error.errno == errno.ENOSPC and error.filename is None:
        return NO_SPACE
    # A partial write to a non-blocking pipe reports how much was written.
    if error.errno == errno.EAGAIN and not hasattr(error, "characters_written"):
        return NO_PROCESS
    return NO_MEMORY if error.errno == errno.ENOMEM else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
