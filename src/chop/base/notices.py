"""Notices: loggers, one-time warnings, and assumptions of a job."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from chop.errors import ConfigError, bounded, describe, did_you_mean, in_callers_words


@dataclass(frozen=True)
class Assumption:
    """Assumption or observation of a job.

    Attributes:
        text: sentence, including how to specify another choice.
        about: key by which code finds it. "" for none.
    """

    text: str
    about: str = ""


class AdjustedWarning(UserWarning):
    """Warning that a setting was replaced or ignored because it cannot be honored."""


ROOT = "chop"
"""Name of the package's root logger."""
_GIVEN: set[str] = set()
_GIVEN_BY_SUBJECT: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
"""Model or representative -> keys of the warnings given for it."""
_assumed: ContextVar[tuple[list[Assumption], ...]] = ContextVar("lists of assumptions", default=())


def warn_once(
    message: str, category: type[Warning] = AdjustedWarning, about: str | None = None
) -> None:
    """Warns unless the same message was given before.

    Python's own filter forgets previous warnings whenever a library changes the filters.

    Args:
        message: a sentence.
        category: category of the warning.
        about: key by which messages count as equal. None uses the text.
    """
    if (about or message) not in _GIVEN:
        _GIVEN.add(about or message)
        warnings.warn(bounded(in_callers_words(message)), category, stacklevel=2)


def warn_once_about(
    subjects: Iterable[object], message: str, category: type[Warning], about: str
) -> None:
    """Warns once per model and topic.

    Args:
        subjects: a model and its representatives, such as its capture, which copies share. They are
            compared by identity and held by weak references.
        message: a sentence.
        category: category of the warning.
        about: key by which messages count as equal, regardless of their text.
    """
    given_sets = [_GIVEN_BY_SUBJECT.setdefault(subject, set()) for subject in subjects]
    is_known = any(about in given for given in given_sets)
    for given in given_sets:
        given.add(about)
    if not is_known:
        warn_each_time(message, category)


def warn_each_time(message: str, category: type[Warning]) -> None:
    """Warns at every call, for conditions of a specific model.

    Python's default filter would show the same text from the same line once per process.
    """
    caller = sys._getframe(1)
    file, line = caller.f_code.co_filename, caller.f_lineno
    warnings.warn_explicit(bounded(in_callers_words(message)), category, file, line, registry={})


def forget_notices() -> None:
    """Resets the record of warnings given."""
    _GIVEN.clear()
    _GIVEN_BY_SUBJECT.clear()


def assume(text: str, log: logging.Logger | None = None, about: str = "") -> None:
    """Records an assumption for the report of the running job.

    Args:
        text: sentence: the assumption, and how to specify another choice.
        log: logger that also warns at once, unless the job has recorded the same text before. None
            does not log.
        about: see `Assumption`.
    """
    text = in_callers_words(text)
    lists, assumption = _assumed.get(), Assumption(text, about)
    is_new = not any(assumption in assumptions for assumptions in lists)
    for assumptions in lists:
        if assumption not in assumptions:
            assumptions.append(assumption)
    if log is not None and is_new:
        log.warning("%s", text)


@contextlib.contextmanager
def collected_assumptions() -> Iterator[list[Assumption]]:
    """Context manager that collects assumptions, each once. Outer contexts collect them as well."""
    assumptions: list[Assumption] = []
    token = _assumed.set((*_assumed.get(), assumptions))
    try:
        yield assumptions
    finally:
        _assumed.reset(token)


def current_assumptions() -> Sequence[Assumption]:
    """Returns the assumptions that the running job has recorded so far."""
    lists = _assumed.get()
    return lists[0] if lists else ()


def in_words(assumptions: Iterable[Assumption]) -> str:
    """Returns general assumptions as the end of an error message; without any, "".

    >>> in_words([Assumption("Classes are numbered in this order: a, b.")])
    ' Assumed: Classes are numbered in this order: a, b.'
    """
    texts = [each.text.rstrip(".") for each in assumptions if not each.about]
    return "".join(f" Assumed: {text}." for text in texts)


def forget_assumptions(about: str) -> None:
    """Removes assumptions on a topic that turned out to be irrelevant.

    Args:
        about: see `Assumption`.
    """
    for assumptions in _assumed.get():
        assumptions[:] = [each for each in assumptions if each.about != about]


def get_logger(name: str) -> logging.Logger:
    """Returns the logger of that name below `chop`; the first call adds a shared handler.

    >>> get_logger("mine").name, get_logger("chop.passes").name
    ('chop.mine', 'chop.passes')
    """
    if not isinstance(name, str):
        raise ConfigError(f"name of a logger: expected a str, got {describe(name)}.")
    root = logging.getLogger(ROOT)
    if not root.handlers:
        root.addHandler(_handler())
        root.propagate = False
        root.setLevel(logging.INFO)
    inside = name == ROOT or name.startswith(f"{ROOT}.")
    return logging.getLogger(name if inside else f"{ROOT}.{name}")


def set_logging_verbosity(level: str | int = "info") -> None:
    """Sets the logging level: `debug`, `info`, `warning`, `error` or `critical`.

    Args:
        level: name in any case, or a number of the `logging` module.
    Raises:
        ConfigError: if the level is unknown.
    """
    levels = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}
    number = level if isinstance(level, int) else levels.get(str(level).lower())
    if number is None:
        raise ConfigError(f"unknown logging level '{level}': {did_you_mean(level, levels)}")
    root_logger().setLevel(number)


@contextlib.contextmanager
def at_level(level: int, *names: str) -> Iterator[None]:
    """Context manager that silences loggers of other packages below a level.

    Args:
        level: number of the `logging` module.
        names: names of the loggers.
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
    """Returns the package's root logger."""
    return get_logger(ROOT)


def _handler() -> logging.Handler:
    from rich.console import Console
    from rich.logging import RichHandler

    return RichHandler(console=Console(stderr=True), show_path=False)
