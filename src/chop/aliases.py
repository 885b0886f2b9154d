"""Modules that are other names of one module: the deep import paths of MASE, which have no home.

Where MASE has a file for what is somewhere else here, users still write its path. A table beside
the module that has the names says which paths lead to it too::

    alias_modules(__name__, "report report.report_graph")

makes `from chop.passes.graph.analysis.report.report_graph import report_graph_analysis_pass` work.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class AliasModule(ModuleType):
    """A module without names of its own.

    Args:
        name: its path.
        home: the module whose names it has.
    """

    def __init__(self, name: str, home: ModuleType) -> None:
        super().__init__(name, f"Another name of `{home.__name__}`.")
        self.__path__: list[str] = []
        self._home = home

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [public for public in dir(self._home) if _is_own(self._home, public)]
        if name.startswith("_"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(self._home, name)

    def __dir__(self) -> list[str]:
        return dir(self._home)


def alias_modules(home: str, paths: str, below: str | None = None) -> None:
    """Makes every path a module with the names of `home`.

    Args:
        home: the module, which is being imported or has been.
        paths: dotted paths, separated by white space; those in between are made as well.
        below: the module that the paths start from; default, `home`.
    """
    module = importlib.import_module(home)
    base = home if below is None else below
    for path in paths.split():
        parent = sys.modules[base]
        for part in path.split("."):
            name = f"{parent.__name__}.{part}"
            if name not in sys.modules:
                sys.modules[name] = AliasModule(name, module)
                setattr(parent, part, sys.modules[name])
            parent = sys.modules[name]


def _is_own(home: ModuleType, name: str) -> bool:
    """Whether `from home import *` is to bring the name along: what `chop` defines."""
    origin = getattr(getattr(home, name), "__module__", "") or ""
    return not name.startswith("_") and origin.startswith("chop")
