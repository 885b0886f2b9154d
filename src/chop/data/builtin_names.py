"""Names of built-in data sets, models and tokenizers. Existing paths take precedence.

`builtin:NAME` always refers to the built-in one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from chop.base.notices import assume
from chop.errors import check_known

PREFIX = "builtin:"
MARK = " (built in)"
"""Suffix that marks the name of a built-in model or data set in texts."""


def builtin_name(
    name: object, known: Collection[str], kind: str, has: Callable[[Path], bool]
) -> str | None:
    """Returns the built-in data set, model or tokenizer with the given name, or None.

    Args:
        name: user-supplied name.
        known: names of the built-in ones.
        kind: kind of object, for the message.
        has: returns true if a path holds an object of this kind.
    Raises:
        ConfigError: if the name has the prefix and is not built in.
    """
    text = str(name)
    if text.startswith(PREFIX):
        plain = text.removeprefix(PREFIX)
        check_known(plain, known, f"no built-in {kind}")
        return plain
    return text if text in known and not has(Path(text)) else None


def plain_name(name: str) -> str:
    """Removes the prefix of a name.

    >>> plain_name("builtin:vit"), plain_name("./vit")
    ('vit', './vit')
    """
    return name.removeprefix(PREFIX)


def report_choice(name: object, known: Collection[str], kind: str, chosen: str | None) -> None:
    """Notes the choice if a name is both built in and on disk.

    Args:
        name: user-supplied name.
        known: names of the built-in ones.
        kind: kind of object.
        chosen: result of `builtin_name`.
    """
    text = str(name)
    if text not in known or not Path(text).exists():
        return
    log = logging.getLogger(__name__)
    if chosen is None:
        assume(f"{kind} '{text}' is read from './{text}'; the built-in one is {PREFIX}{text}.", log)
    else:
        assume(f"{kind} '{text}' is the built-in one, since './{text}' contains no {kind}.", log)


def advice_of_builtin(name: object, known: Collection[str]) -> str:
    """Returns a hint to the built-in object of this name, for errors about a path, or ""."""
    return f" The built-in one is {PREFIX}{name}." if str(name) in known else ""
