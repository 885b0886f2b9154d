"""Names of built-in data sets, models and tokenizers. A path with the same name has priority.

`builtin:NAME` always means the built-in one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from chop.base.notices import assume
from chop.errors import check_known

PREFIX = "builtin:"
MARK = " (built in)"
"""Behind the name of a built-in model or data set, where a reader may take it for another."""


def builtin_name(
    name: object, known: Collection[str], kind: str, has: Callable[[Path], bool]
) -> str | None:
    """Returns the built-in data set, model or tokenizer of a name, or None.

    Args:
        name: name from the user.
        known: names of the built-in ones.
        kind: kind of these things, for the message.
        has: returns true if a path on disk is one of this kind.
    Raises:
        ConfigError: there is no built-in one of a name with the prefix.
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


def tell_which(name: object, known: Collection[str], kind: str, chosen: str | None) -> None:
    """Notes the choice if a name is both built in and on disk.

    Args:
        name: name from the user.
        known: names of the built-in ones.
        kind: kind of these things.
        chosen: result of `builtin_name`.
    """
    text = str(name)
    if text not in known or not Path(text).exists():
        return
    log = logging.getLogger(__name__)
    if chosen is None:
        assume(f"{kind} '{text}' is './{text}' on disk; {PREFIX}{text} is the built-in one.", log)
    else:
        assume(f"{kind} '{text}' is the built-in one: './{text}' on disk holds no {kind}.", log)


def advice_of_builtin(name: object, known: Collection[str]) -> str:
    """Returns a hint to the built-in one of this name, for errors about a path. Else ""."""
    return f" The built-in one is {PREFIX}{name}." if str(name) in known else ""
