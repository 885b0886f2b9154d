"""Settings from a TOML file. Code and foreign output folders need an option on the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from chop.base.plugins import check_module_name, import_plugin
from chop.base.trust import check_code, check_import, check_place
from chop.cli.command import ALIASES, COMMANDS_WITH, load
from chop.errors import MOST_NAMES, ConfigError, check_distinct, enumerate_names

OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("config", "trust_code", "figures", "json", "quiet", "verbose")
}
"""Options of commands that are not settings of jobs."""
ESCAPES = {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r", "\x1b": r"\e"}
"""Control characters, and what they are in a TOML text in double quotes."""
ESCAPED = re.compile(f"[{''.join(ESCAPES)}]")
MODEL_SETTINGS = ("weights", "overrides", "skip", "layers")
"""Settings that name weights or layers of one model."""


def read_settings(file: Path, given: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Merges the settings of a TOML file with options, which have priority.

    Keys may be written like options: with hyphens, or as their second names.

    Args:
        file: the TOML file.
        given: settings of the command line.
        cls: dataclass of the settings.

    Raises:
        ConfigError: if the file cannot be read, names code that the command line does not name, or
            writes results outside the current folder.
    """
    from chop.config import check_keys, check_text, load_toml

    known = {field.name for field in fields(cls)}
    second = {ALIASES[x]: x for x in known & ALIASES.keys() if ALIASES[x] not in known}
    document = load_toml(file)
    names = [second.get(key, key.replace("-", "_")) for key in document]
    check_distinct(names, str(file))
    settings = dict(zip(names, document.values(), strict=True))
    for name in sorted(settings.keys() & OPTIONS.keys()):
        raise ConfigError(f"{file}: '{name}' is no setting: pass {OPTIONS[name]} as an option.")
    modules = settings.pop("import", ())
    _check_is_for(cls, settings, file)
    check_keys(cls, settings, str(file))
    _check_escapes(settings, file)
    _import_modules(modules, file)
    from_file = {name: value for name, value in settings.items() if name not in given}
    own = [name for name in MODEL_SETTINGS if name in from_file]
    if own and "model" in settings and given.get("model", settings["model"]) != settings["model"]:
        raise ConfigError(
            f"{file} is for the model '{settings['model']}', to which {', '.join(own)} in it "
            f"apply, and --model {given['model']} is another: remove them from a copy of the file, "
            "or leave out --model."
        )
    for name, value in from_file.items():
        option = name if name in ("evaluate", "loss") else "model"
        check_code({name: value}, file, f"--{option}")
    out = from_file.get("out")
    if isinstance(out, str):
        check_text(out, f"{file}: out")
        check_place(out, file, "--out")
    _check_storage(from_file.get("storage"), file)
    return {**from_file, **given}


def _check_is_for(cls: type, settings: Mapping[str, Any], file: Path) -> None:
    """Raises ConfigError for a setting of another command, such as `trials` of a search."""
    own = cls.__dataclass_fields__  # type: ignore[attr-defined]
    for key in settings:
        if any(key in name for name in own):  # part of a name: its owner can be meant
            continue
        if others := enumerate_names(load(COMMANDS_WITH)(key), MOST_NAMES):
            raise ConfigError(
                f"{file}: '{key}' is a setting of {others}, and not of this command: remove it "
                "from the file."
            )


def _check_escapes(value: Any, file: Path, where: str = "") -> None:
    """Raises ConfigError for control characters, which TOML reads in a path of Windows."""
    if isinstance(value, Mapping | list):
        named = value.items() if isinstance(value, Mapping) else ((where, each) for each in value)
        for name, each in named:
            _check_escapes(each, file, name)
    elif isinstance(value, str) and (escape := ESCAPED.search(value)):
        written = "".join(ESCAPES.get(character, character) for character in value)
        raise ConfigError(
            f'{file}: {where}: TOML reads {ESCAPES[escape[0]]} in "{written}" as one character; '
            f"write {written.replace(chr(92), '/')}. A backslash needs single quotes."
        )


def _import_modules(modules: Any, file: Path) -> None:
    """Imports the modules that a file names, unless the command line has imported them."""
    modules = [modules] if isinstance(modules, str) else modules
    if not isinstance(modules, list | tuple) or not all(isinstance(m, str) for m in modules):
        raise ConfigError(f"{file}: import: expected a list of modules, got {modules!r:.60}.")
    for module in modules:
        check_module_name(module, f"{file}: import")
        if module not in sys.modules:
            check_import(module, file)
            import_plugin(module)


def _check_storage(storage: Any, file: Path) -> None:
    """Raises ConfigError if a search would write its trials outside the current folder."""
    from chop.config import check_text
    from chop.search.location import MEMORY, storage_file, storage_url, without_password

    if not isinstance(storage, str):
        return
    check_text(storage, f"{file}: storage")
    url = storage_url(storage, None)
    place = storage_file(url)
    if place is not None:
        check_place(place, file, "--storage")
    elif url != MEMORY:
        raise ConfigError(
            f"'{file}' writes trials to a server, {without_password(url)}: to allow that, pass "
            "--storage URL."
        )
