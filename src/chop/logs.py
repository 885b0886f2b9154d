"""The loggers of the package, all children of `chop`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from chop.errors import ConfigError, did_you_mean

ROOT = "chop"


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
