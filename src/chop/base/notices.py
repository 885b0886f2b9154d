"""Notices: loggers, warnings given once for a process or a model, and assumptions of a job."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from chop.errors import ConfigError, bounded, did_you_mean


@dataclass(frozen=True)
class Assumption:
    """An assumption or observation of a job.

    Attributes:
        text: a sentence, with the way to say otherwise.
        about: a constant by which code finds it; "" for most.
    """

    text: str
    about: str = ""


class AdjustedWarning(UserWarning):
    """A setting cannot be had as it was given, and was replaced or left out."""


ROOT = "chop"
"""Name of the logger that all others of the package are below."""
_GIVEN: set[str] = set()
_GIVEN_OF: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
"""By model, or what stands for it: what was said of it."""
_assumed: ContextVar[tuple[list[Assumption], ...]] = ContextVar("lists of assumptions", default=())


def warn_once(
    message: str, category: type[Warning] = AdjustedWarning, about: str | None = None
) -> None:
    """Warns unless the same message was given before.

    Python's own filter forgets what it has shown whenever a library touches the filters.

    Args:
        message: a sentence.
        category: of the warning.
        about: messages about the same thing are the same; None: those of the same text.
    """
    if (about or message) not in _GIVEN:
        _GIVEN.add(about or message)
        warnings.warn(bounded(message), category, stacklevel=2)


def warn_once_about(
    subjects: Iterable[object], message: str, category: type[Warning], about: str
) -> None:
    """Warns unless something about one of the subjects was said before; other models are warned.

    Args:
        subjects: a model and what stands for it, such as its capture, which copies share; hashed
            by identity, and not kept alive.
        message: a sentence.
        category: of the warning.
        about: messages about the same thing are the same, whatever their text.
    """
    said = [_GIVEN_OF.setdefault(subject, set()) for subject in subjects]
    is_known = any(about in of_one for of_one in said)
    for of_one in said:
        of_one.add(about)
    if not is_known:
        warn_each_time(message, category)


def warn_each_time(message: str, category: type[Warning]) -> None:
    """Warns at every call, for what is true of one model and is called once for each.

    Python's default filter shows the same text of one line of code once in a process.
    """
    caller = sys._getframe(1)
    file, line = caller.f_code.co_filename, caller.f_lineno
    warnings.warn_explicit(bounded(message), category, file, line, registry={})


def forget_notices() -> None:
    """Lets every message be given again."""
    _GIVEN.clear()
    _GIVEN_OF.clear()


def assume(text: str, log: logging.Logger | None = None, about: str = "") -> None:
    """Notes an assumption, which the report of the job has that runs.

    Args:
        text: a sentence: what was taken for granted, and how to say otherwise.
        log: also warns at once, unless the job has noted the same before; None leaves that out.
        about: see `Assumption`.
    """
    lists, assumption = _assumed.get(), Assumption(text, about)
    is_new = not any(assumption in assumptions for assumptions in lists)
    for assumptions in lists:
        if assumption not in assumptions:
            assumptions.append(assumption)
    if log is not None and is_new:
        log.warning("%s", text)


@contextlib.contextmanager
def collected_assumptions() -> Iterator[list[Assumption]]:
    """Context that collects assumptions made inside, each once. Outer contexts get them, too."""
    assumptions: list[Assumption] = []
    token = _assumed.set((*_assumed.get(), assumptions))
    try:
        yield assumptions
    finally:
        _assumed.reset(token)


def forget_assumptions(about: str) -> None:
    """Takes back what was assumed about something that turned out not to matter.

    Args:
        about: see `Assumption`.
    """
    for assumptions in _assumed.get():
        assumptions[:] = [each for each in assumptions if each.about != about]


def get_logger(name: str) -> logging.Logger:
    """The logger of that name below `chop`; the first call attaches one handler for all.

    >>> get_logger("mine").name, get_logger("chop.passes").name
    ('chop.mine', 'chop.passes')
    """
    root = logging.getLogger(ROOT)
    if not root.handlers:
        root.addHandler(_handler())
        root.propagate = False
        root.setLevel(logging.INFO)
    inside = name == ROOT or name.startswith(f"{ROOT}.")
    return logging.getLogger(name if inside else f"{ROOT}.{name}")


def set_logging_verbosity(level: str | int = "info") -> None:
    """How much the package says: `debug`, `info`, `warning`, `error` or `critical`.

    Args:
        level: a name in any case, or a number of the `logging` module.
    Raises:
        ConfigError: no such level; the message names the nearest.
    """
    levels = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}
    number = level if isinstance(level, int) else levels.get(level.lower())
    if number is None:
        raise ConfigError(f"unknown logging level '{level}': {did_you_mean(level, levels)}")
    root_logger().setLevel(number)


@contextlib.contextmanager
def at_level(level: int, *names: str) -> Iterator[None]:
    """Inside, loggers of other packages say nothing below a level.

    Args:
        level: a number of the `logging` module.
        names: of the loggers.
    """
    before = [(logger, logger.level) for logger in map(logging.getLogger, names)]
    try:
        for logger, _ in before:
            logger.setLevel(level)
        yield
    finally:
        for logger, own in before:
            logger.setLevel(own)


def root_logger() -> logging.Logger:
    """The logger that all others of the package are below."""
    return get_logger(ROOT)


def _handler() -> logging.Handler:
    from rich.console import Console
    from rich.logging import RichHandler

    return RichHandler(console=Console(stderr=True), show_path=False)
