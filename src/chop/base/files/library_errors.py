"""Conversion of errors of file-reading libraries into one-sentence messages."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from chop.base.files.reading import NotReadableError
from chop.errors import CheckpointError, ChopError, WriteError, first_line, shorten

RUST = "pyo3_runtime"
"""Module of the exception class of panics in Rust libraries, which is not an `Exception`."""
LONGEST_REASON = 300
_holding = threading.Lock()
"""Lock of the thread that redirects standard error."""


@contextmanager
def library_errors(
    path: str | Path,
    temporary: str = "",
    error: type[ChopError] = CheckpointError,
    problem: str | Callable[[BaseException], str] = "cannot be read",
) -> Iterator[None]:
    """Context manager that turns a library's errors into one sentence with the file's path.

    Args:
        path: file or folder for messages.
        temporary: temporary folder to replace by `path` in messages of libraries.
        error: class to raise.
        problem: words between the path and the library's reason, or a function that maps the
            library's error to all words after the path.
    Raises:
        ChopError: of class `error`, if the library raised another error or panicked.
    """
    try:
        yield
    except NotReadableError as failure:
        words = "cannot be read" if callable(problem) else problem
        raise error(f"'{path}' {words}: {failure}.") from None
    except WriteError:  # a full disk is not an error of the file being read
        raise
    except ChopError as failure:
        if not temporary or temporary not in str(failure):
            raise
        raise type(failure)(str(failure).replace(temporary, str(path))) from None
    except BaseException as failure:
        if not is_of_library(failure):
            raise
        words = problem(failure) if callable(problem) else f"{problem}: {get_reason(failure)}"
        words = words.replace(temporary, str(path)) if temporary else words
        raise error(f"'{path}' {words.rstrip('.')}.") from failure


@contextmanager
def without_panic_report() -> Iterator[None]:
    """Context manager that holds back standard error while a Rust library reads a file.

    Before it raises, a library that panics writes a report with a stack. Other text is written when
    the block ends. Standard error belongs to the whole process: of several threads the first one
    holds it back.
    """
    if not _holding.acquire(blocking=False):
        yield
        return
    with ExitStack() as stack:
        stack.callback(_holding.release)
        # Standard error may be closed, or no more files can be opened or created.
        with suppress(OSError, ValueError, AttributeError):
            stack.enter_context(_held_back())
        yield


@contextmanager
def _held_back() -> Iterator[None]:
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "wb", buffering=0) as error, tempfile.TemporaryFile() as held:
        panicked = False
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException as failure:
            panicked = type(failure).__module__ == RUST
            raise
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os.dup2(error.fileno(), 2)
            held.seek(0)
            if not panicked:
                shutil.copyfileobj(held, error)


def is_of_library(error: BaseException) -> bool:
    """Returns whether an error is one of a library: neither Ctrl-C nor the end of the process."""
    return isinstance(error, Exception) or type(error).__module__ == RUST


def get_reason(error: BaseException) -> str:
    """Returns the reason that a library gives, short and printable, without a full stop.

    >>> get_reason(KeyError("model")), get_reason(ValueError("expected a list."))
    ("KeyError: 'model'", 'expected a list')
    """
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, OSError) and error.strerror and error.errno:
        return error.strerror
    says_class = isinstance(error, LookupError | TypeError | AttributeError | ArithmeticError)
    text = f"{type(error).__name__}: {error}" if says_class and str(error) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    line = "".join(c if c.isprintable() else " " for c in line)
    return shorten(line or first_line(error), LONGEST_REASON).rstrip(" .:,")
