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

A message says what was expected, what was found, and how to continue.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

MOST_CHARACTERS = 2000
"""Maximum length of a message, in characters."""
END_CHARACTERS = 500
"""Length of the end that a shortened message keeps; it contains the suggestion."""
OMISSION = " ... (shortened) ... "


OPTION = re.compile(r"(?P<before>^|[\s('`\"])--(?P<no>no-)?(?P<name>[a-z][a-z-]+)")
COMMAND = re.compile(r"\b(chop [a-z]|pip install|apt-get|torchrun|in Python|= in)|file\.py:")
"""Parts of a message with options that stay as they are: commands, and names for both."""
PART_END = re.compile(r"(?<=[.;:]\s)")
_names_options = False


@contextmanager
def options_in_messages(is_command: bool) -> Iterator[None]:
    """Context manager of the command line, where messages name settings as options.

    Args:
        is_command: False names them as keyword arguments, as everywhere else.
    """
    global _names_options
    before, _names_options = _names_options, is_command
    try:
        yield
    finally:
        _names_options = before


def in_callers_words(text: str) -> str:
    """Returns a message with settings as the caller writes them: options, or keyword arguments.

    >>> with options_in_messages(False):
    ...     in_callers_words("use --max-drop 0.1; or run chop compress again with --keep-best")
    'use max_drop 0.1; or run chop compress again with --keep-best'
    """
    if _names_options:
        return text
    parts = PART_END.split(text)
    return "".join(x if COMMAND.search(x) else OPTION.sub(_as_keyword, x) for x in parts)


def named_options(text: str) -> list[str]:
    """Returns the options that a message names for the running command, each once.

    >>> named_options("pass --max-drop 0.1; or run chop compress again with --keep-best")
    ['--max-drop']
    """
    parts = [part for part in PART_END.split(text) if not COMMAND.search(part)]
    options = [option for part in parts for option in OPTION.finditer(part)]
    return [*dict.fromkeys(f"--{each['no'] or ''}{each['name']}" for each in options)]


def _as_keyword(option: re.Match[str]) -> str:
    name = option["name"].replace("-", "_")
    return f"{option['before']}{name}{'=False' * bool(option['no'])}"


class ChopError(Exception):
    """Base class of all errors raised on purpose. It shortens long messages in the middle.

    Messages name options of a command as keyword arguments, unless the command line runs.
    """

    # No `__init__`: torch.compile would trace it, and no longer leave the raising code to Python.
    def __str__(self) -> str:
        return bounded(in_callers_words(super().__str__()))


class ConfigError(ChopError, ValueError):
    """A setting is unknown, misspelled, of the wrong type or out of range."""


class PlanError(ConfigError):
    """A sharding plan does not fit the model, the mesh or the number of processes."""


class GraphError(ChopError, ValueError):
    """A graph is not valid, or a pass was called before a pass that it needs."""


class CaptureError(ChopError, RuntimeError):
    """A model cannot be captured as a graph."""


class GuardError(CaptureError):
    """A captured graph was called with inputs outside its guards."""


class CheckpointError(ChopError, ValueError):
    """A checkpoint is missing, truncated, corrupt or names code that is not allowed."""


class WriteError(ChopError, OSError):
    """A file or folder cannot be written, such as on a full or read-only disk."""


class DerivativeError(ChopError, NotImplementedError):
    """An operator has no rule for the requested derivative."""


class UnavailableError(ChopError, OSError):
    """A required package, file or remote resource is missing."""


class VerificationError(ChopError, RuntimeError):
    """A circuit or file differs from its graph, or files differ from their manifest."""


class DistributedError(ChopError, RuntimeError):
    """Another process ended or does not answer, or a sharded model differs from the original."""


class NotBuiltError(ChopError, NotImplementedError):
    """A name of MASE stands for a part that `chop` does not have."""


MOST_NAMES = 60
"""Maximum number of names in a sentence."""
LEAST_PREFIX = 2
"""Minimum length of a word that is completed to the only choice that begins with it."""
SURE, FEW_NAMES, FEW_CHARACTERS = 0.7, 12, 300
"""Similarity below which a suggestion is followed by all choices, if they are so few and short."""

MEANT = {"bayes": ("tpe",), "params": ("bits", "bytes"), "flops": ("bit_operations",)}
"""Choices by another name of what they are."""


def did_you_mean(word: object, choices: Iterable[object]) -> str:
    """Returns a closing sentence with the nearest choice, or with all if none is near.

    The only choice that begins with the word, or has it between underscores, is the nearest one. A
    suggestion that is not very similar is followed by all choices, if they are few and short. Of
    more than 60 choices, it lists the first ones and the number of the others.

    >>> did_you_mean("linaer", ["linear", "conv2d"])
    "did you mean 'linear'?"
    >>> did_you_mean("zzz", ["linear", "conv2d"])
    'choose from: conv2d, linear.'
    >>> did_you_mean("MXINT", ["mxint", "integer"])
    "did you mean 'mxint'?"
    >>> did_you_mean("int", ["mxint", "integer"])
    "did you mean 'integer'?"
    >>> did_you_mean("layers", ["layer_norm_eps", "num_hidden_layers"])
    "did you mean 'num_hidden_layers'?"
    >>> did_you_mean("bayes", ["tpe", "cmaes"])
    "did you mean 'tpe'?"
    """
    names = sorted({str(choice) for choice in choices})
    if not names:
        return "there is nothing to choose from."
    by_fold = {name.casefold(): name for name in names}
    begin = str(word).casefold()
    longer = [name for fold, name in by_fold.items() if fold.startswith(begin)]
    longer = longer or [name for fold, name in by_fold.items() if begin in fold.split("_")]
    if len(longer) == 1 and len(begin) >= LEAST_PREFIX:
        return f"did you mean '{longer[0]}'?"
    if meant := [f"'{by_fold[name]}'" for name in MEANT.get(begin, ()) if name in by_fold]:
        return f"did you mean {' or '.join(meant)}?"
    near = difflib.get_close_matches(begin, by_fold, n=1, cutoff=0.6)
    if near:
        is_sure = difflib.get_close_matches(begin, near, cutoff=SURE)
        listed = f" All choices: {', '.join(names)}."
        is_short = len(names) <= FEW_NAMES and len(listed) <= FEW_CHARACTERS
        return f"did you mean '{by_fold[near[0]]}'?{listed * (is_short and not is_sure)}"
    others = f" and {len(names) - MOST_NAMES} others" if len(names) > MOST_NAMES else ""
    return f"choose from: {', '.join(names[:MOST_NAMES])}{others}."


def check_known(word: object, choices: Collection[object], what: str) -> None:
    """Raises ConfigError, with the nearest choice, if a word is not one of the choices.

    >>> check_known("linaer", ["linear", "conv2d"], "unknown operator")
    Traceback (most recent call last):
    chop.errors.ConfigError: unknown operator 'linaer': did you mean 'linear'?
    """
    if not isinstance(word, Hashable) or word not in choices:
        raise ConfigError(f"{what} '{word}': {did_you_mean(word, choices)}")


def check_distinct(values: Iterable[object], what: str) -> None:
    """Raises ConfigError if a value is given twice.

    >>> check_distinct(["gptq", "awq", "gptq"], "method")
    Traceback (most recent call last):
    chop.errors.ConfigError: method: 'gptq' is given twice; expected each once.
    """
    seen: list[object] = []
    for value in values:
        if value in seen:
            raise ConfigError(f"{what}: '{value}' is given twice; expected each once.")
        seen.append(value)


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its class where it says nothing.

    >>> first_line(ValueError("bad\\nworse")), first_line(ValueError())
    ('bad', 'ValueError')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def shorten(value: object, limit: int = 200) -> str:
    """Returns a value as text, shortened to its beginning if it is long.

    >>> shorten("x" * 500, 5)
    'xxxxx... (500 characters)'
    """
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def describe(value: object, limit: int = 80, is_typed: bool = False) -> str:
    """Describes a value in one line for a message: arrays and models without their numbers.

    Args:
        value: any value.
        limit: maximum length of its text, in characters.
        is_typed: adds the type to the text of a value.

    >>> describe("8.4"), describe(4, is_typed=True), describe(int)
    ("'8.4'", '4 (int)', 'the class int')
    >>> describe(shorten), describe([object()])
    ("the function 'shorten'", 'a list of 1')
    """
    kind = type(value).__name__
    article = "an" if kind[0].lower() in "aeio" else "a"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "__code__") and hasattr(value, "__name__"):
        return f"the function '{value.__name__}'"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "__len__"):
        dtype = f" ({value.dtype})" if hasattr(value, "dtype") else ""
        return f"{article} {kind} of shape {list(shape)}{dtype}"
    count = 0
    try:
        if isinstance(value, Collection) and not isinstance(value, str):
            count = len(value)
        text = repr(value) if count <= limit else "\n"  # a text of more members is longer
    except Exception:
        return f"{article} {kind}"
    if "\n" in text or " at 0x" in text:
        return f"{article} {kind}{f' of {count}' if count else ''}"
    text = text if len(text) <= limit else f"{text[:limit]} ..."
    return f"{text} ({kind})" if is_typed else text


def bounded(text: str) -> str:
    """Shortens a message to 2,000 characters: its beginning, and its end with the suggestion.

    >>> len(bounded("x" * 200_000)) <= 2000, bounded("short")
    (True, 'short')
    """
    if len(text) <= MOST_CHARACTERS:
        return text
    start, end = text[: MOST_CHARACTERS - END_CHARACTERS - len(OMISSION)], text[-END_CHARACTERS:]
    return f"{start}{OMISSION}{end}"


def enumerate_names(names: Sequence[str], limit: int) -> str:
    """Joins the first names of a list and counts the others.

    >>> enumerate_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
