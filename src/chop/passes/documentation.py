"""Help texts of passes: what the function says, its settings with defaults, and its `info`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chop.base.docstrings import entries, split_section

WIDTH = 88
MODULE_PATH = re.compile(r"(?<!['\w.])(?:\w+\.)+(?=\w)")


def pass_docstring(
    function: Callable[..., Any], config: Any, arguments: Mapping[str, str], result: str
) -> str:
    """The docstring of a pass.

    Args:
        function: its docstring describes the pass. The entries of its `Returns:` are the keys of
            `info`; text without entries is kept as it is.
        config: the dataclass of the settings, or a function that makes one of a mapping.
        arguments: texts by name; that of `pass_args` gives way to the settings.
        result: the first of the two things that the pass returns.
    """
    head, returns, tail = split_section(inspect.cleandoc(function.__doc__ or ""), "Returns")
    head = "".join(split_section(head, "Args")[::2]).rstrip()
    lines = ["Args:"]
    for name, text in arguments.items():
        if name == "pass_args":
            settings = list(settings_lines(config, 8))
            what = "the settings by name:" if settings else "there is nothing to set."
            lines += [f"    pass_args: {what}", *settings]
        else:
            lines += _filled(f"{name}: {text}", 4)
    info = entries(returns, "Returns")
    said = " ".join(returns.removeprefix("Returns:").split())
    what = "`info`, by key:" if info else f"`info`: {said}" if said else "`info`."
    lines += ["Returns:", *_filled(f"{result} and {what}", 4)]
    for name, text in info.items():
        lines += _filled(f"{name}: {text}", 8)
    return "\n\n".join(part for part in (head, "\n".join(lines), tail.strip()) if part) + "\n"


def settings_lines(config: Any, indent: int) -> Iterator[str]:
    """A paragraph per setting: name, type, default and text; those of a nested table below it.

    Args:
        config: a dataclass, of which fields with `metadata={"is_setting": False}` are left out; or
            a function that makes one of a mapping, whose text comes first.
        indent: columns before each line.
    """
    if not isinstance(config, type):
        text = split_section(inspect.cleandoc(config.__doc__ or ""), "Raises")[0]
        for paragraph in text.split("\n\n"):
            yield from _filled(paragraph, indent)
        config = _hints(config).get("return")
    hints, texts = _hints(config), entries(config)
    for field in dataclasses.fields(config) if dataclasses.is_dataclass(config) else ():
        if field.init and field.metadata.get("is_setting", True):
            hint = hints.get(field.name, field.type)
            kind = f"{field.name} ({type_text(hint)}, {_default(field)})"
            yield from _filled(f"{kind}: {texts.get(field.name, '')}", indent)
            for member in typing.get_args(hint):
                if dataclasses.is_dataclass(member):
                    yield from settings_lines(member, indent + 4)


def type_text(hint: Any) -> str:
    """A type as in source code, without the modules of its parts.

    >>> type_text(Mapping[str, Any] | None)
    'Mapping[str, Any] | None'
    """
    return hint if isinstance(hint, str) else MODULE_PATH.sub("", inspect.formatannotation(hint))


def _hints(source: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(source)
    except (NameError, TypeError):  # of a class inside a function, or no class
        return {}


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"default {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        return f"default {field.default_factory()!r}"
    return "required"


def _filled(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
