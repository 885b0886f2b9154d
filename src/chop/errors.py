"""Errors that `chop` raises on purpose.

::

    ChopError
    ├── ConfigError        a user's setting is wrong         (also a ValueError)
    │   └── PlanError      a sharding plan does not fit the model or the processes
    ├── GraphError         a graph is not valid, or a pass   (also a ValueError)
    │                      was called on the wrong one
    ├── CaptureError       a model cannot be written down    (also a RuntimeError)
    │   └── GuardError     a captured graph got inputs that it was not captured for
    ├── CheckpointError    a file is missing, broken or foreign (also a ValueError)
    ├── WriteError         a disk is full or read-only   (also an OSError)
    ├── UnavailableError   something has to be installed or fetched first (also an OSError)
    ├── VerificationError  a circuit or file is not what its graph is (also a RuntimeError)
    ├── DistributedError   a process ended, or a sharded model differs (also a RuntimeError)
    └── NotBuiltError      a part that `chop` lacks      (also a NotImplementedError)

A message says what was expected, what came, and the nearest way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence

MOST_CHARACTERS = 2000
"""Of a message."""
KEPT_AT_END = 500
"""Of a longer one: the end says the way out."""
LEFT_OUT = " ... (left out: the message is too long) ... "


class ChopError(Exception):
    """Base of every error raised on purpose; the middle of a long message is left out."""

    def __str__(self) -> str:
        return bounded(super().__str__())


class ConfigError(ChopError, ValueError):
    """A setting is unknown, misspelled, of the wrong type or out of range."""


class PlanError(ConfigError):
    """A sharding plan does not fit the model, the mesh or the processes."""


class GraphError(ChopError, ValueError):
    """A graph is not valid, or a pass was called before what it needs."""


class CaptureError(ChopError, RuntimeError):
    """A model cannot be written down as a graph."""


class GuardError(CaptureError):
    """A captured graph was called with inputs outside what it was captured for."""


class CheckpointError(ChopError, ValueError):
    """A checkpoint is missing, truncated, corrupt or names code that is not allowed."""


class WriteError(ChopError, OSError):
    """A file or folder cannot be written: no space left, read-only, or something is in the way."""


class DerivativeError(ChopError, NotImplementedError):
    """A derivative is asked for in a way that an operator has no rule for."""


class UnavailableError(ChopError, OSError):
    """A package, file or remote resource is needed and not there."""


class VerificationError(ChopError, RuntimeError):
    """A circuit or file differs from the graph it was made from, or files from their manifest."""


class DistributedError(ChopError, RuntimeError):
    """Another process ended or does not answer, or a sharded model differs from the whole one."""


class NotBuiltError(ChopError, NotImplementedError):
    """A name of MASE's whose part `chop` lacks."""


MOST_NAMES = 60
"""Names in a sentence."""


def did_you_mean(word: object, choices: Iterable[object]) -> str:
    """A closing sentence naming the nearest choice, or all of them when none is near.

    Of more than 60, the first ones and the number of the others.

    >>> did_you_mean("linaer", ["linear", "conv2d"])
    "did you mean 'linear'?"
    >>> did_you_mean("zzz", ["linear", "conv2d"])
    'choose from: conv2d, linear.'
    >>> did_you_mean("MXINT", ["mxint", "integer"])
    "did you mean 'mxint'?"
    """
    names = sorted({str(choice) for choice in choices})
    if not names:
        return "there is nothing to choose from."
    by_fold = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(str(word).casefold(), by_fold, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{by_fold[near[0]]}'?"
    others = f" and {len(names) - MOST_NAMES} others" if len(names) > MOST_NAMES else ""
    return f"choose from: {', '.join(names[:MOST_NAMES])}{others}."


def check_known(word: object, choices: Collection[object], what: str) -> None:
    """Raises ConfigError where a word is none of the choices; its message names the nearest.

    >>> check_known("linaer", ["linear", "conv2d"], "unknown operator")
    Traceback (most recent call last):
    chop.errors.ConfigError: unknown operator 'linaer': did you mean 'linear'?
    """
    if word not in choices:
        raise ConfigError(f"{what} '{word}': {did_you_mean(word, choices)}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its class where it says nothing.

    >>> first_line(ValueError("bad\\nworse")), first_line(ValueError())
    ('bad', 'ValueError')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def shorten(value: object, limit: int = 200) -> str:
    """A value as text, its beginning where that is long.

    >>> shorten("x" * 500, 5)
    'xxxxx... (500 characters)'
    """
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def bounded(text: str) -> str:
    """A message of at most 2,000 characters: beginning and end, where the way out stands.

    >>> len(bounded("x" * 200_000)) <= 2000, bounded("short")
    (True, 'short')
    """
    if len(text) <= MOST_CHARACTERS:
        return text
    start, end = text[: MOST_CHARACTERS - KEPT_AT_END - len(LEFT_OUT)], text[-KEPT_AT_END:]
    return f"{start}{LEFT_OUT}{end}"


def enumerate_names(names: Sequence[str], limit: int) -> str:
    """The first names of a list, and how many more there are.

    >>> enumerate_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
