"""Modules without a file: MASE's paths, earlier paths, and modules made from a table.

`chop` finds them by `find_spec`, and reads this file at the first import below it.
"""

from __future__ import annotations

import gc
import importlib
from importlib.machinery import ModuleSpec

import chop.paths.aliases
import chop.paths.moved

TYPE_CHECKING = False  # `typing` is not imported with `chop`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    Fill = Callable[[ModuleType], None]


class _Loader:
    """Loader of a module that `fill` gives its names.

    Not derived from that of `importlib.abc`, whose import takes as long as `import chop` does.
    """

    def __init__(self, fill: Fill) -> None:
        self.exec_module = fill

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves the making of a module to Python."""


PROVIDERS = {"chop.nn.quantized.modules": "chop.mase.quantized_classes"}
"""Path -> the module that adds the modules at it and below when it is imported."""
_FILLS: dict[str, Fill] = {}


def add_modules(paths: Iterable[str], fill: Fill) -> None:
    """Makes modules importable that have no file.

    Args:
        paths: their dotted paths, below `chop`.
        fill: gives a new module its names, for example a `__getattr__`.
    """
    _FILLS.update(dict.fromkeys(paths, fill))


def find_spec(fullname: str) -> ModuleSpec | None:
    """The spec of a module without a file, which other modules can be below; else None."""
    for path, provider in PROVIDERS.items():
        if fullname == path or fullname.startswith(f"{path}."):
            importlib.import_module(provider)
    if fullname not in _FILLS:
        return None
    return ModuleSpec(fullname, _Loader(_FILLS[fullname]), is_package=True)  # type: ignore[arg-type]


def import_subpackage(path: str) -> ModuleType:
    """The module, imported without garbage collection.

    Modules are no garbage; a collection visits the million objects of torch each time, which took
    a fifth of the import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(path)
    finally:
        if was_enabled:
            gc.enable()


add_modules(chop.paths.aliases.MODULES, chop.paths.aliases.fill)
add_modules(chop.paths.moved.MOVED, chop.paths.moved.fill)
