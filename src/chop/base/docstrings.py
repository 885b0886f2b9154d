"""Sections of Google-style docstrings: `Args:`, `Attributes:`, `Returns:` and their entries."""

from __future__ import annotations

import inspect
import re
from typing import Any

ENTRY = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def entries(source: Any, *headings: str) -> dict[str, str]:
    """Returns name -> text of the entries in docstring sections, including those of base classes.

    Args:
        source: a class or function, or a docstring without the indentation of its code.
        headings: such as "Returns"; by default "Attributes" and "Args".
    Returns: each text on one line.

    >>> entries(entries)["headings"]
    'such as "Returns"; by default "Attributes" and "Args".'
    """
    owners = reversed(source.__mro__) if isinstance(source, type) else [source]
    texts: dict[str, str] = {}
    for owner in owners:
        text = owner if isinstance(owner, str) else inspect.cleandoc(owner.__doc__ or "")
        for heading in headings or ("Attributes", "Args"):
            texts |= dict(ENTRY.findall(split_section(text, heading)[1]))
    return {name: " ".join(text.split()) for name, text in texts.items()}


def split_section(text: str, heading: str) -> tuple[str, str, str]:
    """Splits text into the parts before, in, and after a section; the heading is in the section.

    A text without the section is returned as the first part. It must be dedented.

    >>> split_section("Adds.\\n\\nReturns: a sum.\\n\\nRaises:\\n    E: never.", "Returns")
    ('Adds.\\n\\n', 'Returns: a sum.\\n\\n', 'Raises:\\n    E: never.')
    """
    match = re.search(rf"^{heading}:.*\n?(?:(?: .*)?\n|(?: .+)$)*", text, re.MULTILINE)
    if match is None:
        return text, "", ""
    return text[: match.start()], match[0], text[match.end() :]
