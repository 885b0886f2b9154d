"""Laws: properties of all extensions of a kind, and messages for broken ones."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any


def obeys(law: Callable[[Any], None], subject: Any) -> None:
    """Runs the check of a law.

    Args:
        law: function that raises an error if the law is broken. Its name is the law in words.
        subject: checked object.
    Raises:
        AssertionError: if the law is broken; the message has the law, the subject, and the failed
            line.
    """
    if not __debug__:
        raise RuntimeError("chop.testing checks by assertions: run Python without -O.")
    try:
        law(subject)
    except Exception as error:  # third-party code
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}:{place.lineno}"
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        title = law.__name__.strip("_").replace("_", " ")
        name = getattr(subject, "label", None) or getattr(subject, "__name__", subject)
        raise AssertionError(
            f"{name} breaks the law '{title}': {kind}{str(error) or place.line} ({where})"
        ) from error
