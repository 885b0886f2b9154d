"""Texts of settings: checks of names and paths, and descriptions in messages."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.base.files.documents import SURROGATE
from chop.errors import ConfigError, describe

LONGEST = 200
"""Maximum length of a value in a message, in characters."""
LISTS = (Sequence, Iterable, Collection)
"""Annotations of lists of any type."""


def check_text(value: Any, where: str) -> None:
    """Raises ConfigError if a name is empty or has characters that no file can store."""
    if isinstance(value, str) and not value:
        raise ConfigError(f"{where}: got an empty text; is a variable not set?")
    if isinstance(value, str | Path) and "\0" in str(value):
        raise ConfigError(f"{where}: got {str(value)!r}, expected a text without null bytes.")
    if isinstance(value, str | Path) and str(value).startswith("~"):
        try:
            Path(value).expanduser()
        except RuntimeError:
            user = Path(value).parts[0]
            raise ConfigError(f"{where}: got '{value}': {user} is no home folder.") from None
    if isinstance(value, str | Path) and SURROGATE.search(str(value)):
        # A byte of a path that is no UTF-8: neither pages nor checkpoints can have its name.
        raise ConfigError(
            f"{where}: got {str(value)!r}, expected UTF-8: rename the file or folder."
        )


def describe_typed(value: Any) -> str:
    """Describes a value in one line, shortened if it is long."""
    if value is None:
        return "nothing (None)"
    return describe(value, LONGEST, is_typed=True)


def describe_hint(hint: Any) -> str:
    """Describes what values an annotation allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return describe_hint(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe_hint(member) for member in arguments)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if hint in (None, type(None)):
        return "None"
    if origin is Callable:
        return "a function"
    if origin is type:
        return f"a class of {describe_hint(arguments[0])}"
    if origin in (tuple, list, *LISTS):
        return "a list" if arguments[0] is Any else f"a list of {describe_hint(arguments[0])}"
    if origin in (dict, Mapping):
        each = "" if arguments[1] is Any else f", each {describe_hint(arguments[1])}"
        return f"a table of names and values{each}"
    return getattr(hint, "__name__", str(hint))
