"""Modules that extend chop on import: `--import`, and their import in other processes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from chop.base.plugins.packages import (
    PluginError,
    get_package,
    get_root,
    importing_for,
    names_in_use,
    note_use,
)
from chop.base.plugins.registry import adding_modules
from chop.base.trust import is_trusted
from chop.errors import ConfigError, first_line

_modules: dict[str, None] = {}


def import_plugin(module: str) -> None:
    """Imports a module that adds rows to registries.

    Args:
        module: dotted name, such as `mypkg` or `mypkg.formats`, of an installed package or a module
            in the current folder.
    Raises:
        PluginError: if the import fails.
    """
    check_module_name(module, "--import")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that it shadows nothing
    with importing_for(module):
        try:
            imported = import_module(module)
        except (Exception, SystemExit) as error:  # third-party code
            raise PluginError(
                f"--import {module}: the module cannot be imported "
                f"({type(error).__name__}: {first_line(error)})."
            ) from error
    _modules[module] = None
    note_use(get_package(imported))


def check_module_name(module: str, where: str) -> None:
    """Checks that a text is a valid dotted module name.

    Args:
        module: the text.
        where: option or setting for the message.
    Raises:
        PluginError: if the name is invalid.
    """
    if _is_dotted(module):
        return
    parts = [part.strip().removesuffix(".py").removeprefix("./") for part in module.split(",")]
    names = [part.replace("/", ".") for part in parts]
    advice = f": pass {' and '.join(names)}" if all(map(_is_dotted, names)) else ""
    apart = ", each by itself" if advice and len(names) > 1 else ""
    raise PluginError(
        f"{where}: expected a module of the current folder or of an installed package, such as "
        f"mypkg.formats, got '{module}'{advice}{apart}."
    )


def _is_dotted(name: str) -> bool:
    parts = name.split(".")
    return all(map(str.isidentifier, parts)) and parts[-1] != "py"  # that is a file


def imported_modules() -> tuple[str, ...]:
    """Returns modules that have added rows to registries, for other processes to import.

    Modules that other processes cannot import by name, such as `__main__`, are omitted.
    """
    return tuple(name for name in {**_modules, **adding_modules()} if _is_importable(name))


def import_options() -> str:
    """Returns `--import` for each of `imported_modules()`, after a space, or ""."""
    return "".join(f" --import {shlex.quote(module)}" for module in imported_modules())


def import_setting() -> dict[str, list[str]]:
    """Returns the TOML setting that imports `imported_modules()`, or {} without any."""
    return {"import": list(modules)} if (modules := imported_modules()) else {}


def import_modules(modules: Iterable[str]) -> None:
    """Imports the modules of another process, from its `imported_modules()`.

    Raises:
        PluginError: if an import fails.
    """
    for module in modules:
        if module not in sys.modules:
            import_plugin(module)


@dataclass(frozen=True)
class Extensions:
    """Extensions used by a process, stored in files.

    Attributes:
        modules: result of `imported_modules()`.
        names: result of `names_in_use()`, for `naming_packages`.
    """

    modules: tuple[str, ...] = ()
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def from_this_process(cls) -> Extensions:
        """Returns the extensions that this process has used so far."""
        return cls(imported_modules(), names_in_use())

    def load(self, file: str, command: str) -> None:
        """Imports the modules if the file may name code.

        Args:
            file: name of the file with the record.
            command: command line to which the message adds options.
        Raises:
            ConfigError: if a module is code that the command line does not name.
        """
        modules = [module for module in self.modules if module not in sys.modules]
        if unnamed := [module for module in modules if not is_trusted(module)]:
            options = "".join(f" --import {shlex.quote(module)}" for module in unnamed)
            names = " and ".join(map(repr, unnamed))
            raise ConfigError(
                f"'{file}' imports {names}, and code named by files does not run by default: if "
                f"you trust it, {command}{options} (in Python: import it first)."
            )
        import_modules(modules)


def _is_importable(module: str) -> bool:
    root = get_root(module)
    spec, loaded = PathFinder.find_spec(root), sys.modules.get(root)
    return spec is not None and spec.origin == getattr(loaded, "__file__", None)
