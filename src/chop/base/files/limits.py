"""One-sentence messages for exhausted limits: processes, threads, files, memory, disk space."""

from __future__ import annotations

import errno
from collections.abc import Iterator

FILES = (errno.EMFILE, errno.ENFILE)
TORCH_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
"""In the message of torch's RuntimeError for a tensor that is too large."""
NO_PROCESS = (
    "no further process or thread can be started: end others, or raise the limit (ulimit -u, or "
    "that of the container)."
)
NO_FILE = "too many files are open at once: raise the limit with ulimit -n 1024."
NO_MEMORY = (
    "there is not enough memory: take a smaller model, fewer rows or smaller batches, or raise the "
    "limit (ulimit -v, or that of the container)."
)
NO_SPACE = "the output of this command cannot be written because the disk is full; free some space."
LOOP = "a link leads to itself ({}): remove it."


def reached_limit(error: BaseException) -> str | None:
    """Returns the advice on a limit of the machine that caused an error; None of other errors.

    >>> reached_limit(OSError(errno.EMFILE, "Too many open files"))
    'too many files are open at once: raise the limit with ulimit -n 1024.'
    """
    return next((limit for each in _chain(error) if (limit := _of_one(each)) is not None), None)


def _of_one(error: BaseException) -> str | None:
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
    # The system's loader of libraries says it in words.
    if getattr(error, "errno", None) in FILES or "Too many open files" in text:
        return NO_FILE
    if not isinstance(error, OSError):
        return None
    # An error about a file names it, and is a WriteError: this is standard output.
    if error.errno == errno.ENOSPC and error.filename is None:
        return NO_SPACE
    # A write to a pipe that its reader has made non-blocking says how much of it was written.
    if error.errno == errno.EAGAIN and not hasattr(error, "characters_written"):
        return NO_PROCESS
    return NO_MEMORY if error.errno == errno.ENOMEM else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
