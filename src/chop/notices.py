"""Warnings that are given once: in the process, or for each model, whatever the filters show."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from chop.errors import bounded


class AdjustedWarning(UserWarning):
    """A setting cannot be had as it was given, and was replaced or left out."""


_GIVEN: set[str] = set()
_GIVEN_OF: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
"""By model, or what stands for it: what was said of it."""


def warn_once(
    message: str, category: type[Warning] = AdjustedWarning, about: str | None = None
) -> None:
    """Warns unless the same message was given before.

    Python's own filter forgets what it has shown whenever a library touches the filters.

    Args:
        message: a sentence.
        category: of the warning.
        about: messages about the same thing are the same; None: those of the same text.
    """
    if (about or message) not in _GIVEN:
        _GIVEN.add(about or message)
        warnings.warn(bounded(message), category, stacklevel=2)


def warn_once_of(
    subjects: Iterable[object], message: str, category: type[Warning], about: str
) -> None:
    """Warns unless something about one of the subjects was said before; other models are warned.

    Args:
        subjects: a model and what stands for it, such as its capture, which copies share; hashed
            by identity, and not kept alive.
        message: a sentence.
        category: of the warning.
        about: messages about the same thing are the same, whatever their text.
    """
    said = [_GIVEN_OF.setdefault(subject, set()) for subject in subjects]
    is_known = any(about in of_one for of_one in said)
    for of_one in said:
        of_one.add(about)
    if not is_known:
        warn_each_time(message, category)


def warn_each_time(message: str, category: type[Warning]) -> None:
    """Warns at every call, for what is true of one model and is called once for each.

    Python's default filter shows the same text of one line of code once in a process.

    Args:
        message: a sentence.
        category: of the warning.
    """
    caller = sys._getframe(1)
    file, line = caller.f_code.co_filename, caller.f_lineno
    warnings.warn_explicit(bounded(message), category, file, line, registry={})


def forget_notices() -> None:
    """Lets every message be given again."""
    _GIVEN.clear()
    _GIVEN_OF.clear()
