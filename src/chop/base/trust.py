"""Trust in files: code they may run, and places where they may write results.

A name such as `file.py:Net` or `timm:NAME` refers to code. Code named on the command line or in a
program runs. Code named by a file (a manifest, a TOML file, a storage) runs only if the command
line names it too, with `--trust-code`, or in Python inside `trust_code()`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from chop.errors import ConfigError

TIMM = "timm:"
CODE_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
TRUST = "--trust-code"
"""Option that lets files name code."""
_is_trusted: ContextVar[Callable[[str], bool] | None] = ContextVar("is_trusted", default=None)


def names_code(name: str) -> bool:
    """Returns whether a name refers to code, such as `file.py:Net` and `timm:NAME`."""
    return name.startswith(TIMM) or CODE_FILE.fullmatch(name) is not None


def code_names(value: Any) -> Iterator[str]:
    """Yields names of code in nested settings.

    >>> list(code_names({"model": "net.py:Net", "models": ("cnn", "timm:resnet18")}))
    ['net.py:Net', 'timm:resnet18']
    """
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, str | Path):
        if names_code(str(value)):
            yield str(value)
    elif not isinstance(value, bytes) and hasattr(value, "__iter__"):
        for item in value:
            yield from code_names(item)


def trust_code() -> AbstractContextManager[None]:
    """Context manager in which files may name any code, like `--trust-code`.

    Example:
        >>> with trust_code():
        ...     check_code("net.py:Net", "runs/compress/manifest.json")
    """
    return _trusting(lambda name: True)


def trust_named(settings: Any) -> AbstractContextManager[None]:
    """Context manager in which files may name only code that `settings` name.

    Args:
        settings: nested settings of a command line or a program.
    """
    named = {get_identity(name) for name in code_names(settings)}
    return _trusting(lambda name: get_identity(name) in named)


@contextmanager
def _trusting(is_named: Callable[[str], bool]) -> Iterator[None]:
    """Context manager of a trust rule; the outermost one applies, so a job cannot widen trust."""
    if _is_trusted.get() is not None:
        yield
        return
    token = _is_trusted.set(is_named)
    try:
        yield
    finally:
        _is_trusted.reset(token)


def get_identity(name: str) -> str:
    """Normalizes the path in the name of a code file."""
    match = CODE_FILE.fullmatch(name)
    if match is None or name.startswith(TIMM):
        return name
    return f"{Path(match['file']).expanduser().resolve()}:{match['name']}"


def is_trusted(name: str) -> bool:
    """Returns whether a file may name this code, because the command line or program named it."""
    trusts = _is_trusted.get()
    return trusts is not None and trusts(name)


def check_import(module: str, file: str | Path) -> None:
    """Checks a module name that a file wants to import.

    Raises:
        ConfigError: if the file is not trusted.
    """
    if not is_trusted(module):
        raise ConfigError(
            f"'{file}' imports the module '{module}', and code named by files does not run by "
            f"default: if you trust it, pass --import {module} or {TRUST}."
        )


def check_code(settings: Any, file: str | Path, option: str | None = None) -> None:
    """Checks settings from a file before code that they name runs.

    Args:
        settings: name, or nested settings.
        file: file with the settings.
        option: option by which the command line can name a model. None for no option.
    Raises:
        ConfigError: if they name code that neither the command line nor the program named.
    """
    for name in code_names(settings):
        if not is_trusted(name):
            named = f"{option} {name}, or " if option else ""
            raise ConfigError(
                f"'{file}' names the code '{name}', and code named by files does not run by "
                f"default: if you trust it, pass {named}{TRUST} "
                "(in Python: with chop.base.trust.trust_code():)."
            )


@contextmanager
def running(name: str) -> Iterator[None]:
    """Context manager in which named code runs; code that it names itself is trusted as well.

    Raises:
        ConfigError: if a command or job is running that was not given the name.
    """
    if _is_trusted.get() is not None and not is_trusted(name):
        raise ConfigError(
            f"'{name}' is code that a file names but the command line does not: name it there, or "
            f"pass {TRUST}."
        )
    token = _is_trusted.set(lambda name: True)
    try:
        yield
    finally:
        _is_trusted.reset(token)


def confirmation(settings: Any) -> str:
    """Returns the option that confirms code named by a file, after a space, or "".

    Args:
        settings: name of a model, or nested settings.

    >>> confirmation("net.py:Net"), confirmation("cnn")
    (' --trust-code', '')
    """
    return f" {TRUST}" if any(code_names(settings)) else ""


def options_naming(settings: Mapping[str, Any]) -> str:
    """Returns the options that confirm the settings of a file, after a space, or "".

    >>> options_naming({"model": "net.py:Net", "evaluate": None})
    ' --model net.py:Net'
    >>> options_naming({"model": "cnn", "evaluate": "judge.py:score"})
    ' --evaluate judge.py:score'
    """
    named = {name: settings.get(name) for name in ("model", "evaluate", "loss")}
    options = [f"--{name} {shlex.quote(x)}" for name, x in named.items() if x and names_code(x)]
    return "".join(f" {option}" for option in options)


def is_allowed_place(place: str | Path, *homes: Path) -> bool:
    """Returns true if a command may write to a place that a file names, see `check_place`."""
    path = Path(place).expanduser().resolve()
    allowed = (Path.cwd(), *homes)
    return _is_trusted.get() is None or any(path.is_relative_to(x.resolve()) for x in allowed)


def check_place(place: str | Path, file: str | Path, option: str, *homes: Path) -> None:
    """Checks an output place that a file names for a command; programs may choose any place.

    Args:
        place: file or folder.
        file: file that named the place.
        option: option by which the command line names a place.
        homes: allowed folders in addition to the current one.
    Raises:
        ConfigError: if the place is outside of them, with links followed.
    """
    if not is_allowed_place(place, *homes):
        raise ConfigError(
            f"'{file}' writes results outside the current folder, to '{place}': to allow "
            f"that, pass {option} {place}."
        )
