"""Operators bound to formats, one module per operator: `from ...modules.linear import LinearMXInt`.

The classes may also be imported from here; the module that has one is imported then.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def __getattr__(name: str) -> Any:
    """The class of that name, wherever it is, or the module."""
    homes = [home.name for home in pkgutil.iter_modules(__path__)]
    if name in homes:
        return importlib.import_module(f"{__name__}.{name}")
    for home in homes if not name.startswith("_") else ():
        found = getattr(importlib.import_module(f"{__name__}.{home}"), name, None)
        if isinstance(found, type) and found.__module__ == f"{__name__}.{home}":
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
