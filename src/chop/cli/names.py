"""Names that options accept, read without importing the tables that define them.

`registered.json` has the names of chop; `python -m docs.write_names` generates it from the tables.
Names of other packages come from entry points and from tables that are already imported.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from chop.base.plugins import GROUPS, OWN, REGISTRIES, Registry, described, entry_points

FILE = Path(__file__).with_name("registered.json")
TABLES: Mapping[str, str] = MappingProxyType(
    {
        "datasets": "chop.data.load:BUILTIN_DATASETS",
        "formats": REGISTRIES["formats"],
        "methods": "chop.actions.compress.ptq:METHODS",
        "metrics": "chop.train.tasks:imported_metrics",
        "models": "chop.models:BUILTIN_MODELS",
        "operators": REGISTRIES["operators"],
        "proxies": "chop.problems.nas.proxies:PROXIES",
        "pruners": "chop.search.registry:PRUNERS",
        "samplers": REGISTRIES["samplers"],
        "scores": "chop.nn.sparsity:SCORES",
        "targets": REGISTRIES["targets"],
        "tasks": REGISTRIES["tasks"],
    }
)
"""Table that defines the names of a group, by group; a function returns them."""
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("format", "formats", "inputs", "bias", "others"), "formats"),
        **dict.fromkeys(("sampler", "samplers"), "samplers"),
        "dataset": "datasets",
        "method": "methods",
        "methods": "scores",
        "metric": "metrics",
        "model": "models",
        "operators": "operators",
        "proxy": "proxies",
        "pruner": "pruners",
        "task": "tasks",
        "to": "targets",
    }
)
"""Group of names by the option that accepts them."""
LEADS: Mapping[str, str] = MappingProxyType({"datasets": "Built in", "models": "Built in"})
"""First words of the list, for groups whose options accept other values too."""
SAME = "= "
"""Prefix of the text of an alias."""
LIST = re.compile(r"^\{(\w+)\}$", re.MULTILINE)
"""Paragraph of a help text that is replaced by the rows of a group."""


def find_group(option: str, form: str) -> str | None:
    """Returns the group of names that an option accepts, or None.

    Args:
        option: name of the field.
        form: form of its values, such as `TEXT,...`. Options of that name may accept numbers.
    """
    return OPTIONS.get(option) if form.startswith("TEXT") else None


def known(group: str) -> dict[str, str]:
    """Returns the names of a group, each with its text.

    Args:
        group: key of `TABLES`.
    """
    texts = dict(_own()[group])
    for name in _added(group):
        texts.setdefault(name, "")
    return texts


def names(group: str) -> list[str]:
    """Returns the names of a group without aliases."""
    return [name for name, text in known(group).items() if not text.startswith(SAME)]


def from_packages(group: str) -> dict[str, str]:
    """Returns the names that other packages define, each with its package.

    Args:
        group: key of `TABLES`.
    """
    return {name: package for name, package in _added(group).items() if name not in _own()[group]}


def choices_text(group: str) -> str:
    """Returns the sentence of `--help` that lists the choices of an option.

    Args:
        group: key of `TABLES`. "operators" gives "": options differ in the operators they accept.
    """
    if group == "operators":
        return ""
    has_texts = group in ("methods", "tasks")
    rows = {name: text for name, text in known(group).items() if not text.startswith(SAME)}
    choices = (f"{name} ({text})" if has_texts and text else name for name, text in rows.items())
    return f"{LEADS.get(group, 'Choices')}: {', '.join(choices)}."


def completions(group: str) -> Callable[[str], list[str]]:
    """Returns the shell completion function of a group.

    Args:
        group: key of `TABLES`.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names(group) if name.startswith(begun)]

    return complete


def with_lists(text: str) -> str:
    """Returns a help text with `{group}` replaced by the names of chop in that group.

    Pages list the names of other packages separately, since their metadata take tens of
    milliseconds to read.
    """
    return LIST.sub(lambda match: "\n\n".join(_lines(match[1])), text)


def _lines(group: str) -> Iterable[str]:
    for name, text in _own()[group].items():
        if text and not text.startswith(SAME):
            yield f"  {name}: {text}" if group == "formats" else f"[bold]{name}[/] {text}"


@cache
def _own() -> dict[str, dict[str, str]]:
    names_by_group: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return names_by_group


def _added(group: str) -> dict[str, str]:
    """Returns names of the imported table, else of entry points, each with its package."""
    module, _, attribute = TABLES[group].partition(":")
    table = getattr(sys.modules.get(module), attribute, None)
    if isinstance(table, Registry):
        packages = {name: table.origin(name) for name in table}
        return {name: package for name, package in packages.items() if package != OWN}
    if table is not None:
        return dict.fromkeys(table() if callable(table) else table, "")
    if group in GROUPS:
        points = entry_points(group).items()
        return {name: " and ".join(map(described, entries)) for name, entries in points}
    return {}
