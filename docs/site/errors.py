"""Page of the errors, by name: what each means, its exit code, and what raises it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

from chop import errors
from chop.base.docstrings import entries
from chop.passes.base import PASSES
from docs.site.api import exports, page_path
from docs.site.markdown import escaped

PAGE = "docs/reference/errors.md"
TEXT = """# Errors by name

Errors of chop derive from `chop.errors.ChopError`. The message says what was expected, what was
given, and how to fix it. A command prints it as one sentence and ends with exit code 2.
[Commands](../guide/commands.md) lists the other codes. If an error is not on this page, please
report it with its traceback."""


def classes() -> list[type[errors.ChopError]]:
    """All of them, bases first."""
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [kind for kind in classes if issubclass(kind, errors.ChopError)]


def pages() -> dict[str, str]:
    """The page."""
    raised = [*_raised()]
    parts = [TEXT]
    for kind in classes():
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        parts += [f"## `{kind.__name__}`", escaped(inspect.getdoc(kind) or ""), f"Also: {bases}."]
        lines = [f"- {who}: {escaped(when)}" for name, who, when in raised if name == kind.__name__]
        if lines:
            parts.append("\n".join(lines))
    return {PAGE: "\n\n".join(parts) + "\n"}


def _raised() -> Iterator[tuple[str, str, str]]:
    """Name of the error, what raises it, and when, from the docstrings."""
    for module, names in exports().items():
        owner = importlib.import_module(module)
        link = page_path(module).removeprefix("docs/reference/")
        for name in names:
            text = inspect.getdoc(getattr(owner, name)) or ""
            if not inspect.ismodule(getattr(owner, name)):
                for error, when in entries(text, "Raises").items():
                    yield error, f"[`{module}.{name}`]({link})", when
    for name, run in sorted(PASSES.items()):
        for error, when in entries(inspect.getdoc(run) or "", "Raises").items():
            yield error, f"[`{name}`](passes.md)", when
