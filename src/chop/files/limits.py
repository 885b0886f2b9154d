"""Limits of the machine: processes, threads, open files and memory, as one sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator

FILES = (errno.EMFILE, errno.ENFILE)
NO_PROCESS = (
    "no further process or thread can be started: end others, or raise the limit (ulimit -u, or "
    "that of the container)."
)
NO_FILE = "too many files are open at once: raise the limit with ulimit -n 1024."
NO_MEMORY = (
    "there is not enough memory: take a smaller model, fewer rows or smaller batches, or raise the "
    "limit (ulimit -v, or that of the container)."
)


def reached_limit(error: BaseException) -> str | None:
    """What to do about a limit of the machine that an error comes from; None: from something else.

    >>> reached_limit(OSError(errno.EMFILE, "Too many open files"))
    'too many files are open at once: raise the limit with ulimit -n 1024.'
    """
    return next((found for each in _chain(error) if (found := _of_one(each)) is not None), None)


def _of_one(error: BaseException) -> str | None:
    if isinstance(error, MemoryError):
        return NO_MEMORY
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return NO_PROCESS
    if not isinstance(error, OSError):
        return None
    if error.errno in FILES or "Too many open files" in str(error):
        return NO_FILE
    # Of a read or a write EAGAIN is BlockingIOError as well, but nothing of chop's does not block.
    if error.errno == errno.EAGAIN:
        return NO_PROCESS
    return NO_MEMORY if error.errno == errno.ENOMEM else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
