"""Sections of Google-style docstrings: `Args:`, `Attributes:`, `Returns:` and their entries."""

from __future__ import annotations

import inspect
import re
from typing import Any

ENTRY = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def entries(source: Any, *headings: str) -> dict[str, str]:
    """The texts of the entries below some headings, by name; those of base classes are included.

    Args:
        source: a class or function, or a docstring without the indentation of its code.
        headings: such as "Returns"; by default "Attributes" and "Args".
    Returns: each text on one line.

    >>> entries(entries)["headings"]
    'such as "Returns"; by default "Attributes" and "Args".'
    """
    owners = reversed(source.__mro__) if isinstance(source, type) else [source]
    found: dict[str, str] = {}
    for owner in owners:
        text = owner if isinstance(owner, str) else inspect.cleandoc(owner.__doc__ or "")
        for heading in headings or ("Attributes", "Args"):
            found |= dict(ENTRY.findall(split_section(text, heading)[1]))
    return {name: " ".join(text.split()) for name, text in found.items()}


def split_section(text: str, heading: str) -> tuple[str, str, str]:
    """What stands before a section, the section with its heading, and what stands after it.

    A text without the section is all before it; it must not have the indentation of its code.

    >>> split_section("Adds.\\n\\nReturns: a sum.\\n\\nRaises:\\n    E: never.", "Returns")
    ('Adds.\\n\\n', 'Returns: a sum.\\n\\n', 'Raises:\\n    E: never.')
    """
    found = re.search(rf"^{heading}:.*\n?(?:(?: .*)?\n|(?: .+)$)*", text, re.MULTILINE)
    if found is None:
        return text, "", ""
    return text[: found.start()], found[0], text[found.end() :]
