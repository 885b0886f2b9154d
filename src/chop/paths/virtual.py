"""Modules without files: MASE's paths, earlier paths, and modules made from tables.

`chop` resolves them with `find_spec`, and loads this file at the first import below it.
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
    """Loader of a module whose names `fill` defines.

    It does not derive from `importlib.abc.Loader`, whose import takes as long as `import chop`.
    """

    def __init__(self, fill: Fill) -> None:
        self.exec_module = fill

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves the creation of a module to Python."""


PROVIDERS = {"chop.nn.quantized.modules": "chop.mase.quantized_classes"}
"""Path -> module that adds the modules at that path and below on import."""
_FILLS: dict[str, Fill] = {}


def add_modules(paths: Iterable[str], fill: Fill) -> None:
    """Makes modules without files importable.

    Args:
        paths: their dotted paths, below `chop`.
        fill: defines the names of a new module, for example by a `__getattr__`.
    """
    _FILLS.update(dict.fromkeys(paths, fill))


def find_spec(fullname: str) -> ModuleSpec | None:
    """Returns the package spec of a module without a file; None for other modules."""
    for path, provider in PROVIDERS.items():
        if fullname == path or fullname.startswith(f"{path}."):
            importlib.import_module(provider)
    if fullname not in _FILLS:
        return None
    return ModuleSpec(fullname, _Loader(_FILLS[fullname]), is_package=True)  # type: ignore[arg-type]


def import_subpackage(path: str) -> ModuleType:
    """Imports a module without garbage collection.

    Modules are not garbage, and each collection visits the million objects of torch, which took a
    fifth of the import time.
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
