"""Modules without a file: an import hook that makes them from the rows of a table."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # `typing` is not imported with `chop`
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from types import ModuleType


class VirtualModules:
    """Meta path finder and loader of the modules of one table.

    Not derived from those of `importlib.abc`, whose import takes as long as `import chop` does.

    Args:
        paths: dotted paths of the modules.
        fill: gives a new module its names, for example a `__getattr__`.
    """

    def __init__(self, paths: Container[str], fill: Callable[[ModuleType], None]) -> None:
        self._paths, self._fill = paths, fill

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the table, which other modules can be below; else None."""
        if fullname not in self._paths:
            return None
        return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves the making of a module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills a module that is being imported."""
        self._fill(module)


def add_modules(paths: Container[str], fill: Callable[[ModuleType], None]) -> None:
    """Makes modules importable that have no file.

    They precede files, because a folder that only holds `__pycache__` counts as a package too.

    Args:
        paths: their dotted paths.
        fill: gives a new module its names.
    """
    sys.meta_path.insert(0, VirtualModules(paths, fill))
