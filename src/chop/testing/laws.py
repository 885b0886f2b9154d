"""Laws: properties that hold for every extension of a kind, and what a broken one says."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any


def obeys(law: Callable[[Any], None], subject: Any) -> None:
    """Runs the check of a law.

    Args:
        law: raises an error where the law is broken; its name is the law in words.
        subject: what is checked.
    Raises:
        AssertionError: names the law, the subject, and the line that failed.
    """
    if not __debug__:
        raise RuntimeError("chop.testing checks by assertions: run Python without -O.")
    try:
        law(subject)
    except Exception as error:  # code of other people
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}:{place.lineno}"
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        title = law.__name__.strip("_").replace("_", " ")
        name = getattr(subject, "label", None) or getattr(subject, "__name__", subject)
        raise AssertionError(
            f"{name} breaks the law '{title}': {kind}{str(error) or place.line} ({where})"
        ) from error
