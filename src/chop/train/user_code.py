"""Messages about exceptions of functions and data sets that the user supplies."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chop.base.files.limits import reached_limit
from chop.base.notices import get_logger
from chop.errors import ChopError, ConfigError
from chop.models import reason_of_user_code

_END = object()
REPORT_ITEMS, REPORT_SECONDS = 100_000, 10.0
"""Number of items, and time in seconds, after which reading data of unknown length is reported."""

log = get_logger(__name__)


@contextmanager
def user_code(title: str, code: Any) -> Iterator[None]:
    """Context manager that turns exceptions of user code into one sentence with its line.

    Args:
        title: name of the code in messages.
        code: function, or object whose class has the code; its file distinguishes the user's lines
            from those of libraries.
    Raises:
        ConfigError: if the code raises, other than for lack of memory or files.
    """
    try:
        yield
    except (ChopError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if reached_limit(error):
            raise
        raise ConfigError(f"{title}: {reason_of_user_code(error, _file(code))}") from error


def read_items(title: str, data: Iterable[Any], code: Any = None) -> Iterator[Any]:
    """Yields the items of the user's data. Exceptions name the item.

    Data of unknown length may be endless: a line in the log counts the items that were read.

    Args:
        title: name of the data in messages.
        data: iterated over.
        code: see `user_code`; default, `data`.
    """
    code = data if code is None else code
    with user_code(title, code):
        items = iter(data)
    is_sized, due = hasattr(code, "__len__"), time.monotonic() + REPORT_SECONDS
    for count in itertools.count():
        if not is_sized and (count == REPORT_ITEMS or time.monotonic() > due):
            due = time.monotonic() + REPORT_SECONDS
            log.warning(
                "%s: still reading, %s items so far. An endless data set needs a bound: pass "
                "list(itertools.islice(dataset, N)).",
                title,
                f"{count:,}",
            )
        with user_code(f"{title}: item {count}", code):
            item = next(items, _END)
        if item is _END:
            return
        yield item


def _file(code: Any) -> Path:
    plain = inspect.unwrap(getattr(code, "func", code))
    try:
        file = inspect.getsourcefile(plain if inspect.isroutine(plain) else type(plain))
    except TypeError:
        file = None
    return Path(file) if file else Path.cwd() / "-"
