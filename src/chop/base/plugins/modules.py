"""Modules that extend chop as they are imported: `--import`, and what other processes need."""

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
    """Imports a module that adds rows to registries as it is imported.

    Args:
        module: dotted name, such as `mypkg` or `mypkg.formats`: of an installed package, or of one
            in the current folder.
    Raises:
        PluginError: it cannot be imported.
    """
    check_module_name(module, "--import")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that it hides nothing
    with importing_for(module):
        try:
            imported = import_module(module)
        except (Exception, SystemExit) as error:  # code of other people
            raise PluginError(
                f"--import {module}: the module cannot be imported "
                f"({type(error).__name__}: {first_line(error)})."
            ) from error
    _modules[module] = None
    note_use(get_package(imported))


def check_module_name(module: str, where: str) -> None:
    """Checks that a text is the dotted name of a module, before it is taken for one.

    Args:
        module: the text.
        where: option or setting that has it, for the message.
    Raises:
        PluginError: it is no such name.
    """
    if _is_dotted(module):
        return
    parts = [part.strip().removesuffix(".py").removeprefix("./") for part in module.split(",")]
    names = [part.replace("/", ".") for part in parts]
    advice = f": give {' and '.join(names)}" if all(map(_is_dotted, names)) else ""
    apart = ", each by itself" if advice and len(names) > 1 else ""
    raise PluginError(
        f"{where}: expected a module of the current folder or of an installed package, as "
        f"mypkg.formats, got '{module}'{advice}{apart}."
    )


def _is_dotted(name: str) -> bool:
    parts = name.split(".")
    return all(map(str.isidentifier, parts)) and parts[-1] != "py"  # that is a file


def imported_modules() -> tuple[str, ...]:
    """Returns modules that have added rows to registries, for other processes to import.

    Those are left out that another process cannot import by their name, such as `__main__`.
    """
    return tuple(name for name in {**_modules, **adding_modules()} if _is_importable(name))


def import_options() -> str:
    """Returns `--import` for each of `imported_modules()`, after a space, or ""."""
    return "".join(f" --import {shlex.quote(module)}" for module in imported_modules())


def import_setting() -> dict[str, list[str]]:
    """Returns the setting of a TOML file that imports `imported_modules()`; {} without any."""
    return {"import": list(modules)} if (modules := imported_modules()) else {}


def import_modules(modules: Iterable[str]) -> None:
    """Imports the modules of another process, given by its `imported_modules()`.

    Raises:
        PluginError: one cannot be imported.
    """
    for module in modules:
        if module not in sys.modules:
            import_plugin(module)


@dataclass(frozen=True)
class Extensions:
    """Record of the extensions that a process has used, for a file.

    Attributes:
        modules: result of `imported_modules()`.
        names: result of `names_in_use()`, for `naming_packages`.
    """

    modules: tuple[str, ...] = ()
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_this_process(cls) -> Extensions:
        """Returns the extensions that this process has used so far."""
        return cls(imported_modules(), names_in_use())

    def load(self, file: str, command: str) -> None:
        """Imports the modules if files may name code.

        Args:
            file: name of the file with the record.
            command: command line that runs, to which the message adds options.
        Raises:
            ConfigError: a module is code that the command line does not name.
        """
        modules = [module for module in self.modules if module not in sys.modules]
        if unnamed := [module for module in modules if not is_trusted(module)]:
            options = "".join(f" --import {shlex.quote(module)}" for module in unnamed)
            names = " and ".join(map(repr, unnamed))
            raise ConfigError(
                f"'{file}' needs the import of {names}, which is code and does not run because a "
                f"file says so: if you trust it, {command}{options} (in Python: import it first)."
            )
        import_modules(modules)


def _is_importable(module: str) -> bool:
    root = get_root(module)
    spec, loaded = PathFinder.find_spec(root), sys.modules.get(root)
    return spec is not None and spec.origin == getattr(loaded, "__file__", None)
