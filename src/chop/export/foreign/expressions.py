"""Expressions of a folder for paths of modules: those alone that are searched in bounded time.

An expression such as `(a+)+$` or `(.|.)(.|.)...` takes ages on a path of thirty letters.
"""

from __future__ import annotations

import re

from chop.errors import ConfigError

LONGEST = 500
"""Characters of an expression."""
LONGEST_PATH = 200
MOST_REPEATS = 4
"""Each may take as many steps as a path has letters, for each of those of the one before."""
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
REPEAT = re.compile(r"(?:[*+{]|(?<!\()\?)\??")
"""A lazy one too, which is one."""
INNERMOST = re.compile(r"\([^()]*\)")
NESTED = re.compile(r"\)[*+{]|\(\?(?:P=|[#(]|[a-zA-Z-]*x)")
"""A repeated group, one that has to come again, and what makes an expression another one."""


def expression(text: str, where: str) -> re.Pattern[str]:
    """The compiled expression.

    Args:
        text: as `re` has it.
        where: for messages.

    Raises:
        ConfigError: it is none, or may take time out of proportion.
    """
    if len(text) > LONGEST or _repeats(text) > MOST_REPEATS:
        raise ConfigError(
            f"{where}: expected an expression with {MOST_REPEATS} repeats at most, none of them of "
            f"a group, got {text[:80]!r}."
        )
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{where}: {text[:80]!r} is no expression: {error}.") from None


def _repeats(text: str) -> int:
    """Places where a search may go on in several ways; too many where a group is repeated."""
    plain = CLASS.sub("x", ESCAPE.sub("x", text))
    if NESTED.search(plain) or any(x in "123456789" for x in ESCAPE.findall(text)):
        return MOST_REPEATS + 1
    found = len(REPEAT.findall(plain))
    while groups := INNERMOST.findall(plain):
        found += sum("|" in group for group in groups)
        plain = INNERMOST.sub("", plain)
    return found


def finds(pattern: re.Pattern[str], path: str) -> bool:
    """Whether an expression finds a path, from its start on; none is found that is too long."""
    return len(path) <= LONGEST_PATH and pattern.match(path) is not None
