"""Pages of the Python API: what packages export and what the pages and examples import."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import chop
from chop.passes.base import PASSES
from docs.site.markdown import code, docstring, escaped, table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/reference/python"
PASSES_PAGE = "docs/reference/passes.md"
WIDEST = 88
LONGEST_DEFAULT = 60
INNER = ("chop.private", "chop.cli")
"""Packages that no program imports."""


def exports() -> dict[str, list[str]]:
    """Modules with the names that a program may import; passes have a page of their own."""
    names_by_module = {name: [*getattr(module, "__all__", ())] for name, module in _packages()}
    for module, names in _imported():
        known = names_by_module.setdefault(module, [])
        known += [name for name in names if name not in known]
    passes = {*PASSES}
    public = {
        name: [n for n in names if n not in passes] for name, names in names_by_module.items()
    }
    return {name: sorted(names) for name, names in sorted(public.items()) if names}


def _packages() -> Iterator[tuple[str, ModuleType]]:
    yield "chop", chop
    for module in pkgutil.walk_packages(chop.__path__, "chop."):
        if module.ispkg and not module.name.startswith(INNER):
            yield module.name, importlib.import_module(module.name)


def _imported() -> Iterator[tuple[str, list[str]]]:
    """Collects the names that the code of pages and examples imports from `chop`."""
    texts = [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        texts += re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            is_ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chop")
            if is_ours and not node.module.startswith(INNER):
                owner = importlib.import_module(node.module)
                names = [each.name for each in node.names]
                yield owner.__name__, [n for n in names if not inspect.ismodule(getattr(owner, n))]


def pages() -> dict[str, str]:
    """A page for each module, their list, and the page of passes."""
    names_by_module = exports()
    made = {page_path(module): _page(module, names) for module, names in names_by_module.items()}
    rows = [
        (f"[`{m}`]({page_path(m).removeprefix('docs/reference/')})", escaped(_first(m)))
        for m in names_by_module
    ]
    text = (
        "Signatures and docstrings of the public modules. Other modules are internal and may "
        "change. [All passes](passes.md) are on a separate page. [Python](../guide/python.md) is "
        "the guide."
    )
    made[f"{FOLDER}.md"] = "\n\n".join(
        ["# Python API", text, table(("module", "contents"), rows), ""]
    )
    made[PASSES_PAGE] = _passes()
    return made


def page_path(module: str) -> str:
    """The path of a module's page."""
    return f"{FOLDER}/{module}.md"


def _first(module: str) -> str:
    return (importlib.import_module(module).__doc__ or "").partition("\n")[0]


def _page(module: str, names: list[str]) -> str:
    owner = importlib.import_module(module)
    parts = [f"# `{module}`", docstring(inspect.cleandoc(owner.__doc__ or ""))]
    parts += [text for name in names for text in _described(name, getattr(owner, name), module)]
    return "\n\n".join(parts) + "\n"


def _passes() -> str:
    text = (
        "Settings of every pass in `chop.passes.PASSES`. [The guide](../guide/passes.md) shows "
        "how to use them."
    )
    parts = ["# All passes", text]
    for name, run in sorted(PASSES.items()):
        if run.__module__.startswith("chop."):
            parts += [f"## `{name}`", docstring(inspect.getdoc(run) or "")]
    return "\n\n".join(parts) + "\n"


def _described(name: str, value: Any, module: str) -> Iterator[str]:
    """Heading, signature and docstring of a name, and the methods of a class."""
    yield f"## `{name}`"
    home = getattr(value, "__module__", None)
    if inspect.ismodule(value):
        yield escaped((value.__doc__ or "").partition("\n")[0])
        return
    if not callable(value) or not home:
        text = repr(value)
        yield f"`{text}`" if len(text) < LONGEST_DEFAULT else f"A {type(value).__name__}."
        return
    yield code(_signature(name, value), "python")
    if home != module and not isinstance(home, property):
        yield f"Defined in `{home}`."
    yield docstring(inspect.cleandoc(value.__doc__ or ""))
    if isinstance(value, type):
        for method, function in vars(value).items():
            plain = getattr(function, "__func__", function)
            is_documented = (
                inspect.isfunction(plain) and plain.__doc__ and not method.startswith("_")
            )
            if is_documented:
                yield f"### `{name}.{method}`"
                yield code(_signature(method, plain), "python")
                yield docstring(inspect.cleandoc(plain.__doc__))
            elif isinstance(function, property) and function.__doc__ and not method.startswith("_"):
                yield f"### `{name}.{method}` (a property)"
                yield docstring(inspect.cleandoc(function.__doc__))


def _signature(name: str, value: Any) -> str:
    """`name(parameters) -> result`, a parameter per line where it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(...)"
    given = [*_parameters(signature)]
    result = "" if isinstance(value, type) else _annotation(signature.return_annotation, " -> ")
    line = f"{name}({', '.join(given)}){result}"
    if len(line) <= WIDEST:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in given), f"){result}"])


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    kinds, empty = inspect.Parameter, inspect.Parameter.empty
    marks = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    is_positional, is_starred = False, False
    for parameter in signature.parameters.values():
        if is_positional and parameter.kind is not kinds.POSITIONAL_ONLY:
            yield "/"
        if parameter.kind is kinds.KEYWORD_ONLY and not is_starred:
            yield "*"
        is_positional = parameter.kind is kinds.POSITIONAL_ONLY
        is_starred |= parameter.kind in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL)
        text = marks.get(parameter.kind, "") + parameter.name
        text += _annotation(parameter.annotation, ": ")
        yield text if parameter.default is empty else f"{text} = {_default(parameter.default)}"


def _annotation(hint: Any, before: str) -> str:
    if hint is inspect.Signature.empty:
        return ""
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    return before + text


def _default(value: Any) -> str:
    """Its text, unless it is long or names an address in memory."""
    text = value.__name__ if inspect.isroutine(value) or isinstance(value, type) else repr(value)
    return "..." if len(text) > LONGEST_DEFAULT or " at 0x" in text or "<" in text else text
