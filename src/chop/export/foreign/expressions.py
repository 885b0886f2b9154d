"""Regular expressions from untrusted configs, restricted to bounded search times.

An expression such as `(a+)+$` or `(.|.)(.|.)...` takes ages on a path of thirty letters.
"""

from __future__ import annotations

import re

from chop.errors import ConfigError

EXPRESSION = "re:"
"""Prefix of a regular expression among the targets of compressed-tensors."""
LONGEST = 500
"""Largest length of an expression, in characters."""
LONGEST_PATH = 200
MOST_REPEATS = 4
"""Largest number of repetitions: each multiplies the search time by the length of the path."""
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
REPEAT = re.compile(r"(?:[*+{]|(?<!\()\?)\??")
"""Repetition, greedy or lazy."""
INNERMOST = re.compile(r"\([^()]*\)")
NESTED = re.compile(r"\)[*+{]|\(\?(?:P=|[#(]|[a-zA-Z-]*x)")
"""Repeated group, backreference or other construct that is not allowed."""


def expression(text: str, where: str) -> re.Pattern[str]:
    """Compiles an expression.

    Args:
        text: expression in the syntax of `re`.
        where: owner of the expression, for messages.

    Raises:
        ConfigError: if the expression is malformed, or if its search time is not bounded.
    """
    if len(text) > LONGEST or _repeats(text) > MOST_REPEATS:
        raise ConfigError(
            f"{where}: expected an expression with at most {MOST_REPEATS} repetitions and no "
            f"repeated group, got {text[:80]!r}."
        )
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{where}: {text[:80]!r} is not a regular expression: {error}.") from None


def _repeats(text: str) -> int:
    """Returns the number of choice points of a search; too many if a group is repeated."""
    plain = CLASS.sub("x", ESCAPE.sub("x", text))
    if NESTED.search(plain) or any(x in "123456789" for x in ESCAPE.findall(text)):
        return MOST_REPEATS + 1
    count = len(REPEAT.findall(plain))
    while groups := INNERMOST.findall(plain):
        count += sum("|" in group for group in groups)
        plain = INNERMOST.sub("", plain)
    return count


def finds(pattern: re.Pattern[str], path: str) -> bool:
    """Returns True if an expression matches at the start of a path that is not too long."""
    return len(path) <= LONGEST_PATH and pattern.match(path) is not None
