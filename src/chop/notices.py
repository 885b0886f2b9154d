"""Warnings that are given once per process, whatever the filters and however many layers."""

from __future__ import annotations

import warnings

from chop.errors import bounded


class AdjustedWarning(UserWarning):
    """A setting cannot be had as it was given, and was replaced or left out."""


_GIVEN: set[str] = set()


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


def forget_notices() -> None:
    """Lets every message be given again."""
    _GIVEN.clear()
