"""Help texts of passes: description, settings with defaults, and `info`."""

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
    """Builds the docstring of a pass.

    Args:
        function: function whose docstring describes the pass. The entries of its `Returns:` are the
            keys of `info`; text without entries stays unchanged.
        config: dataclass of the settings, or a function that builds one from a mapping.
        arguments: descriptions by name; the settings replace that of `pass_args`.
        result: description of the first of the two returned values.
    """
    head, returns, tail = split_section(inspect.cleandoc(function.__doc__ or ""), "Returns")
    head = "".join(split_section(head, "Args")[::2]).rstrip()
    lines = ["Args:"]
    for name, text in arguments.items():
        if name == "pass_args":
            settings = list(settings_lines(config, 8))
            what = "settings by name:" if settings else "there are no settings."
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
    """Formats a paragraph per setting: name, type, default and text, with nested tables below it.

    Args:
        config: a dataclass, without fields with `metadata={"is_setting": False}`; or a function
            that builds one from a mapping, whose text is first.
        indent: number of leading spaces.
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
    """Formats a type like in source code, without module names.

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
